"""Shorthands `--method` and `--fidelity`, and `Config(method=..., fidelity=...)`; settings given beside them win."""

import dataclasses

import pytest

from fedvg_jax import commands, config
from fedvg_jax.config import Config, presets
from fedvg_jax.config.options import algorithm_of

SIX = ("fedavg", "fedavgm", "fedprox", "scaffold", "feddyn", "elastic")
WEIGHTS = {  # of the algorithms' own papers; FedVG's alone, except FedAvg + FedVG, which is the mean of both
    **{name: (name, "uniform" if name in ("scaffold", "feddyn") else "samples") for name in SIX},
    "fedvg": ("fedavg", "fedvg"),
    "fedavg+fedvg": ("fedavg", "samples+fedvg"),
    **{f"{name}+fedvg": (name, "fedvg") for name in SIX[1:]},
}


def parse(*args):
    return commands.parse([str(arg) for arg in args])


def test_method_is_an_algorithm_and_its_weights():
    for name, expected in WEIGHTS.items():
        made = config.Config(method=name)
        native = algorithm_of(made).native_weighting
        assert (made.algorithm, made.weighting.replace("native", native)) == expected


@pytest.mark.parametrize("weighting", ["uniform", "fedvg", "permuted(fedvg)", "samples+val_loss"])
def test_every_weighting_is_a_method_alone_and_beside_every_algorithm(weighting):
    alone = config.Config(method=weighting)
    assert (alone.algorithm, alone.weighting) == ("fedavg", weighting)
    for algorithm in config.ALGORITHMS:
        method = f"{algorithm}+{weighting}"
        made = config.check(config.Config(method=method))
        expected = "samples+fedvg" if method == "fedavg+fedvg" else weighting
        assert (made.algorithm, made.weighting) == (algorithm, expected)


def test_flags_override_the_method_and_both_a_file_whose_keys_override_its_own_method(tmp_path):
    made = parse("--scaffold.eta-g", "0.5", "--method", "scaffold", "--weighting", "samples")
    assert (made.algorithm, made.weighting, made.scaffold.eta_g) == ("scaffold", "samples", 0.5)
    file = tmp_path / "mine.toml"
    file.write_text('method = "feddyn+fedvg"\nrounds = 7\n[feddyn]\nalpha = 0.3\n')
    made = parse("--config", file)
    assert (made.algorithm, made.weighting, made.rounds) == ("feddyn", "fedvg", 7)
    assert (made.feddyn.alpha, made.feddyn.clip) == (0.3, 10.0)
    made = parse("--config", file, "--method", "fedprox", "--fedprox.mu", "0.5")
    assert (made.algorithm, made.weighting, made.rounds) == ("fedprox", "native", 7)
    assert made.fedprox.mu == 0.5


# --- from Python


def test_shorthands_in_python_equal_those_of_the_command_line():
    for method in presets.METHODS:
        for fidelity in ("official", "corrected"):
            expected = parse("--method", method, "--fidelity", fidelity)
            made = Config(method=method, fidelity=fidelity, cache_dir=expected.cache_dir)
            assert config.check(made) == expected


def test_settings_of_a_group_or_alone_win_beside_a_shorthand():
    assert Config(method="fedprox", fedprox=dict(mu=0.5)).fedprox.mu == 0.5
    made = Config(fidelity="official", feddyn={"alpha": 0.3}, partition="dirichlet")
    assert made.feddyn.alpha == 0.3 and made.reference == "official"
    assert made.partition == "dirichlet" == Config().partition  # given, though the default


def test_shorthands_are_no_fields():
    """config.json, equality and replacement see the settings only."""
    made = Config(method="fedprox", rounds=3)
    assert "method" not in config.to_json(made) and "fidelity" not in config.to_json(made)
    assert dataclasses.replace(made, rounds=100) == Config(algorithm="fedprox", weighting="native")
    assert dataclasses.replace(made, method="scaffold+fedvg") == Config(
        method="scaffold+fedvg", rounds=3
    )


def test_the_name_of_a_method_is_that_of_the_settings_it_stands_for():
    for name in [
        *WEIGHTS,
        "uniform",
        "fedper+fedvg",
        "fednova+val_loss",
        "permuted(fedvg)",
        "scaffold+samples+fedvg",
    ]:
        assert Config(method=name).method == name
    assert dataclasses.replace(Config(method="fedvg"), weighting="uniform").method == "uniform"
