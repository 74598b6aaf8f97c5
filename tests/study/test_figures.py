"""Figures of a report: what they show, labels that do not overlap, and the line about what the runs lack."""

import itertools
import re

import numpy as np
import pytest
from support.run_folders import partition, write_run

pytest.importorskip("matplotlib", reason="reports need the report extra")
pytest.importorskip("scipy", reason="reports need the report extra")

from support.drawn_figures import WIDE, check_drawn_or_lacking, draw_one, make_study, rows

from fedvg_jax.study import tables
from fedvg_jax.study.collect import collect
from fedvg_jax.study.figures import CAPTIONS, FIGURES, base, clients
from fedvg_jax.views.labels import method_label

LACKING = {
    "classes": "--record confusion", "bytes": "recorded no bytes",
    "clients": "--record accuracy_by_client",
}  # fmt: skip


@pytest.fixture(scope="module")
def study():
    return make_study()


def draw(study, name, style=WIDE):
    drawn = draw_one(FIGURES, study, name, style)
    names = {re.sub(r"-\d+$", "", drawing.name) for drawing in drawn}
    assert names <= CAPTIONS.keys()  # a later report removes them by name
    return drawn


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_or_says_what_the_runs_lack(study, name):
    check_drawn_or_lacking(FIGURES, study, name, LACKING)


def test_learning_curves_are_means_with_bands_of_one_deviation(study):
    """Final accuracies of FedAvg at 0.05: 60 and 61; their sample deviation is the root of 1/2."""
    (drawing,) = draw(study, "curves")
    last = next(r for r in rows(drawing) if (r["setting"], r["method"], r["round"]) == ("alpha 0.05", "fedavg", "3"))
    assert float(last["mean"]) == pytest.approx(60.5) and float(last["std"]) == pytest.approx(0.5**0.5)


def test_clients_are_drawn_in_the_order_of_their_accuracies(tmp_path):
    write_run(tmp_path / "a", (0.5, 0.6), method="ditto", fields={2: {"personal_accuracy": [0.9, None, 0.25]}})
    (drawing,) = draw(collect([tmp_path]), "clients")
    assert drawing.rows == [("", "own", "ditto", 0.25, 0.25), ("", "own", "ditto", 0.75, 0.9)]
    assert drawing.figure.axes[0].lines[0].get_ydata().tolist() == [25.0, 90.0]


def test_drawn_lines_and_bands_are_those_of_the_file(study):
    drawing = draw(study, "curves")[0]
    for axes, setting in zip(drawing.figure.axes, ("alpha 0.05", "alpha 0.5"), strict=True):
        assert axes.get_title() == setting
        looks = base.line_styles(study.methods)
        for method, line, band in zip(study.methods, axes.lines, axes.collections, strict=False):
            stored = [r for r in rows(drawing) if (r["setting"], r["method"]) == (setting, method)]
            rounds, mean, std = (np.array([float(r[name]) for r in stored]) for name in ("round", "mean", "std"))
            assert line.get_color() == looks[method]["color"] and list(line.get_xdata()) == list(rounds)
            assert np.asarray(line.get_ydata()) == pytest.approx(mean) and (np.diff(mean) > 0).all()
            corners = {tuple(corner) for corner in band.get_paths()[0].vertices.round(6).tolist()}
            edges = [*zip(rounds, mean - std, strict=True), *zip(rounds, mean + std, strict=True)]
            assert corners == {tuple(edge) for edge in np.round(edges, 6).tolist()}


def test_legend_names_every_method_once_and_covers_no_panel(study, tmp_path):
    figure = draw(study, "curves", base.STYLES["paper"])[0]
    base.save(figure, tmp_path, base.STYLES["paper"])
    (legend,) = figure.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*map(method_label, study.methods), "largest class"]
    box = legend.get_window_extent()
    assert figure.figure.bbox.y0 <= box.y0 and all(box.y1 < axes.bbox.y0 for axes in figure.figure.axes)


def test_twenty_methods_differ_in_grey():
    """By dashes or marker; every pair of methods shares its colour and marker."""
    names = [f"method{i}" for i in range(10)]
    methods = [*names, *map(base.with_fedvg, names)]
    looks = base.line_styles(methods)
    assert len({(look["ls"], look["marker"]) for look in looks.values()}) == 20
    for name in names:
        alone, both = looks[name], looks[base.with_fedvg(name)]
        assert [alone[key] == both[key] for key in ("color", "marker", "ls")] == [True, True, False]
    singles = base.line_styles([f"method{i}" for i in range(24)]).values()
    assert len({(look["ls"], look["marker"]) for look in singles}) == 24


def test_recall_is_the_mean_of_the_runs_that_have_test_rows_of_the_class(tmp_path):
    """3 of 4 rows of class c are right in the second run, and the first has none."""
    for seed, matrix in enumerate(([[3, 1, 0], [1, 1, 0], [0, 0, 0]], [[1, 3, 0], [0, 0, 0], [0, 1, 3]])):
        write_run(tmp_path / str(seed), (0.5, 0.6), method="fedvg", seed=seed, fields={2: {"test_confusion": matrix}})
    actual = {r["class"]: r["recall"] for r in rows(draw(collect([tmp_path]), "classes")[0])}
    assert actual == {"a": "50", "b": "50", "c": "75"}


def test_partition_has_a_panel_per_alpha_with_a_bubble_for_every_client_and_class(tmp_path):
    """Whatever else varies: each alpha has three values of rho."""
    for alpha, rho in itertools.product((0.05, 0.5), (0.0, 0.5, 1.0)):
        write_run(tmp_path / f"{alpha}-{rho}", method="fedvg", seed=0, alpha=alpha, validation={"rho": rho})
    (drawing,) = draw(collect([tmp_path]), "partitions")
    panels, table = {axes.get_title(): axes for axes in drawing.figure.axes if axes.get_visible()}, rows(drawing)
    assert list(panels) == list(dict.fromkeys(r["setting"] for r in table)) == ["alpha 0.05", "alpha 0.5"]
    for alpha in (0.05, 0.5):
        counts = np.array(partition(alpha)["counts"])
        mine = [(int(r["client"]), r["class"], int(r["rows"])) for r in table if r["setting"] == f"alpha {alpha}"]
        assert mine == [(k, "abc"[c], counts[k, c]) for k, c in np.ndindex(*counts.shape)]
        (bubbles,) = panels[f"alpha {alpha}"].collections
        assert bubbles.get_offsets().tolist() == np.argwhere(counts).tolist()
        assert bubbles.get_sizes() / 150 * 10 == pytest.approx(counts[counts > 0])  # of at most 10 rows


def test_panel_is_named_by_one_of_its_settings_if_those_they_share_are_also_another_panels():
    low, high = ("alpha", 0.05), ("alpha", 0.5)
    slow, fast = ("lr", 0.1), ("lr", 0.2)
    runs = [((low, slow), "a"), ((high, fast), "a"), ((low, fast), "b"), ((high, slow), "c")]
    settings = [setting for setting, _ in clients._distinct_runs(runs, str)]
    assert settings == ["alpha 0.05, lr 0.1", "alpha 0.05, lr 0.2", "alpha 0.5, lr 0.1"]


def test_cell_without_a_common_evaluated_round_has_no_curve(tmp_path):
    """FedVG's runs are evaluated in different rounds; a run of FedAvg has no finite evaluation."""
    for method, seed, losses in (
        ("fedavg", 0, {1: 0.5, 2: 0.25}),
        ("fedavg", 1, {1: None, 2: None}),
        ("fedvg", 0, {1: 0.5}),
        ("fedvg", 1, {2: 1.0}),
    ):
        fields = {i: {"test_loss": loss, "val_loss": loss} for i, loss in losses.items()}
        write_run(tmp_path / f"{method}{seed}", (None, None), method=method, seed=seed, fields=fields)
    study = collect([tmp_path])
    drawn = rows(draw(study, "curves")[0])
    assert [(row["method"], row["round"], row["mean"], row["n"]) for row in drawn] == [
        ("fedavg", "1", "0.5", "1"), ("fedavg", "2", "0.25", "1"),
    ]  # fmt: skip


@pytest.fixture
def with_bytes(tmp_path):
    """Two seeds of three rounds, of 3 and 6 MB a round."""
    for seed, size in enumerate((1_000_000, 2_000_000)):
        fields = {number: {"bytes_down": 2 * size, "bytes_up": size} for number in (1, 2, 3)}
        write_run(tmp_path / "runs" / str(seed), fields=fields, seed=seed)
    return collect([tmp_path / "runs"])


def test_curves_against_bytes_have_the_mean_over_runs_of_what_was_sent_so_far(with_bytes):
    (by_round,), (by_bytes,) = draw_one(FIGURES, with_bytes, "curves"), draw_one(FIGURES, with_bytes, "bytes")
    assert [float(row["MB sent"]) for row in rows(by_bytes)] == pytest.approx([4.5, 9.0, 13.5])
    assert [row["mean"] for row in rows(by_bytes)] == [row["mean"] for row in rows(by_round)]


def test_the_table_of_costs_has_the_megabytes_of_all_rounds(with_bytes):
    cost = tables.cost(with_bytes, tables.options(with_bytes))
    assert cost.columns[-1].keys == ("megabytes",) and cost.rows[0][-1].numbers == (13.5,)
