"""Shorthands `--method` and `--fidelity`: the paper's methods, and the behaviour of the published code."""

import pytest
from files import usage_error

from fedvg_jax import config, sim
from fedvg_jax.config import presets
from fedvg_jax.runs import registry

SIX = ("fedavg", "fedavgm", "fedprox", "scaffold", "feddyn", "elastic")
WEIGHTS = {  # of the algorithms' own papers; FedVG's alone, except FedAvg + FedVG, which is the mean of both
    **{name: (name, "uniform" if name in ("scaffold", "feddyn") else "samples") for name in SIX},
    "fedvg": ("fedavg", "fedvg"),
    "fedavg+fedvg": ("fedavg", "samples+fedvg"),
    **{f"{name}+fedvg": (name, "fedvg") for name in SIX[1:]},
}


def parse(*args):
    return sim.parse([str(arg) for arg in args])


def test_method_is_an_algorithm_and_its_weights():
    for name, expected in WEIGHTS.items():
        made = config.Config(method=name)
        native = registry.ALGORITHMS[made.algorithm](made).native_weighting
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


def test_method_overrides_its_settings_in_the_file(tmp_path):
    """A run of the method does not depend on settings that another run left in a file."""
    file = tmp_path / "other.toml"
    for name in SIX[1:]:
        settings = presets.METHODS[name]
        numbers = {setting: value for setting, value in settings.items() if isinstance(value, float)}
        file.write_text("".join(f"{setting} = {value / 2}\n" for setting, value in numbers.items()))
        parsed = config.flatten(parse("--config", file, "--method", name))
        assert {setting: parsed[setting] for setting in settings} == settings


@pytest.mark.parametrize("method_first", [True, False])
def test_flag_overrides_the_method(method_first):
    method, flags = ["--method", "scaffold"], ["--scaffold.eta-g", "0.5", "--weighting", "samples"]
    made = parse(*(method + flags if method_first else flags + method))
    assert (made.algorithm, made.weighting, made.scaffold.eta_g) == ("scaffold", "samples", 0.5)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('method = "feddyn+fedvg"\nrounds = 7\n[feddyn]\nalpha = 0.3\n')
    return path


def test_file_may_name_a_method_which_its_other_keys_override(file):
    made = parse("--config", file)
    assert (made.algorithm, made.weighting, made.rounds) == ("feddyn", "fedvg", 7)
    assert (made.feddyn.alpha, made.feddyn.clip) == (0.3, 10.0)


def test_method_and_flags_of_the_command_line_override_the_file(file):
    made = parse("--config", file, "--method", "fedprox", "--fedprox.mu", "0.5")
    assert (made.algorithm, made.weighting, made.fedprox.mu, made.rounds) == ("fedprox", "native", 0.5, 7)


# --- mistakes


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--method", "fedvgg"], "did you mean 'fedvg'"),
        (["--method", "uniform+fedvg+samples"], "unknown method 'uniform+fedvg+samples'"),
        (
            ["--method", "fedavg,fedprox"],
            "several values are for python -m fedvg_jax.sweep, separated by spaces: fedavg",
        ),
        (["--alpha", "0.05", "0.5"], "a flag takes one value here; python -m fedvg_jax.sweep takes several"),
        (["--method"], "--method needs a name"),
        (["--fidelity", "offical"], "did you mean 'official'"),
    ],
)
def test_unknown_name_is_one_line_and_exit_code_two(capsys, args, message):
    assert sim.main(args) == 2
    shown = capsys.readouterr()
    assert message in shown.err and shown.err.count("\n") == 1 and shown.out == ""


@pytest.mark.parametrize("value", ['"fedvgg"', "3"])
def test_unknown_name_in_a_file_is_one_line(tmp_path, value):
    path = tmp_path / "mine.toml"
    path.write_text(f"method = {value}\n")
    with usage_error("method"):
        parse("--config", path)
