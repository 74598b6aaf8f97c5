"""The paper's methods by name, and what the published code does: `--method` and `--fidelity`."""

import pytest

from fedvg_jax import build, config, presets, sim
from fedvg_jax.types import UsageError

SIX = ("fedavg", "fedavgm", "fedprox", "scaffold", "feddyn", "elastic")
WEIGHTS = {  # of the algorithms' own papers; FedVG's stand alone, but for FedAvg + FedVG, which is the mean of both
    **{name: (name, "uniform" if name in ("scaffold", "feddyn") else "samples") for name in SIX},
    "fedvg": ("fedavg", "fedvg"),
    "fedavg+fedvg": ("fedavg", "samples+fedvg"),
    **{f"{name}+fedvg": (name, "fedvg") for name in SIX[1:]},
}
APPENDIX = {  # the paper's, which are the published code's
    "fedavgm": {"fedavgm.momentum": 0.9, "fedavgm.lr": 1.0},
    "fedprox": {"fedprox.mu": 0.01},
    "scaffold": {"scaffold.eta_g": 1.0},
    "feddyn": {"feddyn.alpha": 0.1, "feddyn.clip": 10.0},
    "elastic": {"elastic.ratio": 0.3, "elastic.tau": 0.5, "elastic.mu": 0.95},
    "fedvg": {"fedvg.norm": "l1", "fedvg.eps": 1e-8, "fedvg.granularity": "modelwise", "fedvg.mode": "train"},
}
every_method = pytest.mark.parametrize("name", WEIGHTS)


def parse(*args):
    return sim.parse([str(arg) for arg in args])


def test_the_paper_has_thirteen_methods():
    assert len(WEIGHTS) == 13 and set(presets.METHODS) == set(WEIGHTS)


@every_method
def test_a_method_is_an_algorithm_and_its_weights(name):
    made = parse("--method", name)
    native = build.ALGORITHMS[made.algorithm](made).native_weighting
    assert (made.algorithm, made.weighting.replace("native", native)) == WEIGHTS[name]


@every_method
def test_a_method_has_the_hyper_parameters_of_the_appendix(name):
    """Whatever the file says of them."""
    made = config.flatten(parse("--method", name))
    for part in name.split("+"):
        assert {setting: made[setting] for setting in APPENDIX.get(part, {})} == APPENDIX.get(part, {})


@every_method
def test_a_method_changes_nothing_else(name):
    before, after = (config.flatten(made) for made in (parse(), parse("--method", name)))
    changed = {setting for setting in before if before[setting] != after[setting]}
    assert changed <= {"algorithm", "weighting"} | {s for part in name.split("+") for s in APPENDIX.get(part, {})}


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


def test_official_moves_every_switch_and_corrected_none():
    official, corrected = (config.flatten(parse("--fidelity", name)) for name in ("official", "corrected"))
    moved = {name: value for name, value in official.items() if corrected[name] != value}
    assert corrected == config.flatten(parse()) and moved == presets.FIDELITY["official"]
    assert (
        moved.items()
        >= {
            "partition": "official",
            "cohorts": "official",
            "server_stats": "official",
            "scaffold.steps": "single",
            "scaffold.memory": "lost",
            "feddyn.regulariser": "linear",
            "feddyn.weights": "samples",
            "feddyn.average": "once",
            "elastic.sensitivity": "official",
            "elastic.rows": "rest",
        }.items()
    )


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
