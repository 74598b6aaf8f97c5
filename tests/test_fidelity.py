"""Every difference between the papers, the published code and the defaults has settings or a reason."""

import re
import typing
from collections import Counter

from cases import naming

from fedvg_jax import config, sim
from fedvg_jax.config import Config, presets
from fedvg_jax.paper import fidelity

DEFAULTS = config.flatten(Config())
WORDS = 15
"""Maximum number of words in a cell of the table."""


def is_default(row):
    return all(DEFAULTS[name] == value for name, value in row.settings.items())


def test_every_row_has_settings_or_a_reason():
    for row in fidelity.DEPARTURES:
        with naming(row.id):
            assert row.settings or row.reason


def test_settings_of_a_row_are_valid():
    """`apply` refuses unknown names and types, `check` refuses unknown values."""
    for row in fidelity.DEPARTURES:
        with naming(row.id):
            settings = dict(row.settings)
            changed = config.flatten(config.check(config.apply(Config(), settings, row.id)))
            assert {name: changed[name] for name in settings} == settings


def test_profile_applies_settings_that_differ_from_defaults_or_gives_a_reason():
    for row in fidelity.DEPARTURES:
        with naming(row.id):
            if row.official:
                assert row.settings and not is_default(row)
            else:
                assert is_default(row) or row.reason


def test_profile_consists_of_the_official_rows():
    switched = [row for row in fidelity.DEPARTURES if row.official]
    assert presets.FIDELITY["official"] == {name: value for row in switched for name, value in row.settings.items()}


def test_no_setting_is_in_two_rows():
    settings = {item for row in fidelity.DEPARTURES for item in row.settings.items()}
    assert max(Counter(name for name, _ in settings).values()) == 1


def test_profile_changes_only_its_settings():
    official, corrected = (config.flatten(sim.parse(["--fidelity", name])) for name in ("official", "corrected"))
    moved = {name: value for name, value in official.items() if corrected[name] != value}
    assert corrected == config.flatten(sim.parse([])) and moved == fidelity.official_settings()


def test_profile_is_valid_with_every_method():
    for method in presets.METHODS:
        with naming(method):
            config.check(sim.parse(["--fidelity", "official", "--method", method]))


def test_texts_of_a_row_are_short_and_name_existing_flags():
    for row in fidelity.DEPARTURES:
        with naming(row.id):
            texts = (row.subject, row.paper, row.published, row.ours, row.reason)
            assert all(len(text.split()) <= WORDS and "|" not in text for text in texts)
            flags = re.findall(r"--([a-z][a-z_.-]*)", " ".join(texts))
            assert all(flag.replace("-", "_") in DEFAULTS for flag in flags)


def test_rows_have_unique_ids_and_evidence():
    assert len({row.id for row in fidelity.DEPARTURES}) == len(fidelity.DEPARTURES)
    allowed = typing.get_args(fidelity.Evidence)
    assert all({row.paper_evidence, row.published_evidence} <= set(allowed) for row in fidelity.DEPARTURES)
    assert all(row.published_evidence != "memory" for row in fidelity.DEPARTURES), "the published code was at hand"
