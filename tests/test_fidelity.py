"""Every difference between the papers, the published code and the defaults has a switch or a reason."""

import re
import typing
from collections import Counter

import pytest

from fedvg_jax import config, sim
from fedvg_jax.config import Config, presets
from fedvg_jax.paper import fidelity

DEFAULTS = config.flatten(Config())
every_row = pytest.mark.parametrize("row", fidelity.DEPARTURES, ids=lambda row: row.id)
WORDS = 15
"""Most words of a table's cell."""


def is_default(row):
    return all(DEFAULTS[name] == value for name, value in row.settings.items())


@every_row
def test_a_row_has_a_switch_or_a_reason(row):
    assert row.settings or row.reason


@every_row
def test_a_switch_is_a_setting_with_an_allowed_value(row):
    """`apply` refuses unknown names and types, `check` unknown values."""
    settings = dict(row.settings)
    changed = config.flatten(config.check(config.apply(Config(), settings, row.id)))
    assert {name: changed[name] for name in settings} == settings


@every_row
def test_the_profile_switches_what_is_not_the_default_or_says_why_not(row):
    if row.official:
        assert row.settings and not is_default(row)
    else:
        assert is_default(row) or row.reason


def test_the_profile_is_the_rows_marked_as_switched():
    switched = [row for row in fidelity.DEPARTURES if row.official]
    assert presets.FIDELITY["official"] == {name: value for row in switched for name, value in row.settings.items()}


def test_no_two_rows_disagree_on_a_setting():
    settings = {item for row in fidelity.DEPARTURES for item in row.settings.items()}
    assert max(Counter(name for name, _ in settings).values()) == 1


def test_the_profile_moves_its_settings_and_no_other():
    official, corrected = (config.flatten(sim.parse(["--fidelity", name])) for name in ("official", "corrected"))
    moved = {name: value for name, value in official.items() if corrected[name] != value}
    assert corrected == config.flatten(sim.parse([])) and moved == fidelity.official_settings()


@pytest.mark.parametrize("method", presets.METHODS)
def test_the_profile_is_accepted_with_every_method(method):
    config.check(sim.parse(["--fidelity", "official", "--method", method]))


@every_row
def test_a_row_s_texts_are_short_and_name_flags_that_exist(row):
    texts = (row.subject, row.paper, row.published, row.ours, row.reason)
    assert all(len(text.split()) <= WORDS and "|" not in text for text in texts)
    flags = re.findall(r"--([a-z][a-z_.-]*)", " ".join(texts))
    assert all(flag.replace("-", "_") in DEFAULTS for flag in flags)


def test_rows_have_names_and_evidence():
    assert len({row.id for row in fidelity.DEPARTURES}) == len(fidelity.DEPARTURES)
    allowed = typing.get_args(fidelity.Evidence)
    assert all({row.paper_evidence, row.published_evidence} <= set(allowed) for row in fidelity.DEPARTURES)
    assert all(row.published_evidence != "memory" for row in fidelity.DEPARTURES), "the published code was at hand"
