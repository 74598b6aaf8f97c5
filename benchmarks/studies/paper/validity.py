"""Whether scores say which client models generalise: rank correlations with their accuracy on the pooled test set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedvg_jax.config.departures import departs
from fedvg_jax.runs.record.history import Record
from fedvg_jax.study.cells import Run, Study, scenario_text
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing, Style

ACCURACY = "client_accuracy"
"""Key of a record: accuracy of every client's model on the pooled test set, in the order of `clients`."""

LOSS = "client_val_loss"
"""Key of a record: loss of every client's model on D_val."""

MEASURES = {"weight s_k": "weights", "size n_k": "num_samples", "low loss on D_val": LOSS}
"""Name of a measure -> its key in a record; of losses the sign is turned."""

MAX_POINTS = 2000
"""Points of a panel; the CSV file has all of them."""

LINES = {"weight s_k": (base.COLOURS[0], "-"), "size n_k": (base.COLOURS[1], "--"), "low loss on D_val": ("0.25", ":")}


def rank_correlation(
    measure: Sequence[float | None] | np.ndarray, accuracy: Sequence[float | None] | np.ndarray
) -> float:
    """Returns Spearman's correlation over the clients that have both; nan where one of them is constant.

    >>> rank_correlation([0.1, 0.3, 0.6, None], [0.5, 0.7, 0.9, 0.1])
    1.0
    """
    from scipy import stats

    pairs = np.array([(m, a) for m, a in zip(measure, accuracy, strict=True) if m is not None and a is not None], float)
    if len(pairs) < 3 or np.ptp(pairs[:, 0]) == 0 or np.ptp(pairs[:, 1]) == 0:
        return math.nan
    result: Any = stats.spearmanr(pairs[:, 0], pairs[:, 1])
    return round(float(result.statistic), 12)


def of_present(record: Record, values: Sequence[Any], counts_untrained: bool = False) -> list[Any]:
    """Returns values of a cohort's clients with None for clients that are absent from the round's average.

    Absent clients have the weight 0 and the global model, which say nothing about the client.

    Args:
        record: of the round.
        values: one per client, in the order of `clients`.
        counts_untrained: whether clients without a local step are present, as by the departure untrained.

    >>> of_present({"clients": [4, 7, 9], "dropped": [7], "untrained": [9]}, [0.5, 0.0, 0.5], True)
    [0.5, None, 0.5]
    """
    absent = {*record.get("dropped", ()), *record.get("diverged", ())}
    absent.update(() if counts_untrained else record.get("untrained", ()))
    return [None if k in absent else value for k, value in zip(record["clients"], values, strict=True)]


def correlations(run: Run) -> dict[str, list[tuple[int, float]]]:
    """Returns (round, rank correlation with the client models' accuracy) by measure, for the rounds that have it.

    Clients that are absent from a round do not count.
    """
    by_measure: dict[str, list[tuple[int, float]]] = {}
    for record in run.records:
        for name, key in MEASURES.items():
            if record.get(ACCURACY) and record.get(key):
                sign = -1 if key == LOSS else 1
                present = of_present(record, record[key], departs(run.config, "untrained"))
                measure = [None if value is None else sign * value for value in present]
                by_measure.setdefault(name, []).append((record["round"], rank_correlation(measure, record[ACCURACY])))
    return by_measure


def score_validity(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure of rank correlations over rounds, and one of weights against accuracies.

    Both have a panel per method and scenario.
    """
    if not any(record.get(ACCURACY) for run in study.runs for record in run.records):
        return "no run records the accuracy of its clients' models; --record client_accuracy,client_val_loss does"
    return [_correlations_over_rounds(study, style), _weights_against_accuracy(study, style)]


def _correlations_over_rounds(study: Study, style: Style) -> Drawing:
    """Returns a figure of the mean over runs of rank correlations with the accuracy of the clients' models.

    The measures are weights, sizes and low validation losses.
    """
    panels, rows = {}, []
    for method in study.methods:
        for scenario in study.scenarios:
            by_measure: dict[str, dict[int, list[float]]] = {}
            for run in study.cell(method, scenario).runs.values():
                for name, values in correlations(run).items():
                    for number, value in values:
                        by_measure.setdefault(name, {}).setdefault(number, []).append(value)
            if by_measure:
                means = {name: {r: _mean(v) for r, v in rounds.items()} for name, rounds in by_measure.items()}
                panels[", ".join(filter(None, (method, scenario_text(scenario))))] = means
                rows += [
                    (scenario_text(scenario), method, name, r, v) for name, m in means.items() for r, v in m.items()
                ]
    figure, axes = base.grid(style, len(panels), 0.9, sharey=True)
    for panel, (title, means) in zip(axes, panels.items(), strict=True):
        panel.set_ylim(-1.05, 1.05)
        panel.axhline(0, color="0.7", lw=0.7)
        for name, by_round in means.items():
            colour, dashes = LINES[name]
            known = [(r, v) for r, v in sorted(by_round.items()) if math.isfinite(v)]
            if known:
                panel.plot(*zip(*known, strict=True), color=colour, ls=dashes, label=name)
        panel.set(xlabel="round", title=base.plain(title, 44))
        base.clean(panel)
    figure.supylabel("rank correlation with accuracy", fontsize=style.font)
    columns = ("setting", "method", "measure", "round", "correlation")
    return Drawing("validity", "What ranks the clients' models rightly", figure, columns, rows)


def _weights_against_accuracy(study: Study, style: Style) -> Drawing:
    """Returns a figure with a point per client and round, of all runs of a panel's method and scenario."""
    panels, rows = [], []
    for method in study.methods:
        for scenario in study.scenarios:
            runs = study.cell(method, scenario).runs
            points = [(*replicate, *point) for replicate in sorted(runs) for point in points_of(runs[replicate])]
            if points:
                by_round = [v for run in runs.values() for _, v in correlations(run).get("weight s_k", ())]
                title = ", ".join(filter(None, (method, scenario_text(scenario))))
                panels.append((title, np.array(points, float), _mean(by_round)))
                rows += [(scenario_text(scenario), method, *point) for point in points]
    figure, axes = base.grid(style, max(1, len(panels)), sharex=True)
    drawn = 0
    for panel, (title, points, correlation) in zip(axes, panels, strict=False):
        kept = thinned(points)
        drawn += len(kept)
        numbers, weights, accuracies = kept[:, [2, 4, 5]].T
        panel.set_xscale("log")
        panel.scatter(weights, accuracies, c=-numbers, cmap="cividis", s=6, lw=0, alpha=0.7)
        panel.axvline(1, color=base.GREY, lw=0.7, ls=":")
        base.log_ticks(panel.xaxis)
        base.clean(panel)
        text = f"{correlation:.2f}" if math.isfinite(correlation) else "undefined"
        panel.set_title(f"{base.plain(title, 40)}\nmean rank correlation {text}")
    figure.supxlabel("weight × cohort size", fontsize=style.font)
    figure.supylabel("accuracy of the model (%)", fontsize=style.font)
    part = f", {drawn:,} of {len(rows):,} points" if drawn < len(rows) else ""
    title = f"Clients' models by weight and accuracy; later is darker{part}"
    columns = ("setting", "method", "seed", "partition_seed", "round", "client", "weight_times_cohort", "accuracy")
    return Drawing("validity_weights", title, figure, columns, rows)


def points_of(run: Run) -> list[tuple[int, int, float, float]]:
    """Returns (round, client, weight times cohort size, accuracy of its model in percent) of the present clients."""
    points = []
    for record in run.records:
        if record.get(ACCURACY):
            weights = of_present(record, record["weights"], departs(run.config, "untrained"))
            points += [
                (record["round"], client, weight * len(weights), 100 * accuracy)
                for client, weight, accuracy in zip(record["clients"], weights, record[ACCURACY], strict=True)
                if weight is not None and accuracy is not None
            ]
    return points


def thinned(points: np.ndarray) -> np.ndarray:
    """Returns the points, or `MAX_POINTS` random ones of more, in their order; the same ones every time.

    Every n-th point would be of the same clients where n divides the size of the cohort.
    """
    if len(points) <= MAX_POINTS:
        return points
    return points[np.sort(np.random.default_rng(0).choice(len(points), MAX_POINTS, replace=False))]


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan
