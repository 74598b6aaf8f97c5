"""`Config(method=..., fidelity=...)`: settings given beside a shorthand win."""

import dataclasses

import pytest

import fedvg_jax
from fedvg_jax import config, sim
from fedvg_jax.config import Config, FedDyn, FedProx, presets
from fedvg_jax.core.types import UsageError
from fedvg_jax.study.sweep_points import parse_axes


def settings_from_python(**shorthands):
    return config.flatten(config.check(Config(**shorthands)))


def test_shorthands_in_python_equal_those_of_the_command_line():
    for method, fidelity in [*((method, "official") for method in presets.METHODS), ("fedprox", "corrected")]:
        expected = config.flatten(sim.parse(["--method", method, "--fidelity", fidelity]))
        settings = settings_from_python(method=method, fidelity=fidelity, cache_dir=expected["cache_dir"])
        assert settings == expected, (method, fidelity)


def test_explicit_settings_override_shorthands_even_with_default_values():
    made = Config(
        method="fedprox", weighting="fedvg", fedprox={"mu": 0.5}, server_stats="averaged", fidelity="official"
    )
    assert (made.algorithm, made.weighting, made.server_stats) == ("fedprox", "fedvg", "averaged")
    assert made.fedprox == FedProx(mu=0.5)


def test_group_given_whole_is_refused_beside_a_shorthand_that_sets_some_of_it():
    with pytest.raises(UsageError, match="give feddyn as a dict"):
        Config(fidelity="official", feddyn=FedDyn(alpha=0.3))
    made = Config(fidelity="official", feddyn={"alpha": 0.3})
    assert made.feddyn.alpha == 0.3 and made.feddyn.regulariser == Config(fidelity="official").feddyn.regulariser


def test_names_have_any_case_as_papers_print_them(tmp_path):
    """On the command line, in files, in a config and on the axes of a sweep."""
    registered = ["--method=scaffold+fedvg", "--dataset=wine", "--record=confusion", "--fedvg.norm=l2"]
    printed = ["--method=SCAFFOLD + FedVG", "--dataset=Wine", "--record=Confusion", "--fedvg.norm=L2"]
    (tmp_path / "a.toml").write_text(
        'method = "SCAFFOLD+FedVG"\ndataset = "Wine"\nrecord = "Confusion"\nfedvg.norm="L2"'
    )
    expected = sim.parse(registered)
    assert sim.parse(printed) == expected and expected.clients == presets.of_dataset("wine")["clients"]
    assert dataclasses.replace(sim.parse(["--config", str(tmp_path / "a.toml")]), config=None) == expected
    assert settings_from_python(
        method="FedAvg + FedVG", fidelity="Official", model="MLP", fedvg={"norm": "L2"}
    ) == settings_from_python(method="fedavg+fedvg", fidelity="official", model="mlp", fedvg={"norm": "l2"})
    axes = parse_axes({"method": ["FedAvg", "fedavg", "FedVG", "Uniform"], "weighting": "Samples+Permuted(FedVG)"})
    assert axes[0].values == (("fedavg",), ("fedvg",), ("uniform",))
    assert axes[1].values == (("samples+permuted(fedvg)",),)


def test_shorthands_are_no_fields():
    """config.json, equality and replacement see the settings only."""
    made = Config(method="fedprox", rounds=3)
    assert "method" not in config.to_json(made) and "fidelity" not in config.to_json(made)
    assert dataclasses.replace(made, rounds=100) == Config(algorithm="fedprox", weighting="native")
    with pytest.raises(UsageError, match=r"dataclasses\.replace cannot apply method"):
        dataclasses.replace(made, method="fedavg")


def test_an_unknown_setting_is_named_with_the_closest():
    with pytest.raises(UsageError, match=r"unknown setting 'round'; did you mean 'rounds'\?"):
        Config(round=3)
    with pytest.raises(UsageError, match=r"unknown setting 'learning_rate'; did you mean 'lr'\?"):
        Config(learning_rate=0.1, method="fedprox")


def test_a_group_given_as_a_dict_is_the_group_at_once_and_a_wrong_name_is_refused_by_a_run_or_a_sweep():
    assert Config(fedvg={"norm": "l2"}) == Config(fedvg=config.FedVG(norm="l2"))
    for call in (fedvg_jax.run, lambda made: fedvg_jax.run_sweep(made, {"seed": [0]})):
        with pytest.raises(UsageError, match=r"unknown setting 'fedvg\.nrom'; did you mean 'fedvg\.norm'"):
            call(Config(fedvg={"nrom": "l2"}))
