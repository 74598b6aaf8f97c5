"""`--select`: the rows that choose the best round, and the rows that weights are measured on."""

from dataclasses import replace

import numpy as np
import programs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedvg_jax
from fedvg_jax import config, data
from fedvg_jax.config import Config
from fedvg_jax.core.types import UsageError
from fedvg_jax.data import validation
from fedvg_jax.runs import chunks, population, simulation
from fedvg_jax.views import display

DIGITS = data.load("digits")


@given(st.lists(st.integers(0, 30), min_size=1), st.integers(0, 2**32 - 1))
def test_halves_of_a_validation_set_are_disjoint_and_complete(rows, seed):
    rows = np.array(rows, np.int32)
    images = len(np.unique(rows))
    if images < 2:
        with pytest.raises(UsageError, match="use --select shared"):
            validation.halves(rows, seed)
        return
    scored, selected = validation.halves(rows, seed)
    assert not np.intersect1d(scored, selected).size
    assert sorted([*scored, *selected]) == sorted(rows)
    assert len(np.unique(selected)) == images // 2
    again = validation.halves(rows, seed)
    assert all((a == b).all() for a, b in zip((scored, selected), again, strict=True))


def rows_of(table):
    rows = np.asarray(table)
    return rows[rows >= 0].tolist()


def tables(folder, select):
    settings = config.check(Config(cache_dir=folder, select=select, alpha=1.0))
    parts = population.make_partition(settings, DIGITS)
    made = simulation.make_data(settings, DIGITS, parts)
    return made, chunks.evaluation_tables(made), np.concatenate(parts.val).tolist()


def test_held_out_rows_select_and_no_weight_reads_them(tmp_path):
    """Every weighting reads `scoring` or `val`."""
    made, evaluated, d_val = tables(tmp_path, "held_out")
    selected, weighed = rows_of(evaluated["val"]), rows_of(made.val)
    assert not set(selected) & set(weighed) and not set(selected) & set(rows_of(made.scoring))
    assert sorted(selected + weighed) == sorted(d_val) and abs(len(selected) - len(weighed)) <= 1
    assert set(rows_of(made.scoring)) <= set(weighed)


def test_summary_and_table_name_the_rows_that_selected(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "compile_programs", programs.trace_only)
    settings = replace(Config(cache_dir=tmp_path), clients=2, rounds=1, local_epochs=1, alpha=10.0, select="held_out")
    history = fedvg_jax.run(settings)
    assert history.summary["select"] == "held_out"
    for select, rows in display.SELECTED_ON.items():
        shown = display.result_table(history._replace(summary=history.summary | {"select": select}))
        assert shown.caption == rows
