"""Settings: names, types, ranges, files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.files import one_line, usage_error

from fedvg_jax import config
from fedvg_jax.config import Config, command_line, presets
from fedvg_jax.config.weighting_grammar import MAX_CHARACTERS, WEIGHTINGS, Mean, Permuted, parse_weighting
from fedvg_jax.core.types import UsageError
from fedvg_jax.data import datasets
from fedvg_jax.engine import robust
from fedvg_jax.runs.record.history import History

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))


@pytest.mark.quick
def test_every_shipped_config_is_read_and_in_range():
    assert CONFIGS
    for path in CONFIGS:
        config.check(config.apply(Config(), config.read_toml(path), str(path)))


def test_every_preset_is_in_range_and_every_data_set_has_one():
    assert set(presets.DATASETS) == set(config.DATASETS)
    for name, preset in presets.DATASETS.items():
        config.check(config.apply(Config(dataset=name), preset, name))


def test_digits_config_equals_the_defaults():
    assert config.apply(Config(), config.read_toml(ROOT / "configs/digits.toml"), "digits") == Config()


def test_flatten_and_apply_are_inverse():
    changed = config.apply(Config(), {"alpha": 3.0, "fedvg.norm": "l2", "lanes": 4, "out": "folder"}, "test")
    assert (changed.alpha, changed.fedvg.norm, changed.lanes, changed.out) == (3.0, "l2", "4", Path("folder"))
    assert config.apply(Config(), config.flatten(changed), "test") == changed


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("alpha", v) for v in (0.0, float("nan"), float("inf"))),
        ("join_ratio", 1.01),
        ("clients", 0),
        ("seed", 2**32),
        ("lr", 0.0),
        ("fedvg.eps", float("nan")),
        ("test_ratio", 0.95),
        *(("lanes", v) for v in ("0", "some", "٣")),
        *((name, "nosuch") for name in ("dataset", "weighting", "fedvg.norm")),
        *(("weighting", v) for v in ("samples+nosuch", "samples+", "uniform+samples+fedvg", "permuted(samples")),
        ("weighting", "permuted(" * 2000 + "fedvg" + ")" * 2000),
        *(("fedvg.include", v) for v in ("(" * 3000, "a{99999999999}")),
        ("devices", "9" * 5000),
        ("tuning.steps", 2**32 - 1),
        ("out", "a\udcffb"),
    ],
)
def test_value_that_cannot_be_used_is_one_short_line_naming_the_setting(setting, value):
    with usage_error(setting) as error:
        config.check(config.apply(Config(weighting="generalised"), {setting: value}, "test"))
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[fedgv]\nnorm = 'l1'", "did you mean 'fedvg.norm'"),
        ("rounds = 2.5", "rounds must be an int"),
        ("lr = {}", "lr"),
        ("[fedvg.norm]", "fedvg.norm"),
        ("alpha = = 1", "not valid TOML"),
        ('data_dir = "C:\\Users\\me"', "stand in single quotes"),
        ("\0", "not valid TOML"),
    ],
)
def test_mistake_in_a_file_names_the_file_and_the_remedy(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with usage_error(str(path), message):
        config.apply(Config(), config.read_toml(path), str(path))


def test_a_leading_tilde_is_the_home_folder_in_every_setting_of_a_path_wherever_it_is_given(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    paths = [name for name, setting in config.SETTINGS.items() if Path in setting.types] + ["resume"]
    file = tmp_path / "c.toml"
    for name in paths:
        file.write_text(f'{name} = "~/x"\n')
        flag, stored = command_line.parse([f"--{name}=~/x"], "sim"), config.read_toml(file)
        for settings in (flag, stored, {name: "~/x"} if name == "resume" else {name: Path("~/x")}):
            assert str(config.flatten(config.apply(Config(), settings, "test"))[name]) == str(tmp_path / "x")
    assert command_line.parse_path("~/x") == tmp_path / "x"
    with one_line(f"{tmp_path}/x: no such folder; hf:FOLDER"):
        datasets.load("hf:~/x")
    with one_line(f"{tmp_path}/x is not a run folder"):
        History.load("~/x")


def test_files_are_read_with_a_mark_of_utf_8_and_refused_if_missing_or_without_end(tmp_path):
    (tmp_path / "marked.toml").write_text("rounds = 3", encoding="utf-8-sig")
    assert config.read_toml(tmp_path / "marked.toml") == {"rounds": 3}
    for path, message in ((tmp_path / "mine.toml", "cannot read"), (Path("/dev/zero"), "more than")):
        with usage_error(message):
            config.read_toml(path)


def _written(rule) -> str:
    """Returns the text of a rule; a mean has no parentheses of its own."""
    if isinstance(rule, Permuted):
        return f"permuted({_written(rule.rule)})"
    return f"{_written(rule.first)}+{_written(rule.second)}" if isinstance(rule, Mean) else rule


_TERMS = st.deferred(lambda: st.sampled_from(list(WEIGHTINGS)) | st.builds(Permuted, _RULES))
_RULES = st.deferred(lambda: _TERMS | st.builds(Mean, _TERMS, _TERMS))


@given(_RULES.filter(lambda rule: len(_written(rule)) <= MAX_CHARACTERS))
def test_every_weighting_is_parsed_to_the_rule_that_it_is_written_for(rule):
    assert parse_weighting(_written(rule)) == rule


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("learning_rate", "lr"), ("mu", "fedprox.mu"), ("fedprox.nu", "fedprox.mu"), ("rouns", "rounds")],
)
def test_unknown_name_suggests_the_closest(wrong, right):
    with usage_error(f"mine.toml: unknown setting '{wrong}'; did you mean '{right}'?"):
        config.apply(Config(), {wrong: 1}, "mine.toml")
    with usage_error("unknown setting 'learning_rate'; did you mean 'lr'?"):
        Config(learning_rate=0.1)
    with usage_error("unknown setting 'fedvg'; it is a table, [fedvg]"):
        config.apply(Config(), {"fedvg": "l1"}, "mine.toml")


def trimmed(clients, trim):
    return Config(clients=clients, join_ratio=1.0, weighting="uniform", robust=f"trimmed_mean:{trim}")


@pytest.mark.parametrize(("clients", "smallest"), [(3, 0.34), (10, 0.1), (999, 0.0011)])
def test_trim_that_leaves_out_no_client_is_refused_and_the_smallest_that_works_is_named(clients, smallest):
    with pytest.raises(UsageError) as error:
        config.check(trimmed(clients, 0.99 / clients))
    assert f"none of {clients} clients; use {smallest:g} or more" in str(error.value)
    assert robust._cuts(smallest, clients)[clients] == 1
    for trim in (0.0, 1 / clients, smallest):
        config.check(trimmed(clients, trim))


SCALARS = {name: "{}" for name, setting in config.SETTINGS.items() if setting.facts.hyper and name != "rounds"}
SCALARS |= {"robust": "clipped_mean:{}", "attack": "noise:{}"}
"""Setting -> text of a value."""


def test_number_that_float32_cannot_hold_is_refused():
    """1e-39 would become 0, and 1e39 infinity."""
    for name in SCALARS:
        for value in (1e-39, 1e39):
            given = SCALARS[name].format(value) if ":" in SCALARS[name] else value
            with pytest.raises(UsageError, match=name):
                config.check(config.apply(Config(weighting="generalised"), {name: given}, "test"))


def test_every_hyperparameter_of_a_round_must_fit_float32():
    """Every setting that changes a traced scalar of a round is in the list."""
    from fedvg_jax.runs.assemble import registry

    for name, value in config.flatten(Config()).items():
        if type(value) is float:
            for algorithm in ("fedavgm", "fedadam"):
                before = Config(algorithm=algorithm)
                after = config.apply(before, {name: 0.34375}, "test")
                old, new = (registry.make_hyper(made) for made in (before, after))
                assert all(old[h] == new[h] for h in old) or name in SCALARS, name
