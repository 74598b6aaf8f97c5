"""Figures of a report: what they show, and labels that do not overlap."""

import dataclasses
import itertools
import json
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
from support.run_folders import partition, write_manifest, write_run

pytest.importorskip("matplotlib", reason="reports need the report extra")
pytest.importorskip("scipy", reason="reports need the report extra")

from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text
from support.drawn_figures import draw_one, make_study, rows

from fedvg_jax.config import method_title
from fedvg_jax.runs.record.history import History
from fedvg_jax.study import tables
from fedvg_jax.study.collect import collect
from fedvg_jax.study.figures import FIGURES, base, clients, draw_run


@pytest.fixture(scope="module")
def study():
    return make_study()


def draw(study, name):
    drawn = draw_one(FIGURES, study, name)
    names = {re.sub(r"-\d+$", "", drawing.name) for drawing in drawn}
    assert names == {name}
    return drawn


def texts(figure):
    """Returns every text that a figure shows, on one line each."""
    figure.canvas.draw()
    return {" ".join(text.get_text().split()) for text in figure.findobj(Text)}


def renamed(study, names):
    """Returns a study with other names of methods."""
    frame = study.frame.assign(method=study.frame["method"].map(names))
    return dataclasses.replace(study, methods=tuple(names.values()), frame=frame)


@pytest.mark.parametrize("name", ["differences", "curves", "alphas", "weights"])
def test_methods_of_sixty_characters_that_differ_in_the_last_stay_distinct(study, tmp_path, name):
    methods = [f"fedvg, a setting that has a name of quite some length xxxxx{end}" for end in "abc"]
    assert {len(method) for method in methods} == {60}
    new = dict(zip(study.methods, ["fedavg", *methods], strict=True))
    with base.drawing():
        drawing, *_ = FIGURES[name](renamed(study, new))
        base.save(drawing, tmp_path, ("png",))
        shown = texts(drawing.figure)
    assert all(any(method_title(method) in text for text in shown) for method in methods)
    assert set(methods) <= {row["method"] for row in rows(drawing)}


def test_learning_curves_are_means_with_bands_of_one_deviation(study):
    """Final accuracies of FedAvg at 0.05: 60 and 61; their sample deviation is the root of 1/2."""
    (drawing,) = draw(study, "curves")
    last = next(
        r
        for r in rows(drawing)
        if (r["setting"], r["method"], r["round"]) == ("alpha 0.05", "fedavg", "3")
    )
    assert float(last["mean"]) == pytest.approx(60.5) and float(last["std"]) == pytest.approx(
        0.5**0.5
    )


def test_drawn_lines_and_bands_are_those_of_the_file(study):
    drawing = draw(study, "curves")[0]
    for axes, setting in zip(drawing.figure.axes, ("alpha 0.05", "alpha 0.5"), strict=True):
        assert axes.get_title() == setting
        looks = base.line_styles(study.methods)
        for method, line, band in zip(study.methods, axes.lines, axes.collections, strict=False):
            stored = [r for r in rows(drawing) if (r["setting"], r["method"]) == (setting, method)]
            rounds, mean, std = (
                np.array([float(r[name]) for r in stored]) for name in ("round", "mean", "std")
            )
            assert line.get_color() == looks[method]["color"] and list(line.get_xdata()) == list(
                rounds
            )
            assert np.asarray(line.get_ydata()) == pytest.approx(mean) and (np.diff(mean) > 0).all()
            corners = {tuple(corner) for corner in band.get_paths()[0].vertices.round(6).tolist()}
            edges = [*zip(rounds, mean - std, strict=True), *zip(rounds, mean + std, strict=True)]
            assert corners == {tuple(edge) for edge in np.round(edges, 6).tolist()}


def test_legend_names_every_method_once_and_covers_no_panel(study, tmp_path):
    figure = draw(study, "curves")[0]
    base.save(figure, tmp_path)
    (legend,) = figure.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*map(method_title, study.methods)]
    box = legend.get_window_extent()
    assert figure.figure.bbox.y0 <= box.y0 and all(
        box.y1 < axes.bbox.y0 for axes in figure.figure.axes
    )


def test_a_method_whose_name_begins_with_an_underscore_is_in_the_legend(study, tmp_path):
    """Matplotlib leaves labels that begin with one out."""
    figure = draw(renamed(study, {method: f"_{method}" for method in study.methods}), "curves")[0]
    base.save(figure, tmp_path)
    assert len(figure.figure.legends[0].get_texts()) == len(study.methods)


def test_twenty_methods_differ_in_grey():
    """By dashes or marker; every pair of methods shares its colour and marker."""
    names = [f"method{i}" for i in range(10)]
    methods = [*names, *(f"{name}+fedvg" for name in names)]
    looks = base.line_styles(methods)
    assert len({(look["ls"], look["marker"]) for look in looks.values()}) == 20
    for name in names:
        alone, both = looks[name], looks[f"{name}+fedvg"]
        assert [alone[key] == both[key] for key in ("color", "marker", "ls")] == [True, True, False]
    singles = base.line_styles([f"method{i}" for i in range(24)]).values()
    assert len({(look["ls"], look["marker"]) for look in singles}) == 24


def test_weights_are_those_of_the_records_and_absent_clients_have_none():
    first = {
        "round": 1,
        "clients": [3, 1, 2],
        "weights": [0.0, 0.5, 0.5],
        "num_samples": [4, 9, 1],
        "dropped": [3],
    }
    second = {
        "round": 2,
        "clients": [2, 3, 1],
        "weights": [0.25, 0.75, 0.0],
        "num_samples": [1, 4, 9],
    }
    table = clients.weight_shares([first, second])
    shares = table.pivot(index=["rows", "client"], columns="round", values="weight_times_cohort")
    assert [*shares.index] == [(1, 2), (4, 3), (9, 1)]
    np.testing.assert_array_equal(shares, [[1.5, 0.75], [np.nan, 2.25], [1.5, 0]])


@pytest.mark.parametrize("largest", [1.1, 3.7, 40.0])
def test_ticks_of_the_colour_bar_are_its_ends_and_an_equal_weight_in_two_digits(study, largest):
    shares = (
        np.array([largest, 2 - largest]) / 2
        if largest < 2
        else np.array([largest, 1]) / (largest + 1)
    )
    record = {"round": 1, "clients": [0, 1], "weights": shares.tolist(), "num_samples": [5, 5]}
    figure = clients._weights_of_runs(["FedVG"], [clients.weight_shares([record])])
    texts(figure)
    bar = figure.axes[-1].xaxis
    labels = [label.get_text() for label in bar.get_ticklabels()]
    limit = bar.get_ticklocs()[-1]
    assert len(labels) == len(bar.get_ticklocs()) == 3 and max(map(len, labels)) <= 5
    assert [float(label) for label in labels] == pytest.approx([1 / limit, 1, limit], rel=0.05)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_whole_and_has_the_rows_of_its_file(study, tmp_path, name):
    """The texts of a figure and of its colour bar are within it."""
    for drawing in draw(study, name):
        assert len(rows(drawing)) == len(drawing.numbers) > 0
        base.save(drawing, tmp_path, ("png",))
        (left, low), (right, high) = drawing.figure.get_tightbbox().get_points().T
        width, height = drawing.figure.get_size_inches()
        assert left >= -0.01 and low >= -0.01 and right <= width + 0.01 and high <= height + 0.01


def test_pictures_of_a_run_name_its_own_weighting(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", method="fedvg")
    write_manifest(
        run, json.loads((run / "manifest.json").read_text()) | {"custom": {"weighting": "root"}}
    )
    shown = []
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *file, **options: shown.append(texts(figure))
    )
    draw_run(run, History.load(run))
    assert len(shown) == 2 and all(any("root" in text for text in each) for each in shown)
    assert not any("FedVG" in text for each in shown for text in each)


def test_partition_has_a_panel_per_alpha_with_a_group_for_every_client_and_class(tmp_path):
    """Whatever else varies: each alpha has three values of rho."""
    for alpha, rho in itertools.product((0.05, 0.5), (0.0, 0.5, 1.0)):
        write_run(
            tmp_path / f"{alpha}-{rho}",
            method="fedvg",
            seed=0,
            alpha=alpha,
            validation={"rho": rho},
        )
    (drawing,) = draw(collect([tmp_path]), "partitions")
    panels, table = (
        {axes.get_title(): axes for axes in drawing.figure.axes if axes.get_title()},
        rows(drawing),
    )
    names = {
        f"dirichlet, alpha {alpha}": np.array(partition(alpha)["counts"]) for alpha in (0.05, 0.5)
    }
    assert list(panels) == list(dict.fromkeys(r["setting"] for r in table)) == list(names)
    for name, counts in names.items():
        mine = [
            (int(r["client"]), r["class"], int(r["rows"])) for r in table if r["setting"] == name
        ]
        assert mine == [(k, "abc"[c], counts[k, c]) for k, c in np.ndindex(*counts.shape)]
        (image,) = panels[name].images
        np.testing.assert_array_equal(np.nan_to_num(image.get_array().filled(0)), counts.T)


def test_group_without_a_common_evaluated_round_has_no_curve(tmp_path):
    """FedVG's runs are evaluated in different rounds; a run of FedAvg has no finite evaluation."""
    for method, seed, losses in (
        ("fedavg", 0, {1: 0.5, 2: 0.25}),
        ("fedavg", 1, {1: None, 2: None}),
        ("fedvg", 0, {1: 0.5}),
        ("fedvg", 1, {2: 1.0}),
    ):
        fields = {i: {"test_loss": loss, "val_loss": loss} for i, loss in losses.items()}
        write_run(
            tmp_path / f"{method}{seed}", (None, None), method=method, seed=seed, fields=fields
        )
    study = collect([tmp_path])
    drawn = rows(draw(study, "curves")[0])
    assert [(row["method"], row["round"], row["mean"], row["n"]) for row in drawn] == [
        ("fedavg", "1", "0.5", "1"), ("fedavg", "2", "0.25", "1"),
    ]  # fmt: skip


def test_curves_start_on_their_axis(study):
    for axes in draw(study, "curves")[0].figure.axes:
        for line in axes.lines:
            (left, _), (low, high) = axes.get_xlim(), axes.get_ylim()
            assert (
                line.get_xdata()[0] == left
                and low <= min(line.get_ydata())
                and max(line.get_ydata()) <= high
            )


def test_a_picture_of_rows_by_client_and_class_has_a_key(study):
    labels = texts(draw(study, "partitions")[0].figure)
    assert any(text.startswith("rows") for text in labels) and {"1", "10"} <= labels


def test_no_title_breaks_a_word(study):
    word = "aMethodOfOnesOwnWithOneLongWord-thatNoLineOfATitleHolds"
    drawing, *_ = FIGURES["weights"](
        renamed(study, {method: f"{word}{method}" for method in study.methods})
    )
    drawing.figure.canvas.draw()
    titles = [axes.get_title() for axes in drawing.figure.axes if axes.get_title()]
    assert len(titles) == 4 and all(word in title for title in titles)
    for axes in drawing.figure.axes[:4]:
        assert axes.title.get_window_extent().width < 1.3 * axes.bbox.width


@pytest.mark.parametrize(
    "partitions", [(42, 42), (0, 1), (5, 6)], ids=["shared", "the seed's", "crossed"]
)
def test_the_partition_s_seed_is_in_a_title_only_where_it_differs(tmp_path, partitions):
    seeds = (0, 0) if partitions == (5, 6) else (0, 1)
    for i, (seed, partition_seed) in enumerate(zip(seeds, partitions, strict=True)):
        write_run(tmp_path / f"{i}", method="fedvg", seed=seed, partition_seed=partition_seed)
    title = draw(collect([tmp_path]), "weights")[0].figure.axes[0].get_title()
    assert title == ("FedVG, seed 0, partition seed 5" if partitions == (5, 6) else "FedVG, seed 0")


def test_drawing_leaves_the_caller_s_backend_settings_and_loggers(study, tmp_path):
    """In a process of its own: pytest's own plugins change loggers."""
    code = """
import logging, matplotlib, sys
before = {name: matplotlib.rcParams._get(name) for name in matplotlib.rcParams}
level = logging.getLogger("matplotlib").level
from fedvg_jax.study import report
report.write(sys.argv[1:2], sys.argv[2])
assert {name: matplotlib.rcParams._get(name) for name in matplotlib.rcParams} == before
assert logging.getLogger("matplotlib").level == level
assert "matplotlib.pyplot" not in sys.modules
"""
    for method in ("fedavg", "fedvg"):
        write_run(tmp_path / "s" / method, method=method)
    subprocess.run([sys.executable, "-c", code, tmp_path / "s", tmp_path / "r"], check=True)


NAMES = ["\u65b9\u6cd5", "\u53e6\u4e00", "\U0001f95d", "plain"]


def test_names_that_no_font_has_are_spelled_beside_a_number(study, tmp_path, caplog, monkeypatch):
    fonts = [font for font in font_manager.fontManager.ttflist if font.name.startswith("DejaVu")]
    # as on a machine without others
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)
    other = renamed(study, dict(zip(study.methods, NAMES, strict=True)))
    with base.drawing(NAMES):
        drawing, *_ = FIGURES["curves"](other)
        base.save(drawing, tmp_path, ("png",))
    labels = [text.get_text() for text in drawing.figure.legends[0].get_texts()]
    assert [label.partition(" ")[0] for label in labels] == [
        "1",
        "2",
        "3",
        "plain",
    ] and "U+65B9" in labels[0]
    (line,) = caplog.messages
    assert all(name in line for name in NAMES[:3]) and "\n" not in line


def test_a_font_that_has_the_letters_of_a_name_draws_them(study, tmp_path, caplog):
    """A letter of another font that Matplotlib has."""
    default, other = (
        set(FT2Font(font_manager.findfont(name)).get_charmap())
        for name in ("DejaVu Sans", "STIXGeneral")
    )
    name = next(chr(letter) for letter in sorted(other - default) if chr(letter).isprintable())
    with base.drawing([name]), warnings.catch_warnings():
        warnings.simplefilter("error")  # of a glyph that is missing
        drawing, *_ = FIGURES["curves"](
            renamed(study, dict(zip(study.methods, [name, *"abc"], strict=True)))
        )
        base.save(drawing, tmp_path)
    assert drawing.figure.legends[0].get_texts()[0].get_text() == name and not caplog.messages


@pytest.fixture
def with_bytes(tmp_path):
    """Two seeds of three rounds, of 3 and 6 MB a round."""
    for seed, size in enumerate((1_000_000, 2_000_000)):
        fields = {number: {"bytes_down": 2 * size, "bytes_up": size} for number in (1, 2, 3)}
        write_run(tmp_path / "runs" / str(seed), fields=fields, seed=seed)
    return collect([tmp_path / "runs"])


def test_the_table_of_costs_has_the_megabytes_of_all_rounds(with_bytes):
    cost = tables.cost(with_bytes, tables.options(with_bytes))
    assert cost.rows[0]["MB sent"].values == {"megabytes": 13.5}
