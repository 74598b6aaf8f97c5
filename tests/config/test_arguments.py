"""Flags of settings on a command line."""

import itertools
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


def test_values_are_those_of_python_s_types():
    assert parse("--rounds", "1_0") == {"rounds": 10} and parse("--lr", "nan").keys() == {"lr"}
    assert parse("--local-epochs", "2") == {"local_epochs": 2}
    assert parse("--local-epochs", "2-5") == {"local_epochs": "2-5"}
    assert parse("--columns", "None") == {"columns": "None"}
    for flag, text in itertools.product(("--rounds", "--seed"), ("3.0", "0x10", "x", "", "9" * 5000)):
        assert f"{flag} must be an integer" in refusal(flag, text) and len(refusal(flag, text)) < 200
    for text in ("1/2", "[1]", "", "x"):
        assert f"--lr must be a number; got {text!r}" in refusal("--lr", text)


def test_the_name_of_a_group_is_its_kind():
    assert parse("--corrupt", "rotate") == parse("--corrupt.kind=rotate") == {"corrupt.kind": "rotate"}
