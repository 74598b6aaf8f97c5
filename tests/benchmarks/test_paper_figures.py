"""Figures of the paper's study: what they show, and the line about what the runs lack."""

import functools

import numpy as np
import pytest
from support.run_folders import write_json, write_run

pytest.importorskip("matplotlib", reason="reports need the report extra")
pytest.importorskip("scipy", reason="reports need the report extra")

from support.drawn_figures import check_drawn_or_lacking, draw_one, make_study, rows

from benchmarks.studies.paper import fisher, head, layers, validity
from benchmarks.studies.paper.figures import FIGURES
from fedvg_jax.study.collect import collect

LACKING = {
    "rho": "--validation.rho", "granularity": "--fedvg.granularity", "external": "--validation.source",
    "validity": "--record client_accuracy", "fisher": "--record client_fisher_trace",
    "head": "--record client_val_loss",
}  # fmt: skip


@pytest.fixture(scope="module")
def study():
    return make_study()


draw = functools.partial(draw_one, FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_or_says_what_the_runs_lack(study, name):
    check_drawn_or_lacking(FIGURES, study, name, LACKING)


def test_drawn_bars_are_those_of_the_file(study):
    """Compares names, lengths, deviations and written values of bars with the CSV file, panel by panel."""
    panels, drawing = {}, draw(study, "bars")[0]
    for r in rows(drawing):
        panels.setdefault(r["setting"], []).append(r)
    for axes, stored in zip(drawing.figure.axes, panels.values(), strict=True):
        places = [bar.get_y() + bar.get_height() / 2 for bar in axes.patches]
        labels = dict(
            zip(axes.get_yticks().tolist(), (text.get_text() for text in axes.get_yticklabels()), strict=True)
        )
        means = {r["bar"]: pytest.approx(float(r["mean"])) for r in stored}
        limits = [pytest.approx([float(r["mean"]) + sign * float(r["std"]) for sign in (-1, 1)]) for r in stored]
        assert {labels[place]: bar.get_width() for place, bar in zip(places, axes.patches, strict=True)} == means
        segments = [bar.lines[2][0].get_segments()[0] for bar in axes.containers if hasattr(bar, "has_xerr")]
        assert [labels[segment[0, 1]] for segment in segments] == list(means)
        assert [segment[:, 0].tolist() for segment in segments] == limits
        values = {labels[text.xy[1]]: text.get_text() for text in axes.texts if text.get_text() != "largest class"}
        assert values == {r["bar"]: f"{float(r['mean']):.1f}" for r in stored}


def test_heat_map_holds_share_times_score_times_layers(study):
    """The picture, its labels and its CSV agree; layers stand from the input to the output."""
    drawing = draw(study, "layers")[0]
    run = study.cell("fedavg", study.scenarios[0]).runs[0, 42]
    record = run.records[0]
    norms = layers.layer_norms(record)
    assert norms.mean(1) == pytest.approx(record["scores"], rel=1e-4)  # shares are rounded
    lines = [r for r in rows(drawing) if r["round"] == "1"]
    for r in lines:
        expected = norms[record["clients"].index(int(r["client"])), run.layers.index(r["layer"])]
        assert float(r["norm"]) == pytest.approx(expected, rel=1e-8)
    panel = drawing.figure.axes[0]
    across = ["a/bias", "a/kernel", "b/kernel"]
    assert [r["layer"] for r in lines[:3]] == across and len(lines) == norms.size
    assert [text.get_text() for text in panel.get_xticklabels()] == [n.removesuffix("/kernel") for n in across]
    assert [text.get_text() for text in panel.get_yticklabels()] == [r["client"] for r in lines[::3]]
    assert np.asarray(panel.images[0].get_array()).ravel() == pytest.approx([float(r["norm"]) for r in lines])


@pytest.mark.parametrize(("untrained", "expected"), [("absent", 1.0), ("weighed", 0.8)])
def test_absent_clients_have_no_part_in_correlations(tmp_path, untrained, expected):
    """Without clients 3 and 2 the weights rise with the accuracy; an untrained client that is weighed has a part."""
    entries = {
        "clients": [0, 1, 2, 3, 4], "weights": [0.1, 0.2, 0.45, 0, 0.3], "client_accuracy": [0.1, 0.2, 0.25, 0.9, 0.3],
        "client_val_loss": [3, 2, 1, 0, 1], "scores": [1.0, 2.0, 2.5, 7.0, 3.0], "num_samples": [4, 12, 6, 10, 3],
        "client_fisher_trace": [1, 4, 9, 16, 25], "layer_shares": [[0.5, 0.5]] * 5, "dropped": [3], "untrained": [2],
    }  # fmt: skip
    options = {"method": "fedvg", "untrained": untrained, "layers": ("a/kernel", "classifier/kernel")}
    folder = write_run(tmp_path / "a", (0.5, 0.6), fields={1: entries, 2: entries}, **options)
    write_json(folder / "partition.json", {"partition": "given", "clients": 5})
    (run,) = collect([tmp_path]).runs
    assert validity.correlations(run)["weight s_k"] == [(1, expected), (2, expected)]
    num_present = 3 + (untrained == "weighed")
    assert len(fisher.scores_and_roots(run)) == 2 * num_present
    assert head.rounds_of(run)[0].correlations["gradient", "head"] == 1


def test_rank_correlation_is_spearmans_and_needs_three_clients_and_variation():
    """1 - 6 sum d^2 / (n (n^2 - 1)) with the rank differences 0, 1, -1, 0."""
    assert validity.rank_correlation([1, 2, 3, 9], [0, 5, 4, 6]) == pytest.approx(1 - 12 / 60)
    assert np.isnan(validity.rank_correlation([1, 2], [1, 2])) and np.isnan(
        validity.rank_correlation([1] * 3, [1, 2, 3])
    )
