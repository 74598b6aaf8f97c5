"""FedVG's score against Fisher information, to whose root the paper states L1 norms of gradients to be proportional.

    J^t = mean over examples of ||gradient of tensor t||_2^2,   tr F = sum_t J^t

J^t is the joint Fisher information of a tensor. The score is the mean over tensors of the L1 norm of the MEAN gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.studies.paper.layers import layer_norms
from benchmarks.studies.paper.validity import of_present, rank_correlation, thinned
from fedvg_jax.config.departures import departs
from fedvg_jax.runs.record.history import Record
from fedvg_jax.study.cells import Run, Study, scenario_text
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRACE = "client_fisher_trace"
"""Key of a record: trace of every client's empirical Fisher information on D_val."""

JOINT = "client_joint_fisher"
"""Key of a record: every client's joint Fisher information by tensor, whose sum is the trace."""


def trace_roots(record: Record) -> list[float | None] | None:
    """Returns the root of every client's Fisher trace; None where the record has neither the trace nor its parts.

    >>> trace_roots({"client_joint_fisher": [[4.0, 5.0], [1.0, None]]})
    [3.0, None]
    """
    traces = record.get(TRACE) or [None if None in joint else sum(joint) for joint in record.get(JOINT, ())]
    return [None if trace is None else trace**0.5 for trace in traces] or None


def joint_roots(record: Record) -> list[float | None] | None:
    """Returns the mean over tensors of the root of every client's joint Fisher information; None without it.

    >>> joint_roots({"client_joint_fisher": [[4.0, 16.0], [1.0, None]]})
    [3.0, None]
    """
    means = [None if None in joint else float(np.sqrt(joint).mean()) for joint in record.get(JOINT, ())]
    return means or None


MEASURES = {"root of the Fisher trace": trace_roots, "mean root of the joint Fisher": joint_roots}
"""Label of an axis -> function of a record that returns a number per client."""


def scores_and_roots(run: Run, roots_of: Any = trace_roots) -> np.ndarray:
    """Returns (round, client, score, root) of every client in every round, [n, 4].

    Clients with a score or a root of 0, and clients that are absent from a round, are left out.

    Args:
        run: a run.
        roots_of: function of a record, of `MEASURES`.
    """
    rows = [
        (record["round"], client, score, root)
        for record in run.records
        if (roots := roots_of(record))
        for client, score, root in zip(
            record["clients"],
            of_present(record, record["scores"], departs(run.config, "untrained")),
            roots,
            strict=True,
        )
        if score is not None and root is not None and score > 0 and root > 0
    ]
    return np.array(rows, float).reshape(-1, 4)


def norms_and_roots(run: Run) -> np.ndarray:
    """Returns (round, client, tensor, norm, root of its joint Fisher) of every client in every round, [n, 5].

    Empty where the scores are not of the mean gradient of every tensor. Norms and roots of 0, and absent clients, are
    left out.
    """
    options, rows = run.config.fedvg, []
    if options.layer != "tensor" or options.include or options.signal != "gradient" or options.norm == "delta":
        return np.empty((0, 5))
    for record in run.records:
        norms = layer_norms(record)
        if norms is None or not record.get(JOINT) or len(record[JOINT][0]) != norms.shape[1]:
            continue
        present = of_present(record, list(range(len(norms))), departs(run.config, "untrained"))
        for i in (i for i in present if i is not None):
            roots = np.sqrt(np.array(record[JOINT][i], float))
            rows += [
                (record["round"], record["clients"][i], t, norms[i, t], roots[t])
                for t in range(len(roots))
                if norms[i, t] > 0 and roots[t] > 0
            ]
    return np.array(rows, float).reshape(-1, 5)


def slope(roots: np.ndarray, scores: np.ndarray) -> float:
    """Returns the slope of log score over log root by least squares; 1 where they are proportional.

    >>> round(slope(np.array([1.0, 2.0, 4.0]), np.array([3.0, 6.0, 12.0])), 6)
    1.0
    """
    x, y = np.log(roots), np.log(scores)
    centred = x - x.mean()
    return float(centred @ y / (centred @ centred))


def spread(roots: np.ndarray, scores: np.ndarray) -> float:
    """Returns the standard deviation of score / root over the mean of it; 0 where they are proportional.

    >>> spread(np.array([1.0, 2.0]), np.array([3.0, 6.0])), spread(np.array([1.0, 1.0]), np.array([1.0, 3.0]))
    (0.0, 0.5)
    """
    ratios = scores / roots
    return float(ratios.std() / ratios.mean())


def score_against_fisher(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure of scores against Fisher information, and one of norms by tensor where runs record it by tensor.

    The panels are of methods with FedVG's weights and scenarios. Each has one run. A line shows proportionality.
    """
    runs = [
        (method, scenario_text(scenario), cell.runs[min(cell.runs)])
        for method in study.methods
        for scenario in study.scenarios
        if (cell := study.cell(method, scenario)).runs and "fedvg" in cell.runs[min(cell.runs)].weighting
    ]
    drawings = [drawn for draw in (_scores, _tensors) if (drawn := draw(runs, style)) is not None]
    return drawings or (
        "no run under FedVG's weights records Fisher information; --record client_fisher_trace does,"
        " and client_joint_fisher by tensor"
    )


def _scores(runs: Sequence[tuple[str, str, Run]], style: Style) -> Drawing | None:
    """Returns the figure of scores against the root of the trace and the mean root of the joint information."""
    panels, rows = [], []
    for method, where, run in runs:
        values = {label: scores_and_roots(run, roots_of) for label, roots_of in MEASURES.items()}
        panels += [(method, where, label, points) for label, points in values.items() if len(points) >= 3]
        traces, joints = ({(r, k): root for r, k, _, root in points} for points in values.values())
        scores = {(r, k): score for points in values.values() for r, k, score, _ in points}
        rows += [(where, method, int(r), int(k), score, traces.get((r, k)), joints.get((r, k)))
                 for (r, k), score in scores.items()]  # fmt: skip
    if not panels:
        return None
    figure, axes = base.grid(style, len(panels), 1.1)
    for panel, (method, where, label, values) in zip(axes, panels, strict=True):
        rounds, _, scores, roots = values.T
        _points(panel, roots, scores, -rounds)
        ends = np.array([roots.min(), roots.max()])
        panel.plot(ends, ends * np.exp(np.mean(np.log(scores) - np.log(roots))), color=base.GREY, lw=0.9, ls="--")
        title = base.plain(", ".join(filter(None, (method, where))), 40)
        fit = f"slope {slope(roots, scores):.2f}, ratio ± {100 * spread(roots, scores):.0f} %"
        correlation = rank_correlation(list(roots), list(scores))
        panel.set(title=f"{title}\nrank correlation {correlation:.2f}, {fit}", xlabel=label)
    figure.supylabel("score $G_k$", fontsize=style.font)
    columns = ("setting", "method", "round", "client", "score", "root_of_fisher_trace", "mean_root_of_joint_fisher")
    title = "FedVG's score against Fisher information; dashed is proportional, later rounds are darker"
    return Drawing("fisher", title, figure, columns, rows)


def _tensors(runs: Sequence[tuple[str, str, Run]], style: Style) -> Drawing | None:
    """Returns the figure of the norm of every tensor's gradient against the root of its joint information."""
    panels = [(*run, values) for run in runs if len(values := norms_and_roots(run[-1])) >= 3]
    if not panels:
        return None
    figure, axes = base.grid(style, len(panels), 1.1)
    rows, drawn = [], 0
    for panel, (method, where, run, values) in zip(axes, panels, strict=True):
        kept = thinned(values)
        drawn += len(kept)
        _points(panel, kept[:, 4], kept[:, 3], kept[:, 2])
        title = base.plain(", ".join(filter(None, (method, where))), 40)
        correlation, fit, deviation = by_tensor(values)
        text = f"rank correlation {correlation:.2f}, slope {fit:.2f}, ratio ± {100 * deviation:.0f} %"
        panel.set(title=f"{title}\n{text}", xlabel="root of the joint Fisher $J^t$")
        highest = int(values[:, 2].max())
        names = run.layers if len(run.layers) > highest else [str(t) for t in range(highest + 1)]
        rows += [(where, method, int(r), int(k), names[int(t)], norm, root) for r, k, t, norm, root in values]
    figure.supylabel("norm of the mean gradient", fontsize=style.font)
    columns = ("setting", "method", "round", "client", "layer", "norm", "root_of_joint_fisher")
    part = f"; {drawn:,} of {len(rows):,} points" if drawn < len(rows) else ""
    title = f"Norms by tensor against joint Fisher; colours: tensors; titles: means over tensors{part}"
    return Drawing("fisher_tensors", title, figure, columns, rows)


def by_tensor(values: np.ndarray) -> tuple[float, float, float]:
    """Returns the means over tensors of rank correlation, slope and spread over clients and rounds.

    A constant of proportionality of each tensor's own changes none of them.

    Args:
        values: as `norms_and_roots` returns them.
    """
    tensors = [values[values[:, 2] == t, 3:].T for t in np.unique(values[:, 2])]
    several = [(norms, roots) for norms, roots in tensors if len(norms) >= 3 and np.ptp(roots) > 0]
    if not several:
        return float("nan"), float("nan"), float("nan")
    measured = [
        (rank_correlation(list(roots), list(norms)), slope(roots, norms), spread(roots, norms))
        for norms, roots in several
    ]
    correlation, fit, deviation = np.nanmean(measured, 0)
    return float(correlation), float(fit), float(deviation)


def _points(axes: Axes, x: np.ndarray, y: np.ndarray, colour: np.ndarray) -> None:
    """Draws points on logarithmic axes."""
    axes.scatter(x, y, c=colour, cmap="cividis", s=9, lw=0)
    axes.set(xscale="log", yscale="log")
    base.log_ticks(axes.xaxis)
    base.log_ticks(axes.yaxis)
    base.clean(axes)
