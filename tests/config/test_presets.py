"""The paper's methods by name, and what the published code does: `--method` and `--fidelity`."""

import pytest

from fedvg_jax import config, sim
from fedvg_jax.config import presets
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs import simulation

SIX = ("fedavg", "fedavgm", "fedprox", "scaffold", "feddyn", "elastic")
WEIGHTS = {  # of the algorithms' own papers; FedVG's stand alone, but for FedAvg + FedVG, which is the mean of both
    **{name: (name, "uniform" if name in ("scaffold", "feddyn") else "samples") for name in SIX},
    "fedvg": ("fedavg", "fedvg"),
    "fedavg+fedvg": ("fedavg", "samples+fedvg"),
    **{f"{name}+fedvg": (name, "fedvg") for name in SIX[1:]},
}
every_method = pytest.mark.parametrize("name", WEIGHTS)


def parse(*args):
    return sim.parse([str(arg) for arg in args])


def test_the_paper_has_thirteen_methods():
    assert len(WEIGHTS) == 13 and set(presets.METHODS) == set(WEIGHTS)


@every_method
def test_a_method_is_an_algorithm_and_its_weights(name):
    made = parse("--method", name)
    native = simulation.ALGORITHMS[made.algorithm](made).native_weighting
    assert (made.algorithm, made.weighting.replace("native", native)) == WEIGHTS[name]


@every_method
def test_a_method_moves_only_its_algorithm_s_options(name):
    """And the names of algorithm and weighting."""
    before, after = (config.flatten(made) for made in (parse(), parse("--method", name)))
    changed = {setting for setting in before if before[setting] != after[setting]}
    algorithm = presets.METHODS[name]["algorithm"]
    assert all(setting in ("algorithm", "weighting") or setting.startswith(f"{algorithm}.") for setting in changed)


@every_method
def test_a_method_sets_all_that_it_names_whatever_the_file_says(name, tmp_path):
    """A run of the method does not depend on settings that another run left in a file."""
    settings = presets.METHODS[name]
    file = tmp_path / "other.toml"
    numbers = {setting: value for setting, value in settings.items() if isinstance(value, float)}
    file.write_text("".join(f"{setting} = {value / 2}\n" for setting, value in numbers.items()))
    found = config.flatten(parse("--config", file, "--method", name))
    assert {setting: found[setting] for setting in settings} == settings


@pytest.mark.parametrize("name", [name for name in WEIGHTS if name.endswith("+fedvg")])
def test_with_fedvg_s_weights_an_algorithm_keeps_its_options(name):
    alone, both = presets.METHODS[name.removesuffix("+fedvg")], presets.METHODS[name]
    assert {setting for setting in alone.keys() | both if alone.get(setting) != both.get(setting)} == {"weighting"}


@pytest.mark.parametrize("name", ["fedprox", "scaffold", "feddyn", "elastic", "fedavgm"])
def test_a_method_s_options_are_the_defaults_of_its_algorithm(name):
    """`--algorithm NAME` and `--method NAME` are then the same algorithm."""
    own = {setting: value for setting, value in presets.METHODS[name].items() if "." in setting}
    assert own and own.items() <= config.flatten(config.Config()).items()


@pytest.mark.parametrize("before", [True, False], ids=["flag after", "flag before"])
def test_a_flag_overrides_the_method(before):
    method, flags = ["--method", "scaffold"], ["--scaffold.eta-g", "0.5", "--weighting", "samples"]
    made = parse(*(method + flags if before else flags + method))
    assert (made.algorithm, made.weighting, made.scaffold.eta_g) == ("scaffold", "samples", 0.5)


def test_a_method_may_be_written_with_an_equals_sign():
    assert parse("--method=elastic+fedvg") == parse("--method", "elastic+fedvg")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('method = "feddyn+fedvg"\nrounds = 7\n[feddyn]\nalpha = 0.3\n')
    return path


def test_a_file_may_name_a_method_which_its_other_keys_override(file):
    made = parse("--config", file)
    assert (made.algorithm, made.weighting, made.rounds) == ("feddyn", "fedvg", 7)
    assert (made.feddyn.alpha, made.feddyn.clip) == (0.3, 10.0)


def test_the_command_line_s_method_and_flags_override_the_file(file):
    made = parse("--config", file, "--method", "fedprox", "--fedprox.mu", "0.5")
    assert (made.algorithm, made.weighting, made.fedprox.mu, made.rounds) == ("fedprox", "native", 0.5, 7)


def test_a_method_stands_above_the_data_set_s_preset():
    made = parse("--dataset", "cifar10", "--method", "fedavgm")
    assert (made.algorithm, made.model, made.clients, made.fedavgm.momentum) == ("fedavgm", "resnet18", 100, 0.9)


# --- what the published code does


def test_method_and_fidelity_go_together_and_flags_override_both():
    made = parse("--fidelity", "official", "--method", "scaffold", "--scaffold.memory", "kept")
    assert (made.algorithm, made.scaffold.steps, made.scaffold.memory) == ("scaffold", "single", "kept")


# --- mistakes


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--method", "fedvgg"], "did you mean 'fedvg'"),
        (["--method", "nosuch"], "allowed: fedavg, fedavgm"),
        (["--method"], "--method needs a name"),
        (["--fidelity", "offical"], "did you mean 'official'"),
    ],
)
def test_an_unknown_name_is_one_line_and_exit_code_two(capsys, args, said):
    assert sim.main(args) == 2
    shown = capsys.readouterr()
    assert said in shown.err and shown.err.count("\n") == 1 and shown.out == ""


@pytest.mark.parametrize("value", ['"fedvgg"', "3", "true", "[]", '{ name = "fedvg" }'])
def test_an_unknown_name_in_a_file_is_one_line(tmp_path, value):
    path = tmp_path / "mine.toml"
    path.write_text(f"method = {value}\n")
    with pytest.raises(UsageError, match="method") as error:
        parse("--config", path)
    assert "\n" not in str(error.value)
