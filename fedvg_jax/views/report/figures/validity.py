"""Whether scores say which client models generalise: rank correlations with their accuracy on the pooled test set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedvg_jax.config import Config
from fedvg_jax.runs.history import Record
from fedvg_jax.views.report.figures import base
from fedvg_jax.views.report.figures.base import Drawing, Style
from fedvg_jax.views.report.study import Run, Study, scenario_text

ACCURACY = "client_accuracy"
"""Key of a record: accuracy of every client's model on the pooled test set, in the order of `clients`."""

LOSS = "client_val_loss"
"""Key of a record: loss of every client's model on D_val."""

MEASURES = {"weight s_k": "weights", "size n_k": "num_samples", "low loss on D_val": LOSS}
"""Name of a measure -> its key in a record; of losses the sign is turned."""

LINES = {"weight s_k": (base.COLOURS[0], "-"), "size n_k": (base.COLOURS[1], "--"), "low loss on D_val": ("0.25", ":")}


def rank_correlation(measure: Sequence[float | None], accuracy: Sequence[float | None]) -> float:
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


def of_present(record: Record, values: Sequence[Any], untrained: str = Config.untrained) -> list[Any]:
    """Returns values of a cohort's clients with None for clients that are absent from the round's average.

    Absent clients have the weight 0 and the global model, which say nothing about the client.

    Args:
        record: of the round.
        values: one per client, in the order of `clients`.
        untrained: the setting; clients without a local step are present where it is "weighed".

    >>> of_present({"clients": [4, 7, 9], "dropped": [7], "untrained": [9]}, [0.5, 0.0, 0.5], "weighed")
    [0.5, None, 0.5]
    """
    absent = {*record.get("dropped", ()), *record.get("diverged", ())}
    absent.update(record.get("untrained", ()) if untrained != "weighed" else ())
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
                present = of_present(record, record[key], run.config.untrained)
                measure = [None if value is None else sign * value for value in present]
                by_measure.setdefault(name, []).append((record["round"], rank_correlation(measure, record[ACCURACY])))
    return by_measure


def score_validity(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure of rank correlations over rounds, a panel per method and scenario, mean over runs.

    Weights, sizes and low validation losses are each compared with the accuracy of the clients' models.
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
    if not panels:
        return "no run records the accuracy of its clients' models; --record client_accuracy,client_val_loss does"
    figure, axes = base.grid(style, len(panels), 0.9, sharey=True)
    for panel, (title, means) in zip(axes, panels.items(), strict=True):
        panel.set_ylim(-1.05, 1.05)
        panel.axhline(0, color="0.7", lw=0.7)
        ends = []
        for name, by_round in means.items():
            colour, dashes = LINES[name]
            known = [(r, v) for r, v in sorted(by_round.items()) if math.isfinite(v)]
            if known:
                panel.plot(*zip(*known, strict=True), color=colour, ls=dashes)
                ends.append((*known[-1], name, colour))
        panel.set(xlabel="round", title=base.plain(title, 44))
        base.clean(panel)
        base.label_ends(panel, ends, style, 0.9)
    figure.supylabel("rank correlation with accuracy", fontsize=style.font)
    columns = ("setting", "method", "measure", "round", "correlation")
    return [Drawing("validity", "What ranks the clients' models rightly", figure, columns, rows)]


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan
