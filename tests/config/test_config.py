"""Settings: names, types, ranges, files."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.files import one_line

from fedvg_jax import config
from fedvg_jax.config import SETTINGS, Config, command_line, presets
from fedvg_jax.config.declare import Condition
from fedvg_jax.config.methods import WEIGHTINGS, Mean, Permuted, parse_weighting
from fedvg_jax.core.types import UsageError
from fedvg_jax.data import datasets
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
    assert (
        config.apply(Config(), config.read_toml(ROOT / "configs/digits.toml"), "digits") == Config()
    )


def test_a_leading_tilde_is_the_home_folder_in_every_setting_of_a_path_wherever_it_is_given(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    paths = [name for name, setting in config.SETTINGS.items() if Path in setting.types]
    file = tmp_path / "c.toml"
    for name in paths:
        file.write_text(f'{name} = "~/x"\n')
        flag = parse(f"{command_line.FLAGS[name]}=~/x")
        for settings in (flag, config.read_toml(file), {name: Path("~/x")}):
            made = config.flatten(config.apply(Config(), settings, "test"))
            assert Path(made[name]) == tmp_path / "x"
    with one_line(f"{tmp_path}/x: no such file or folder; dataset hf:~/x"):
        datasets.load("hf:~/x")
    with one_line(f"{tmp_path}/x is not a run folder"):
        History.load("~/x")


def _written(rule) -> str:
    """Returns the text of a rule; a mean has no parentheses of its own."""
    if isinstance(rule, Permuted):
        return f"permuted({_written(rule.rule)})"
    return f"{_written(rule.first)}+{_written(rule.second)}" if isinstance(rule, Mean) else rule


_TERMS = st.deferred(lambda: st.sampled_from(["native", *WEIGHTINGS]) | st.builds(Permuted, _RULES))
_RULES = st.deferred(lambda: _TERMS | st.builds(Mean, _TERMS, _TERMS))


@given(_RULES)
def test_every_weighting_is_parsed_to_the_rule_that_it_is_written_for(rule):
    assert parse_weighting(_written(rule)) == rule


def test_number_that_float32_cannot_hold_is_refused():
    """1e-39 would become 0, and 1e39 infinity."""
    scalars = {n: "{}" for n, s in SETTINGS.items() if s.facts.is_traced and n != "rounds"}
    scalars |= {"robust": "clipped_mean:{}", "attack": "noise:{}"}
    for name, text in scalars.items():
        for value in ("1e-39", "1e39"):
            with pytest.raises(UsageError, match=name):
                config.check(config.apply(Config(), {name: text.format(value)}, "test"))


def test_a_cohort_is_the_floor_of_clients_times_ratio_as_it_is_written():
    """The published code's product of floats is smaller, as 28.999... for 100 clients and 0.29."""
    for clients, hundredths in itertools.product((7, 50, 100, 200), range(1, 101)):
        made = Config(clients=clients, join_ratio=hundredths / 100)
        assert config.cohort_size(made) == max(1, clients * hundredths // 100)
    for clients, ratio in ((100, 0.29), (50, 0.58)):
        made = Config(clients=clients, join_ratio=ratio, reference="official")
        assert config.cohort_size(made) == 28


# --- flags of settings on a command line


def parse(*words):
    return command_line.parse(words, "sim")


OTHER = {int: "7", float: "7.5", str: "7-8", Path: "a b"}


def test_every_setting_is_a_flag_with_its_type():
    for name, default in config.flatten(Config()).items():
        kind = next(kind for kind in OTHER if kind in SETTINGS[name].types)
        flag = command_line.FLAGS[name]
        text = OTHER[kind]
        assert parse(flag, text) == parse(f"{flag}={text}") == {name: kind(text)}
        assert default is None or isinstance(default, SETTINGS[name].types)


def test_a_value_that_begins_with_a_dash_is_a_number_or_follows_an_equals_sign():
    for number in ("-1", "-0.5", "-.5"):
        assert parse("--lr", number) == {"lr": float(number)}
    assert parse("--lr=-1e-3") == {"lr": -1e-3}
    for value in ("-x", "a=b"):
        assert parse(f"--out={value}") == {"out": Path(value)}
    for words in ("--out", "--out -x", "--out --lr 1", "--out -1e-3"):
        with one_line("--out: expected one argument"):
            parse(*words.split())


# --- settings that a run does not use: flags are refused, those of a file or of Python are listed


CONDITIONAL = {name: setting.facts.used for name, setting in SETTINGS.items() if setting.facts.used}
VALUES = {
    "buffered.size": [0, 1],
    "buffered.concurrency": [None, 3],
    **{name: list(setting.names) for name, setting in SETTINGS.items() if setting.names},
    "dataset": [*config.DATASETS, "tfds:mnist", "hf:mnist"],
    "weighting": ["native", *config.WEIGHTINGS, "permuted(fedvg)", "samples+fitted"],
    "local": ["", "^classifier/"], "momentum": [0.0, 0.9], "keep": [0, 2], "tuning.steps": [0, 1], "max_rows": [0, 9],
    "clock.step": [0.0, 1.0], "dp.clip": [0.0, 1.0], "validation.rho": [0.0, 0.5],
}  # fmt: skip


def with_condition(made: Config, condition: Condition, holds: bool) -> Config:
    """Returns `made` with a value of the deciding setting for which the condition holds, or does not."""
    name = condition.setting
    others = {"buffered.size": 2} if name == "buffered.concurrency" else {}
    candidates = (config.apply(made, others | {name: value}, "test") for value in VALUES[name])
    return next(other for other in candidates if condition.holds(other) is holds)


def test_every_conditional_setting_is_used_by_some_runs_and_not_by_others():
    assert len(CONDITIONAL) > 40
    for name, conditions in CONDITIONAL.items():
        made = Config()
        for condition in conditions:
            made = with_condition(made, condition, holds=True)
        assert config.unused(made, [name]) == []
        for condition in conditions:
            assert config.unused(with_condition(made, condition, holds=False), [name]) == [name]


# --- settings given from Python


def test_settings_from_python_are_converted_as_from_a_file():
    """A dict is converted to a group, an int to a float, a NumPy scalar to its number."""
    made = Config(fedvg={"norm": "l2"}, lr=np.float32(0.5), clients=np.int64(7), alpha=1, lanes=2)
    expected = dataclasses.replace(
        Config(), fedvg=dict(norm="l2"), lr=0.5, clients=7, alpha=1.0, lanes="2"
    )
    assert made == expected and type(made.clients) is int and type(made.alpha) is float
