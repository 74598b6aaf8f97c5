"""Figures of a report: what they show, labels that do not overlap, and the line about what the runs lack."""

import csv
import io
import itertools
import json
import re

import numpy as np
import pytest
from run_folders import partition, write_json, write_run, write_summary, write_sweep

pytest.importorskip("matplotlib", reason="reports need the report extra")
pytest.importorskip("scipy", reason="reports need the report extra")

from fedvg_jax import report as report_command
from fedvg_jax.runs.record import history
from fedvg_jax.views.report import page
from fedvg_jax.views.report.collect import collect
from fedvg_jax.views.report.figures import (
    FIGURES,
    STEMS,
    base,
    curves,
    fisher,
    head,
    layers,
    partitions,
    validity,
    weights,
)

WIDE = base.STYLES["wide"]
METHODS = ["fedavg", "fedprox", "fedvg", "fedprox+fedvg"]
NAMES = ("a/kernel", "a/bias", "b/kernel")
LACKING = {
    "rho": "--validation.rho", "granularity": "--fedvg.granularity", "external": "--validation.source",
    "validity": "--record client_accuracy", "classes": "--record confusion",
    "fisher": "--record client_fisher_trace", "calibration": "--record calibration",
    "head": "--record client_val_loss",
}  # fmt: skip


def accuracies(values):
    final = 0.6 + 0.001 * METHODS.index(values["method"]) + 0.1 * (values["alpha"] == 0.5) + 0.01 * values["seed"]
    return (0.3, final - 0.1, final)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    axes = {"method": METHODS, "alpha": [0.05, 0.5], "seed": [0, 1]}
    return collect([write_sweep(tmp_path_factory.mktemp("figures") / "s", axes, accuracies, layers=NAMES)])


def draw(study, name, style=WIDE):
    with base.drawing(style):
        drawn = FIGURES[name](study, style)
    assert not isinstance(drawn, str), drawn
    assert {re.sub(r"-\d+$", "", drawing.name) for drawing in drawn} <= {*STEMS}  # a later report removes them by name
    return drawn


def rows(drawing):
    return list(csv.DictReader(io.StringIO(base.csv_text(drawing))))


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_or_says_what_the_runs_lack(study, name):
    with base.drawing(WIDE):
        drawn = FIGURES[name](study, WIDE)
    if name in LACKING:
        assert isinstance(drawn, str) and LACKING[name] in drawn and "\n" not in drawn
    else:
        assert all(len(rows(drawing)) == len(drawing.rows) > 0 for drawing in drawn)


def test_learning_curves_are_means_with_bands_of_one_deviation(study):
    """Final accuracies of FedAvg at 0.05: 60 and 61; their sample deviation is the root of 1/2."""
    (drawing,) = draw(study, "curves")
    last = next(r for r in rows(drawing) if (r["setting"], r["method"], r["round"]) == ("alpha 0.05", "fedavg", "3"))
    assert float(last["mean"]) == pytest.approx(60.5) and float(last["std"]) == pytest.approx(0.5**0.5)


def test_drawn_lines_and_bands_are_those_of_the_file(study):
    drawing = draw(study, "curves")[0]
    for axes, setting in zip(drawing.figure.axes, ("alpha 0.05", "alpha 0.5"), strict=True):
        assert axes.get_title() == setting
        looks = base.line_styles(study.methods)
        for method, line, band in zip(study.methods, axes.lines, axes.collections, strict=False):
            stored = [r for r in rows(drawing) if (r["setting"], r["method"]) == (setting, method)]
            rounds, mean, std = (np.array([float(r[name]) for r in stored]) for name in ("round", "mean", "std"))
            assert line.get_color() == looks[method].colour and list(line.get_xdata()) == list(rounds)
            assert np.asarray(line.get_ydata()) == pytest.approx(mean) and (np.diff(mean) > 0).all()
            corners = {tuple(corner) for corner in band.get_paths()[0].vertices.round(6).tolist()}
            edges = [*zip(rounds, mean - std, strict=True), *zip(rounds, mean + std, strict=True)]
            assert corners == {tuple(edge) for edge in np.round(edges, 6).tolist()}


def assert_bars_are_those_of_the_file(drawing):
    """Compares names, lengths, deviations and written values of bars with the CSV file, panel by panel."""
    panels = {}
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


def test_drawn_bars_are_those_of_the_file(study, tmp_path):
    assert_bars_are_those_of_the_file(draw(study, "bars")[0])
    for i, source in enumerate(("clients", "stl10")):
        for seed in (0, 1):
            settings = {"method": "fedvg", "dataset": "cifar10", "seed": seed, "validation": {"source": source}}
            write_run(tmp_path / f"{source}{seed}", (0.5 + 0.2 * i + 0.02 * seed,), **settings)
    assert_bars_are_those_of_the_file(draw(collect([tmp_path]), "external")[0])


def test_page_has_the_values_and_the_colours_of_the_figure(study):
    stored = rows(draw(study, "curves")[0])
    looks = base.line_styles(study.methods)
    for i, setting in enumerate(("alpha 0.05", "alpha 0.5")):
        specification = page.specification(study, i)
        expected = [
            {"method": r["method"], "round": int(r["round"]), "n": int(r["n"])}
            | {
                name: pytest.approx(float(r["mean"]) + sign * float(r["std"]), rel=1e-5)
                for name, sign in {"mean": 0, "low": -1, "high": 1}.items()
            }
            for r in stored
            if r["setting"] == setting
        ]
        assert specification["title"]["text"] == setting and specification["data"]["values"] == expected
        band, line = (layer["encoding"] for layer in specification["layer"][:2])
        for encoding in (band, line):
            scale = encoding["color"]["scale"]
            colours = dict(zip(scale["domain"], scale["range"], strict=True))
            assert colours == {method: looks[method].colour for method in study.methods}
        dashes = dict(zip(line["strokeDash"]["scale"]["domain"], line["strokeDash"]["scale"]["range"], strict=True))
        assert {method for method, dash in dashes.items() if dash != [1, 0]} == {"fedprox"}
        assert (band["y"]["field"], band["y2"]["field"], line["y"]["field"]) == ("low", "high", "mean")


def test_curve_is_of_the_rounds_that_all_runs_evaluate(tmp_path):
    write_run(tmp_path / "a", (0.5, 0.6, 0.7), method="fedavg", seed=0)
    write_run(tmp_path / "b", (None, 0.5, 0.6), method="fedavg", seed=1)
    study = collect([tmp_path])
    curve = curves.curve(study, study.cell("fedavg", ()))
    assert curve.rounds.tolist() == [2, 3] and curve.mean.tolist() == pytest.approx([55, 65])


@pytest.mark.parametrize("style", base.STYLES)
@pytest.mark.parametrize("name", ["curves", "alphas"])
def test_labels_of_close_curves_do_not_overlap(study, name, style):
    from matplotlib.text import Text  # of an annotation, the extent would include its line

    figure = draw(study, name, base.STYLES[style])[0].figure
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = sorted((Text.get_window_extent(text) for text in axes.texts if text.get_text()), key=lambda box: box.y0)
        assert len(boxes) >= 4
        assert all(upper.y0 >= lower.y1 - 1 for lower, upper in itertools.pairwise(boxes))
        assert all(box.x0 > axes.get_window_extent().x1 for box in boxes)


def test_spread_positions_keep_their_order_and_distance_and_move_no_more_than_needed():
    rng = np.random.default_rng(0)
    for _ in range(50):
        wanted = rng.random(rng.integers(1, 9)) * 5
        placed = np.array(base.spread_positions(list(wanted), 0.7))
        order = np.argsort(wanted)
        assert (np.diff(placed[order]) >= 0.7 - 1e-9).all()
        shifted = placed - wanted
        assert abs(shifted.mean()) < 1e-9  # groups are centred on what they want


def test_methods_differ_in_grey_too():
    """By dashes, marker or hatch, without the colour."""
    methods = ["fedavg", "fedavgm", "fedprox", "scaffold", "feddyn", "elastic", "fedvg", "fedprox+fedvg"]
    looks = base.line_styles(methods)
    assert len({(look.dashes, look.marker) for look in looks.values()}) == len(methods)
    assert len({look.hatch for look in looks.values()}) == len(methods)


def test_twenty_methods_differ_in_grey():
    """By dashes or marker as lines and by hatch as bars; every pair of methods shares its colour and marker."""
    names = [f"method{i}" for i in range(10)]
    methods = [*names, *map(base.with_fedvg, names)]
    looks = base.line_styles(methods)
    assert len({(look.dashes, look.marker) for look in looks.values()}) == 20
    assert len({look.hatch for look in looks.values()}) == 20
    for name in names:
        alone, both = looks[name], looks[base.with_fedvg(name)]
        assert (alone.colour, alone.marker) == (both.colour, both.marker) and alone.dashes != both.dashes
    singles = base.line_styles([f"method{i}" for i in range(24)]).values()
    assert len({(look.dashes, look.marker) for look in singles}) == len({look.hatch for look in singles}) == 24


@pytest.mark.parametrize("name", ["curves", "pairs"])
@pytest.mark.parametrize(
    ("accuracies", "expected"), [((0.35, 0.42, 0.5), 1), ((0.5, 0.6, 0.7), 0), ((0.1, 0.2, 0.3), 0)]
)
def test_largest_class_is_a_line_where_it_is_within_the_axes(tmp_path, name, accuracies, expected):
    """It has 40 % of the test rows."""
    for method in ("fedavg", "fedavg+fedvg"):
        write_run(tmp_path / method, accuracies, method=method, seed=0)
    (axes,) = draw(collect([tmp_path]), name)[0].figure.axes
    drawn = [line for line in axes.lines if list(line.get_ydata()) == [40, 40] and line.get_linestyle() == ":"]
    labels = [text for text in axes.texts if text.get_text() == "largest class"]
    assert len(drawn) == len(labels) == expected


@pytest.mark.parametrize("name", ["curves", "alphas", "bars", "effective_clients", "pairs"])
def test_twenty_methods_are_drawn(tmp_path, name):
    """The page has the dashes of every method, too."""
    for i in range(20):
        for alpha in (0.05, 0.5):
            options = {"method": f"fed{'prox+fedvg' if i % 2 else 'prox'}", "fedprox": {"mu": 0.01 * (1 + i // 2)}}
            write_run(tmp_path / f"{i}-{alpha}", (0.5, 0.6 + 0.01 * i), alpha=alpha, seed=0, **options)
    study = collect([tmp_path])
    assert len(study.methods) == 20
    assert draw(study, name)[0].rows
    (encoding,) = [
        layer["encoding"]["strokeDash"]
        for layer in page.specification(study, 0)["layer"]
        if "strokeDash" in layer["encoding"]
    ]
    assert len({tuple(dashes) for dashes in encoding["scale"]["range"]}) == 4


def test_base_methods_are_dashed_and_with_fedvg_solid(study):
    drawing = draw(study, "pairs")[0]
    dashes = [line.get_linestyle() for line in drawing.figure.axes[0].lines]
    assert dashes == ["--", "-", ":"]  # the last is of the largest class
    assert {r["method"] for r in rows(drawing)} == {"fedprox", "fedprox+fedvg"}


def test_pairs_have_equal_settings_behind_the_name_of_the_method(tmp_path):
    """--weighting uniform replaces FedVG's weights, so that X+fedvg is no combination under it."""
    axes = {"method": ["fedavg", "fedprox", "fedavg+fedvg"], "weighting": ["native", "uniform"], "seed": [0]}
    study = collect([write_sweep(tmp_path / "s", axes, lambda values: (0.5, 0.6))])
    assert set(study.methods) == {"fedavg", "fedprox", "fedavg+fedvg", "uniform", "fedprox+uniform"}
    looks = base.line_styles(study.methods)
    alone, both = looks["fedavg"], looks["fedavg+fedvg"]
    assert (alone.colour, alone.dashes, both.dashes) == (both.colour, "--", "-")
    assert looks["uniform"].colour != alone.colour and looks["fedprox"].dashes == "-"
    drawing = draw(study, "pairs")[0]
    assert [axes.get_title() for axes in drawing.figure.axes] == ["fedavg"]
    assert {r["method"] for r in rows(drawing)} == {"fedavg", "fedavg+fedvg"}


def test_bold_client_is_the_chosen_one_or_has_the_most_even_classes(study):
    """Client 2 has two rows of each class."""
    run = study.runs[0]
    assert weights.bold_client(run, None) == 2 and weights.bold_client(run, 3) == 3
    bold = {r["client"] for r in rows(draw(study, "weights", WIDE._replace(client=1))[0]) if r["bold"] == "1"}
    assert bold == {"1"}


def test_effective_number_of_clients_is_the_cohort_for_equal_weights():
    assert weights.effective_clients([0.25] * 4) == 4 and weights.effective_clients([1.0, 0.0]) == 1


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


def test_a_single_evaluation_is_a_point_at_a_whole_round(tmp_path):
    for method in ("fedavg", "fedavg+fedvg"):
        write_run(tmp_path / method, (None, None, 0.5), method=method, seed=0)
    study = collect([tmp_path])
    for name in ("pairs", "curves"):
        panel = draw(study, name)[0].figure.axes[0]
        assert [line.get_marker() not in (None, "None", "") for line in panel.lines[:2]] == [True, True]
        low, high = panel.get_xlim()
        assert [tick for tick in panel.get_xticks() if low <= tick <= high] == [3]


def test_heat_map_is_of_the_chosen_rounds(study):
    drawing = draw(study, "layers", WIDE._replace(rounds=(3, 2)))[0]
    assert [axes.get_title() for axes in drawing.figure.axes if axes.get_title()] == ["round 2", "round 3"]
    assert {r["round"] for r in rows(drawing)} == {"2", "3"}


def test_round_without_norms_of_layers_is_refused_with_those_that_have(tmp_path, capsys, monkeypatch):
    """Round 3 has no shares; under FedAvg no round has."""
    monkeypatch.setattr(page, "bundle", str)  # the real one takes five seconds
    accuracies = (0.5, 0.6, 0.7, 0.8)
    folder = write_run(tmp_path / "a", accuracies, method="fedvg", seed=0, layers=NAMES)
    records = history.read(folder)
    del records[2]["layer_shares"]
    (folder / "history.jsonl").write_bytes(b"".join(map(history.as_line, records)))
    write_run(tmp_path / "b", accuracies, method="fedavg", seed=0)
    for folders, text in (("ab", "round 3 .* rounds that have: 1 to 2, 4$"), ("b", "round 2 .* have: none; .*fedvg")):
        command = [str(tmp_path / folder) for folder in folders]
        assert report_command.main([*command, "--rounds", "2", "3", "--figures", "layers"]) == 2
        assert re.search(text, capsys.readouterr().err.strip())
    command = [str(tmp_path / "a"), "--out", str(tmp_path / "out"), "--figures", "layers", "--rounds", "2", "4"]
    assert report_command.main(command) == 0
    with (tmp_path / "out" / "figures" / "layers.csv").open() as file:
        assert {r["round"] for r in csv.DictReader(file)} == {"2", "4"}


def test_validity_is_the_rank_correlation_with_the_accuracy_of_client_models(tmp_path):
    fields = {
        i: {"client_accuracy": [0.1, 0.5, 0.9], "client_val_loss": [3.0, 2.0, 1.0], "weights": [0.5, 0.3, 0.2]}
        for i in (1, 2)
    }
    study = collect([write_run(tmp_path / "a", (0.5, 0.6), method="fedvg", fields=fields)])
    actual = validity.correlations(study.runs[0])
    assert actual["low loss on D_val"] == [(1, 1.0), (2, 1.0)] and actual["weight s_k"] == [(1, -1.0), (2, -1.0)]
    assert {r["measure"] for r in rows(draw(study, "validity")[0])} == set(validity.MEASURES)


def test_weights_against_accuracy_have_a_point_for_every_present_client(tmp_path):
    """Rank correlations are -1 and 0.5 in the rounds; client 7's weight is that of its absence."""
    fields = {
        1: {"clients": [7, 8, 9], "client_accuracy": [0.1, 0.5, 0.9], "weights": [0.5, 0.3, 0.2]},
        2: {"clients": [9, 8, 7], "client_accuracy": [0.2, 0.3, 0.9], "weights": [0.2, 0.5, 0.3]},
        3: {"clients": [7, 8, 9], "client_accuracy": [0.2, 0.4, 0.6], "weights": [0, 0.5, 0.5], "dropped": [7]},
    }
    folder = write_run(tmp_path / "a", method="fedvg", seed=4, partition_seed=5, fields=fields)
    write_json(folder / "partition.json", {"partition": "given", "clients": 10})
    drawing = draw(collect([tmp_path]), "validity")[1]
    assert list(rows(drawing)[0]) == [
        "setting", "method", "seed", "partition_seed", "round", "client", "weight_times_cohort", "accuracy",
    ]  # fmt: skip
    actual = [(int(r["round"]), int(r["client"]), float(r["weight_times_cohort"]), float(r["accuracy"]))
              for r in rows(drawing)]  # fmt: skip
    expected = [(1, 7, 1.5, 10), (1, 8, 0.9, 50), (1, 9, 0.6, 90), (2, 9, 0.6, 20), (2, 8, 1.5, 30), (2, 7, 0.9, 90)]
    assert np.array(actual) == pytest.approx(np.array([*expected, (3, 8, 1.5, 40), (3, 9, 1.5, 60)]))
    assert {(r["method"], r["seed"], r["partition_seed"]) for r in rows(drawing)} == {("fedvg", "4", "5")}
    (axes,) = drawing.figure.axes
    assert "mean rank correlation -0.25" in axes.get_title() and axes.get_xscale() == "log"
    assert len(axes.collections[0].get_offsets()) == 8


def test_many_points_are_thinned_out_in_the_picture_alone(tmp_path, monkeypatch):
    """The same points every time, of all clients and rounds."""
    fields = {i: {"client_accuracy": [0.1, 0.5, 0.9]} for i in range(1, 41)}
    write_run(tmp_path / "a", (0.5,) * 40, method="fedvg", fields=fields)
    study = collect([tmp_path])
    monkeypatch.setattr(validity, "MAX_POINTS", 30)
    first, second = (draw(study, "validity")[1] for _ in range(2))
    offsets = [drawing.figure.axes[0].collections[0].get_offsets() for drawing in (first, second)]
    assert len(rows(first)) == 120 and len(offsets[0]) == 30 and "30 of 120 points" in first.title
    assert np.array_equal(*offsets) and set(offsets[0][:, 1]) == {10, 50, 90}


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


def test_recalls_are_the_diagonal_over_the_rows_of_the_confusion_matrix(tmp_path):
    """3 of 4 and 1 of 2 rows are right in one run, and 1 of 4 and 2 of 2 in the other; class c has no row."""
    for seed, matrix in enumerate(([[3, 1, 0], [1, 1, 0], [0, 0, 0]], [[1, 3, 0], [0, 2, 0], [0, 0, 0]])):
        write_run(tmp_path / str(seed), (0.5, 0.6), method="fedvg", seed=seed, fields={2: {"test_confusion": matrix}})
    actual = {r["class"]: r["recall"] for r in rows(draw(collect([tmp_path]), "classes")[0])}
    assert actual == {"a": "50", "b": "75", "c": ""}


def test_recall_is_the_mean_of_the_runs_that_have_test_rows_of_the_class(tmp_path):
    """3 of 4 rows of class c are right in the second run, and the first has none."""
    for seed, matrix in enumerate(([[3, 1, 0], [1, 1, 0], [0, 0, 0]], [[1, 3, 0], [0, 0, 0], [0, 1, 3]])):
        write_run(tmp_path / str(seed), (0.5, 0.6), method="fedvg", seed=seed, fields={2: {"test_confusion": matrix}})
    actual = {r["class"]: r["recall"] for r in rows(draw(collect([tmp_path]), "classes")[0])}
    assert actual == {"a": "50", "b": "50", "c": "75"}


def test_reliability_joins_the_bins_of_all_runs_label_by_label(tmp_path):
    """One run has 3 labels of confidence 0.8 and accuracy 1, the other 1 label of 0.6 and 0 in the same bin."""
    for seed, bins in enumerate(([[0, None, None], [3, 0.8, 1.0]], [[0, None, None], [1, 0.6, 0.0]])):
        fields = {2: {"test_calibration": bins, "test_calibration_error": 0.1 * (seed + 1)}}
        write_run(tmp_path / str(seed), (0.5, 0.6), method="fedvg", seed=seed, fields=fields)
    (drawing,) = draw(collect([tmp_path]), "calibration")
    empty, used = rows(drawing)
    assert (empty["labels"], empty["accuracy"]) == ("0", "")
    assert (used["from"], used["labels"], used["confidence"], used["accuracy"]) == ("0.5", "4", "0.75", "0.75")
    assert "15.0 %" in drawing.figure.axes[0].get_title()


def test_head_figure_compares_weights_with_those_from_each_part(tmp_path):
    """Norms of the head rise from client to client and those of the body fall; the losses follow the head."""
    shares = [[0.1, 0.9], [0.2, 0.8], [0.3, 0.7]]
    fields = {i: {"layer_shares": shares, "scores": [1.0, 1.1, 1.2], "client_val_loss": [1, 2, 3]} for i in (1, 2)}
    write_run(tmp_path / "a", (0.5, 0.6), method="fedvg", layers=("classifier/kernel", "fc1/kernel"), fields=fields)
    (drawing,) = draw(collect([tmp_path]), "head")
    for row in rows(drawing):
        assert float(row["head_share"]) == pytest.approx(0.2)
        actual = {name: float(row[name]) for name in row if "_with_" in name}
        assert 0.9 * 1.0 > 0.8 * 1.1 > 0.7 * 1.2  # the body's share times the score
        assert actual == {
            "gradient_with_head": 1, "gradient_with_body": -1, "val_loss_with_head": 1, "val_loss_with_body": -1,
        }  # fmt: skip
    assert "20 % of the score" in drawing.figure.axes[0].get_title()


def test_score_proportional_to_the_root_of_fisher_has_slope_one(tmp_path):
    fields = {i: {"scores": [i, 2.0, 3.0], "client_fisher_trace": [4.0 * i**2, 16.0, 36.0]} for i in (1, 2, 3)}
    (drawing,) = draw(collect([write_run(tmp_path / "a", method="fedvg", fields=fields)]), "fisher")
    assert "rank correlation 1.00, slope 1.00, ratio ± 0 %" in drawing.figure.axes[0].get_title()
    assert all(float(r["root_of_fisher_trace"]) == 2 * float(r["score"]) for r in rows(drawing))
    assert {r["mean_root_of_joint_fisher"] for r in rows(drawing)} == {""}


def test_joint_fisher_is_drawn_beside_its_trace_and_by_tensor(tmp_path, monkeypatch):
    """Norms are 3 and 1 / 2 of the roots 1 i, 2 i, 3 i of tensor a and the same, reversed, of tensor b.

    Clients of a round have one mean root and several scores; the second round doubles all norms and roots.
    """
    fields = {}
    for i in (1, 2):
        roots = i * np.array([[1, 3], [2, 2], [3, 1]])
        norms = roots * [3, 0.5]
        shares = (norms / norms.sum(1, keepdims=True)).tolist()
        fields[i] = {
            "scores": norms.mean(1).tolist(), "layer_shares": shares, "client_joint_fisher": (roots**2).tolist(),
        }  # fmt: skip
    write_run(tmp_path / "a", (0.5, 0.6), method="fedvg", layers=("a", "b"), fields=fields)
    study = collect([tmp_path])
    monkeypatch.setattr(validity, "MAX_POINTS", 10)
    scores, tensors = draw(study, "fisher")
    assert "10 of 12 points" in tensors.title and len(tensors.figure.axes[0].collections[0].get_offsets()) == 10
    trace, joint = scores.figure.axes
    assert (trace.get_xlabel(), joint.get_xlabel()) == tuple(fisher.MEASURES)
    means = [(float(r["root_of_fisher_trace"]), float(r["mean_root_of_joint_fisher"])) for r in rows(scores)]
    expected = [(i * root, 2.0 * i) for i in (1, 2) for root in (10**0.5, 8**0.5, 10**0.5)]
    assert np.array(means) == pytest.approx(np.array(expected))
    assert "slope 1.00" in joint.get_title() and "ratio ± 0 %" not in joint.get_title()
    assert "rank correlation 1.00, slope 1.00, ratio ± 0 %" in tensors.figure.axes[0].get_title()
    assert all(
        float(r["norm"]) == pytest.approx({"a": 3, "b": 0.5}[r["layer"]] * float(r["root_of_joint_fisher"]))
        for r in rows(tensors)
    )
    assert len(rows(tensors)) == 2 * 3 * 2


@pytest.mark.parametrize("options", [{"signal": "delta"}, {"signal": "fisher"}, {"norm": "delta"}, {"layer": "module"}])
def test_norms_of_other_signals_and_layers_are_not_drawn_against_joint_fisher(tmp_path, options):
    fields = {i: {"client_joint_fisher": [[1.0, 2.0, 3.0]] * 3} for i in (1, 2)}
    write_run(tmp_path / "a", (0.5, 0.6), method="fedvg", layers=NAMES, fields=fields, fedvg=options)
    assert len(draw(collect([tmp_path]), "fisher")) == 1


def test_lines_of_rho_have_fedavg_as_a_horizontal_one(tmp_path):
    for rho in (0.0, 0.5):
        write_run(tmp_path / f"v{rho}", method="fedvg", validation={"rho": rho})
    write_run(tmp_path / "a", method="fedavg")
    drawing = draw(collect([tmp_path], partial=True), "rho")[0]
    assert any(
        list(line.get_xdata()) == [0, 1] and line.get_linestyle() == "--" for line in drawing.figure.axes[0].lines
    )


def test_settings_without_alpha_are_not_drawn_against_it_and_one_alpha_is_a_marker(tmp_path):
    """Only rho has a line for a method with one value."""
    for alpha in (0.05, 0.5):
        write_run(tmp_path / f"v{alpha}", method="fedvg", alpha=alpha)
    write_run(tmp_path / "a", method="fedavg", alpha=0.05)
    write_run(tmp_path / "i", method="fedavg", partition="iid")
    drawing = draw(collect([tmp_path], partial=True), "alphas")[0]
    assert sorted((r["method"], r["alpha"]) for r in rows(drawing)) == [
        ("fedavg", "0.05"), ("fedvg", "0.05"), ("fedvg", "0.5"),
    ]  # fmt: skip
    assert not any("alpha" in r["setting"] for r in rows(drawing))
    assert not any(list(line.get_xdata()) == [0, 1] for line in drawing.figure.axes[0].lines)


@pytest.mark.parametrize(("most", "word"), [(600, "area"), (1, "darkness")])
def test_title_of_the_partition_says_what_shows_the_rows(study, monkeypatch, most, word):
    monkeypatch.setattr(partitions, "MAX_BUBBLES", most)
    assert f"{word} shows the number of rows" in draw(study, "partitions")[0].title


@pytest.fixture(scope="module")
def alphas_and_rhos(tmp_path_factory):
    """Study of two alphas with three rhos each."""
    folder = tmp_path_factory.mktemp("figures")
    for alpha, rho in itertools.product((0.05, 0.5), (0.0, 0.5, 1.0)):
        write_run(folder / f"{alpha}-{rho}", method="fedvg", seed=0, alpha=alpha, validation={"rho": rho})
    return collect([folder])


def panels_of(drawing):
    """Title of a panel -> the panel."""
    panels = [axes for axes in drawing.figure.axes if axes.get_visible()]
    assert len({axes.get_title() for axes in panels}) == len(panels)
    return {axes.get_title(): axes for axes in panels}


@pytest.mark.parametrize("fixture", ["study", "alphas_and_rhos"])
def test_partition_has_a_panel_per_alpha_with_a_bubble_for_every_client_and_class(fixture, request):
    (drawing,) = draw(request.getfixturevalue(fixture), "partitions")
    panels, table = panels_of(drawing), rows(drawing)
    assert list(panels) == list(dict.fromkeys(r["setting"] for r in table)) == ["alpha 0.05", "alpha 0.5"]
    for alpha in (0.05, 0.5):
        counts = np.array(partition(alpha)["counts"])
        mine = [(int(r["client"]), r["class"], int(r["rows"])) for r in table if r["setting"] == f"alpha {alpha}"]
        assert mine == [(k, "abc"[c], counts[k, c]) for k, c in np.ndindex(*counts.shape)]
        (bubbles,) = panels[f"alpha {alpha}"].collections
        assert bubbles.get_offsets().tolist() == np.argwhere(counts).tolist()
        assert bubbles.get_sizes() / 150 * 10 == pytest.approx(counts[counts > 0])  # of at most 10 rows


def test_classes_of_validation_have_a_panel_per_rho(alphas_and_rhos):
    (drawing,) = draw(alphas_and_rhos, "validation_classes")
    panels, table = panels_of(drawing), rows(drawing)
    settings = [f"validation.rho {rho}" for rho in ("0", "0.5", "1")]
    assert list(panels) == [f"{setting}: 7 images" for setting in settings]
    expected = []
    for setting, panel, rho in zip(settings, panels.values(), (0, 0.5, 1), strict=True):
        counts = partition(rho=rho)["validation"]["counts"]
        assert [bar.get_height() for bar in panel.patches] == counts
        expected += [(setting, name, str(count)) for name, count in zip("abc", counts, strict=True)]
    assert [tuple(r.values()) for r in table] == expected


def test_classes_of_validation_that_no_setting_changes_have_one_panel(study):
    (drawing,) = draw(study, "validation_classes")
    assert list(panels_of(drawing)) == ["7 images"] and {r["setting"] for r in rows(drawing)} == {""}


def test_panel_is_named_by_one_of_its_settings_if_those_they_share_are_also_another_panels():
    low, high = ("alpha", 0.05), ("alpha", 0.5)
    slow, fast = ("lr", 0.1), ("lr", 0.2)
    runs = [((low, slow), "a"), ((high, fast), "a"), ((low, fast), "b"), ((high, slow), "c")]
    settings = [setting for setting, _ in partitions._distinct_runs(runs, str)]
    assert settings == ["alpha 0.05, lr 0.1", "alpha 0.05, lr 0.2", "alpha 0.5, lr 0.1"]


def test_weights_of_methods_are_those_of_a_seed_that_all_of_them_have(tmp_path):
    for method, seeds in (("fedavg", (1, 2)), ("fedvg", (0, 1))):
        for seed in seeds:
            write_run(tmp_path / f"{method}{seed}", method=method, seed=seed)
    drawing = draw(collect([tmp_path], partial=True), "weights")[0]
    assert {(r["method"], r["seed"]) for r in rows(drawing)} == {("fedavg", "1"), ("fedvg", "1")}
    assert "seed 1" in drawing.title


def test_a_client_of_one_round_is_a_point_and_leaders_of_labels_are_no_lines_of_data(tmp_path):
    write_run(tmp_path / "a", (None, None, 0.5), method="fedvg", seed=0)
    path = tmp_path / "a" / "history.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records[1:]:  # the last client of the cohort takes part in the first round alone
        size = len(record["clients"])
        for values in record.values():
            if isinstance(values, list) and len(values) == size:
                values.pop()
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    (panel,) = (axes for axes in draw(collect([tmp_path]), "weights")[0].figure.axes if axes.lines)
    marked = {len(line.get_xdata()): line.get_marker() for line in panel.lines if line.get_color() == "0.6"}
    assert marked[1] == "o" and marked[3] == "None"
    (label,) = panel.texts
    assert label.arrow_patch.get_linestyle() == ":"


def test_weights_of_many_methods_say_how_many_are_drawn(tmp_path):
    for i in range(weights.MAX_PANELS + 1):
        write_run(tmp_path / str(i), weighting="generalised", seed=0, fedvg={"exponent": 1.0 + i})
    drawing = draw(collect([tmp_path]), "weights")[0]
    assert "first 8 of 9 methods" in drawing.title and len({r["method"] for r in rows(drawing)}) == 8


def test_long_titles_stand_on_several_lines(study, tmp_path):
    drawing = draw(study, "alphas")[0]._replace(title="between $1 and $2, " * 12)
    base.save(drawing, tmp_path, WIDE)
    lines = drawing.figure.get_suptitle().split("\n")
    assert len(lines) == 3 and max(map(len, lines)) <= base.TITLE_WIDTH + 10  # a backslash before each dollar
    assert " ".join(lines).replace("\\$", "$") == drawing.title.strip()


def test_losses_below_zero_are_within_the_axes(tmp_path):
    for method, loss in (("fedavg", -1.5), ("fedvg", -3.0)):
        fields = {i: {"val_loss": loss, "test_loss": loss} for i in (1, 2, 3)}
        write_run(tmp_path / method, (None, None, None), method=method, seed=0, fields=fields)
    study = collect([tmp_path])
    assert study.metric == "loss"
    low, high = curves.limits(study, [curves.curve(study, study.cell(method, ())) for method in study.methods])
    assert low < -3 and high > -1.5
    left, right = draw(study, "bars")[0].figure.axes[0].get_xlim()
    assert left < -3 and right > 0


@pytest.mark.parametrize(("setting", "values", "name"), [
    ("granularity", ["modelwise", "layerwise"], "granularity"), ("source", ["clients", "stl10"], "external"),
])  # fmt: skip
def test_bars_have_one_for_each_value(tmp_path, setting, values, name):
    group = "fedvg" if setting == "granularity" else "validation"
    for value in values:
        write_run(tmp_path / value, method="fedvg", dataset="cifar10", **{group: {setting: value}})
    labels = [r["bar"] for r in rows(draw(collect([tmp_path]), name)[0])]
    assert len(labels) == 2 and all(any(value in label for label in labels) for value in values)


def test_scenarios_without_the_share_of_clients_have_no_bar_of_it(tmp_path):
    """D_val of a global split does not come from clients."""
    for method in ("fedavg", "fedvg"):
        for share in (0.5, 1.0):
            write_run(tmp_path / f"{method}{share}", method=method, split="client", validation={"clients": share})
        write_run(tmp_path / f"{method}global", method=method, split="global")
    drawn = rows(draw(collect([tmp_path]), "external")[0])
    bars = [f"{method}, clients {share}" for share in ("0.5", "1") for method in ("fedavg", "fedvg")]
    assert [row["bar"] for row in drawn] == bars and {row["setting"] for row in drawn} == {"split client"}


def test_bars_are_at_the_smallest_alpha_of_every_setting(tmp_path):
    for dataset, alphas in {"digits": (0.05, 0.5), "wine": (0.1, 1.0)}.items():
        for alpha in alphas:
            write_run(tmp_path / f"{dataset}{alpha}", method="fedvg", dataset=dataset, alpha=alpha)
        write_run(tmp_path / f"{dataset}-iid", method="fedvg", dataset=dataset, partition="iid")
    drawing = draw(collect([tmp_path], partial=True), "bars")[0]
    assert {row["setting"] for row in rows(drawing)} == {
        "dataset digits, partition dirichlet, alpha 0.05", "dataset wine, partition dirichlet, alpha 0.1",
        "dataset digits, partition iid", "dataset wine, partition iid",
    }  # fmt: skip
    assert drawing.title == "Methods at the smallest alpha"


def test_title_of_bars_names_the_one_smallest_alpha(study, tmp_path):
    drawing = draw(study, "bars")[0]
    assert drawing.title == "Methods at alpha 0.05" and {row["setting"] for row in rows(drawing)} == {"alpha 0.05"}
    write_run(tmp_path / "a", method="fedvg")
    assert draw(collect([tmp_path]), "bars")[0].title == "Methods"


def test_cell_without_a_common_evaluated_round_has_no_curve(tmp_path):
    """FedVG's runs are evaluated in different rounds; a run of FedAvg has no finite evaluation."""
    for method, seed, losses in (
        ("fedavg", 0, {1: 0.5, 2: 0.25}),
        ("fedavg", 1, {1: None, 2: None}),
        ("fedvg", 0, {1: 0.5}),
        ("fedvg", 1, {2: 1.0}),
    ):
        fields = {i: {"test_loss": loss, "val_loss": loss} for i, loss in losses.items()}
        write_summary(write_run(tmp_path / f"{method}{seed}", (None, None), method=method, seed=seed, fields=fields))
    study = collect([tmp_path])
    drawn = rows(draw(study, "curves")[0])
    assert [(row["method"], row["round"], row["mean"], row["n"]) for row in drawn] == [
        ("fedavg", "1", "0.5", "1"), ("fedavg", "2", "0.25", "1"),
    ]  # fmt: skip
    assert {value["method"] for value in page.specification(study, 0)["data"]["values"]} == {"fedavg"}


def test_study_without_any_common_round_has_no_curves(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"{seed}", [None if seed else 0.5, 0.6 if seed else None], method="fedvg", seed=seed)
    study = collect([tmp_path])
    with base.drawing(WIDE):
        assert FIGURES["curves"](study, WIDE) == "the runs of no cell have an evaluated round in common"
    specification = page.specification(study, 0)
    assert not specification["data"]["values"] and "rule" not in str(specification["layer"])


def test_names_that_look_like_mathematics_are_drawn(tmp_path):
    sweep = write_sweep(tmp_path / "s", {"method": ["fedvg"], "seed": [0]}, lambda v: (0.5, 0.6), title="$\\frac_{\n")
    drawing = draw(collect([sweep]), "curves")[0]
    drawing = drawing._replace(title="$\\frac{ \n <b>")
    assert [path.suffix for path in base.save(drawing, tmp_path, WIDE)] == [".png", ".pdf", ".csv"]


def test_rank_correlation_needs_three_clients_and_variation():
    assert np.isnan(validity.rank_correlation([1, 2], [1, 2])) and np.isnan(
        validity.rank_correlation([1] * 3, [1, 2, 3])
    )


def test_axes_of_accuracy_stay_within_0_and_100(tmp_path):
    """Also where a mean minus its deviation is below 0, or plus it above 100."""
    axes = {"method": ["fedavg", "fedvg"], "alpha": [0.05, 0.5], "seed": [0, 1, 2]}
    wide = collect([write_sweep(tmp_path / "s", axes, lambda v: (0.1, [0.01, 0.02, 0.99][v["seed"]]))])
    (curve,), (alphas,), (bars,) = (draw(wide, name) for name in ("curves", "alphas", "bars"))
    for panel in (*curve.figure.axes, *alphas.figure.axes):
        assert 0 <= panel.get_ylim()[0] < panel.get_ylim()[1] <= 100.5
    for panel in bars.figure.axes:
        assert panel.get_xlim()[0] == 0 and max(panel.get_xticks()) <= 100
