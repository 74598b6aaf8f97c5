"""Figures of a report: what they show, and labels that do not overlap."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from support.run_folders import partition, write_manifest, write_run, write_sweep

pytest.importorskip("matplotlib", reason="reports need the report extra")
pytest.importorskip("scipy", reason="reports need the report extra")

from matplotlib.figure import Figure
from matplotlib.text import Text

from fedvg_jax.config import method_title
from fedvg_jax.runs.record.history import History
from fedvg_jax.study import tables
from fedvg_jax.study.collect import collect
from fedvg_jax.study.figures import FIGURES, base, clients, curves, draw_run

METHODS = ["fedavg", "fedprox", "fedvg", "fedprox+fedvg"]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Four methods at two concentrations, with two seeds each; a round takes 10 or 12 virtual seconds."""
    folder = tmp_path_factory.mktemp("figures")
    for method, alpha, seed in itertools.product(METHODS, (0.05, 0.5), (0, 1)):
        final = 0.6 + 0.01 * seed + 0.1 * (alpha == 0.5)
        fields = {n: {"virtual_seconds": n * (10.0 + 2 * seed)} for n in (1, 2, 3)}
        settings = {"method": method, "alpha": alpha, "seed": seed, "fields": fields}
        where = folder / f"{METHODS.index(method)},{alpha},{seed}"
        write_run(where, (0.3, final - 0.1, final), **settings)
    return collect([folder])


def draw(study, figure):
    with base.drawing():
        return figure(tables.comparing(study))


def texts(figure):
    """Returns every text that a figure shows, on one line each."""
    figure.canvas.draw()
    return {" ".join(text.get_text().split()) for text in figure.findobj(Text)}


def renamed(study, names):
    """Returns a study with other names of methods."""
    frame = study.frame.replace({"method": dict(zip(study.methods, names, strict=True))})
    return dataclasses.replace(study, methods=tuple(names), frame=frame)


@pytest.mark.parametrize("figure", FIGURES[:3], ids=lambda figure: figure.__name__)
def test_every_figure_is_whole_and_keeps_long_names_apart(study, tmp_path, figure):
    """Names of sixty characters that differ in the last, and begin with an underscore or hold a dollar."""
    names = [f"_fedvg, a $setting that has a name of quite some length xxxx{end}" for end in "abc"]
    for drawing in draw(renamed(study, ["fedavg", *names]), figure):
        base.save(drawing, tmp_path, ("png",))
        drawing.figure.set_dpi(200)  # as in the file
        ends = drawing.figure.get_tightbbox().get_points()
        assert (ends >= -0.01).all() and (ends <= drawing.figure.get_size_inches() + 0.01).all()
        shown = "\n".join(texts(drawing.figure)).replace("\\$", "$")
        assert all(name in shown for name in names)


def test_learning_curves_are_means_with_bands_of_one_deviation_against_rounds_and_time(study):
    """Final accuracies of FedAvg at 0.05: 60 and 61, whose deviation is the root of 1/2, after 30 and 36 seconds."""
    by_round, by_time = draw(study, curves.learning_curves)
    for drawing, last in ((by_round, 3), (by_time, 33)):
        axes = drawing.figure.axes[0]
        line, band = axes.lines[0], axes.collections[0]
        assert axes.get_title() == "alpha 0.05" and len(axes.lines) == len(METHODS)
        assert line.get_xdata()[-1] == last and line.get_ydata()[-1] == pytest.approx(60.5)
        assert line.get_xdata()[0] == axes.get_xlim()[0]
        edges = [y for x, y in band.get_paths()[0].vertices if x == last]
        assert (min(edges), max(edges)) == pytest.approx((60.5 - 0.5**0.5, 60.5 + 0.5**0.5))
    assert "virtual seconds" in texts(by_time.figure)


def test_legend_names_every_method_once_and_covers_no_panel(study, tmp_path):
    drawing, _ = draw(study, curves.learning_curves)
    base.save(drawing, tmp_path, ("png",))
    (legend,) = drawing.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*map(method_title, METHODS)]
    assert all(legend.get_window_extent().y1 < axes.bbox.y0 for axes in drawing.figure.axes)


def test_twenty_methods_differ_in_grey_and_fedvg_s_weights_keep_the_colour():
    names = [f"method{i}" for i in range(20)]
    looks = base.line_styles([*names, "method3+fedvg"])
    assert len({(looks[name]["ls"], looks[name]["marker"]) for name in names}) == 20
    alone, both = looks["method3"], looks["method3+fedvg"]
    assert [alone[key] == both[key] for key in ("color", "marker", "ls")] == [True, True, False]


def test_weights_are_those_of_the_records_and_absent_clients_have_none():
    first = {"clients": [3, 1, 2], "weights": [0.0, 0.5, 0.5], "num_samples": [4, 9, 1]}
    second = {"clients": [2, 3, 1], "weights": [0.25, 0.75, 0.0], "num_samples": [1, 4, 9]}
    table = clients.weight_shares([{"round": 1, "dropped": [3], **first}, {"round": 2, **second}])
    shares = table.pivot(index=["rows", "client"], columns="round", values="weight_times_cohort")
    assert [*shares.index] == [(1, 2), (4, 3), (9, 1)]
    np.testing.assert_array_equal(shares, [[1.5, 0.75], [np.nan, 2.25], [1.5, 0]])


@pytest.mark.parametrize("largest", [1.1, 3.7, 40.0])
def test_ticks_of_the_colour_bar_are_its_ends_and_an_equal_weight_in_two_digits(largest):
    smallest = 2 - largest if largest < 2 else 1
    shares = np.array([largest, smallest]) / (largest + smallest)
    record = {"round": 1, "clients": [0, 1], "weights": shares.tolist(), "num_samples": [5, 5]}
    figure = clients._weights_of_runs({"FedVG": clients.weight_shares([record])})
    texts(figure)
    bar = figure.axes[-1].xaxis
    labels = [label.get_text() for label in bar.get_ticklabels()]
    limit = bar.get_ticklocs()[-1]
    assert len(labels) == 3 and max(map(len, labels)) <= 5
    assert [float(label) for label in labels] == pytest.approx([1 / limit, 1, limit], rel=0.05)


def test_pictures_of_a_run_name_its_own_weighting(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", method="fedvg")
    manifest = json.loads((run / "manifest.json").read_text())
    write_manifest(run, manifest | {"custom": {"weighting": "root"}})
    shown = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *file, **options: shown.append(figure))
    draw_run(History.load(run))
    assert len(shown) == 2
    for figure in shown:
        assert any("root" in text for text in texts(figure))
        assert not any("FedVG" in text for text in texts(figure))


def test_group_without_a_common_evaluated_round_has_no_curve(tmp_path):
    """FedVG's runs are evaluated in different rounds; a run of FedAvg has no finite evaluation."""
    runs = {
        ("fedavg", 0): {1: 0.5, 2: 0.25},
        ("fedavg", 1): {1: None, 2: None},
        ("fedvg", 0): {1: 0.5},
        ("fedvg", 1): {2: 1.0},
    }
    for (method, seed), losses in runs.items():
        fields = {i: {"test_loss": loss, "val_loss": loss} for i, loss in losses.items()}
        where = tmp_path / f"{method}{seed}"
        write_run(where, (None, None), method=method, seed=seed, fields=fields)
    drawn = curves.curves(collect([tmp_path]), ())[["method", "round", "mean", "n"]]
    assert drawn.to_numpy().tolist() == [["fedavg", 1, 0.5, 1], ["fedavg", 2, 0.25, 1]]


def test_partitions_have_a_panel_for_each_alpha_and_a_key(study):
    (drawing,) = draw(study, clients.partitions)
    for axes, alpha in zip(drawing.figure.axes, (0.05, 0.5), strict=False):
        assert axes.get_title() == f"alpha {alpha}"
        (image,) = axes.images
        counts = np.array(partition(alpha)["counts"])
        np.testing.assert_array_equal(np.nan_to_num(image.get_array().filled(0)), counts.T)
    assert {"1", "10", "rows (white is none)", "a", "b", "c"} <= texts(drawing.figure)


def test_without_a_clock_there_are_no_curves_against_time(tmp_path):
    axes = {"method": ["fedavg", "fedvg"], "seed": [0]}
    sweep = write_sweep(tmp_path / "s", axes, lambda v: (0.5, 0.6))
    assert [each.name for each in draw(collect([sweep]), curves.learning_curves)] == ["curves"]
