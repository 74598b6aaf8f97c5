"""Bytes and early ends of runs in reports."""

import pytest
from run_folders import write_run

pytest.importorskip("matplotlib", reason="reports need the report extra")
pytest.importorskip("scipy", reason="reports need the report extra")

from drawn_figures import draw_one, rows

from fedvg_jax.study import tables
from fedvg_jax.study.collect import collect
from fedvg_jax.study.figures import FIGURES


@pytest.fixture
def study(tmp_path):
    """Two seeds of three rounds, of 3 and 6 MB a round."""
    for seed, size in enumerate((1_000_000, 2_000_000)):
        fields = {number: {"bytes_down": 2 * size, "bytes_up": size} for number in (1, 2, 3)}
        write_run(tmp_path / "runs" / str(seed), fields=fields, seed=seed)
    return collect([tmp_path / "runs"])


def test_curves_against_bytes_have_the_mean_over_runs_of_what_was_sent_so_far(study):
    (by_round,), (by_bytes,) = draw_one(FIGURES, study, "curves"), draw_one(FIGURES, study, "bytes")
    assert [float(row["MB sent"]) for row in rows(by_bytes)] == pytest.approx([4.5, 9.0, 13.5])
    assert [row["mean"] for row in rows(by_bytes)] == [row["mean"] for row in rows(by_round)]


def test_the_table_of_costs_has_the_megabytes_of_all_rounds(study):
    cost = tables.cost(study, tables.options(study))
    assert cost.columns[-1].keys == ("megabytes",) and cost.rows[0][-1].numbers == (13.5,)
