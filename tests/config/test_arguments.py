"""Flags of settings on a command line."""

from pathlib import Path

import pytest

from fedvg_jax import config
from fedvg_jax.config import SETTINGS, Config, command_line
from fedvg_jax.core.types import UsageError


def parse(*words):
    return command_line.parse(words, "sim")


def refusal(*words):
    with pytest.raises(UsageError) as error:
        parse(*words)
    return str(error.value)


OTHER = {bool: "", int: "7", float: "7.5", str: "7-8", Path: "a b"}


def test_every_setting_is_a_flag_with_its_type_in_each_spelling():
    for name, default in config.flatten(Config()).items():
        kind = next(kind for kind in OTHER if kind in SETTINGS[name].types)
        group, dot, last = name.rpartition(".")
        for flag in {name, name.replace("_", "-")}:
            if kind is bool:
                off = f"--{group}{dot}no-{last}"
                assert parse(f"--{flag}") == {name: True} and parse(off) == {name: False}
                continue
            text, expected = OTHER[kind], {name: kind(OTHER[kind])}
            assert parse(f"--{flag}", text) == parse(f"--{flag}={text}") == expected
        assert kind is not type(None) and (default is None or isinstance(default, SETTINGS[name].types))


def test_the_last_of_equal_flags_counts():
    assert parse("--lr", "1", "--dry-run", "--lr=2", "--no-dry-run") == {"lr": 2.0, "dry_run": False}


def test_a_value_that_begins_with_a_dash_is_a_number_or_follows_an_equals_sign():
    for number in ("-1", "-0.5", "-.5"):
        assert parse("--lr", number) == {"lr": float(number)}
    assert parse("--lr=-1e-3") == {"lr": -1e-3}
    assert [parse("--out=-x"), parse("--out=a=b")] == [{"out": Path("-x")}, {"out": Path("a=b")}]
    for words in (["--out"], ["--out", "-x"], ["--out", "--lr"], ["--out", "--lr", "1"], ["--out", "-1e-3"]):
        assert "--out needs a value" in refusal(*words)


def test_the_name_of_a_group_is_its_kind():
    assert parse("--corrupt", "rotate") == parse("--corrupt.kind=rotate") == {"corrupt.kind": "rotate"}
