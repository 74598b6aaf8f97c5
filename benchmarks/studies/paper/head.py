"""What decides the weights of clients: the classifier head, or the body of the network.

FedVG's score is the mean of the layers' norms. From the norms of the head alone, and of the other layers alone, follow
two further lists of weights. Their rank correlations with FedVG's weights and with weights by validation loss, over the
clients of a round, say which part each rule follows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.studies.paper.layers import layer_norms
from benchmarks.studies.paper.validity import LOSS, of_present, rank_correlation
from fedvg_jax.config.departures import departs
from fedvg_jax.runs.record.history import Record
from fedvg_jax.study.cells import Cell, Run, Study, scenario_text
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing, Style

HEADS = ("classifier", "head")
"""First parts of the names of a head's layers."""

RULES = {"gradient": "FedVG: gradients", "val_loss": "validation loss"}
"""Key of the CSV file -> how the weights are called in the figure."""

PARTS = {"head": (base.COLOURS[0], ""), "body": (base.COLOURS[5], "////")}
"""Part of the network -> colour and hatch."""

LABEL = {"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"}


class Round(NamedTuple):
    """Rank correlations of a round."""

    number: int
    head_share: float
    """mean over clients of the head's part of the score"""
    correlations: dict[tuple[str, str], float]
    """(key of `RULES`, key of `PARTS`) -> rank correlation of the rule's weights with those from this part alone"""


def is_head(layer: str) -> bool:
    """Returns whether a layer belongs to the classifier head, by its name.

    >>> is_head("classifier/kernel"), is_head("layer1/classifier/kernel")
    (True, False)
    """
    return layer.partition("/")[0] in HEADS


def round_of(record: Record, layers: Sequence[str], counts_untrained: bool = False) -> Round | None:
    """Returns the correlations of a round; None where it lacks norms or losses, or the network has no head or no body.

    Clients that are absent from the round do not count.

    Args:
        record: of a round under weights of FedVG's family, with `client_val_loss`.
        layers: their names, in the order of `layer_shares`.
        counts_untrained: see `validity.of_present`.

    >>> record = {"round": 1, "clients": [4, 7, 9], "scores": [1.0, 2.0, 3.0]}
    >>> record |= {"layer_shares": [[0.5, 0.5], [0.5, 0.5], [0.75, 0.25]]}
    >>> round_of(record | {"client_val_loss": [0.3, 0.2, 0.1]}, ["a/kernel", "classifier/kernel"])
    Round(number=1, head_share=0.416667, correlations={('gradient', 'head'): 0.5, ('gradient', 'body'): 1.0, \
('val_loss', 'head'): -0.5, ('val_loss', 'body'): -1.0})
    """
    norms, losses = layer_norms(record), record.get(LOSS)
    of_head = np.array([is_head(layer) for layer in layers])
    if norms is None or not losses or norms.shape[1] != len(layers) or of_head.all() or not of_head.any():
        return None
    is_present = np.array(of_present(record, [True] * len(norms), counts_untrained), bool)
    norms = np.where(is_present[:, None], norms, np.nan)  # a correlation leaves nan out
    sums = {"head": norms[:, of_head].sum(1), "body": norms[:, ~of_head].sum(1)}
    raw = {"gradient": record["scores"], "val_loss": losses}
    # weights are inverses, so both lists have the reversed order of what they invert
    correlations = {(rule, part): _correlation(raw[rule], sums[part]) for rule in RULES for part in PARTS}
    total = norms.sum(1)
    shares = sums["head"][total > 0] / total[total > 0]
    return Round(record["round"], round(float(shares.mean()), 6) if shares.size else math.nan, correlations)


def _correlation(values: Sequence[float | None], sums: np.ndarray) -> float:
    return rank_correlation(values, [float(s) if math.isfinite(s) else None for s in sums])


def head_against_body(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure of bars, a panel per method of FedVG's family and scenario: means over rounds and runs.

    Marks have the length of one standard deviation over rounds to both sides.
    """
    rounds_by_cell = {}
    for scenario in study.scenarios:
        for method in study.methods:
            if rounds := _rounds(study.cell(method, scenario)):
                rounds_by_cell[method, scenario] = rounds
    if not rounds_by_cell:
        return (
            "no run has the norms of a head and of other layers beside validation losses;"
            " weighting fedvg with --record client_val_loss does"
        )
    figure, axes = base.grid(style, len(rounds_by_cell), 0.95, sharey=True)
    rows, lowest = [], 0.0
    for panel, ((method, scenario), rounds) in zip(axes, rounds_by_cell.items(), strict=True):
        for j, (part, (colour, hatch)) in enumerate(PARTS.items()):
            for i, (rule, _) in enumerate(RULES.items()):
                values = np.array([r.correlations[rule, part] for _, r in rounds])
                values = values[np.isfinite(values)]
                if values.size:
                    place, mean = i + 0.36 * (j - 0.5), float(values.mean())
                    lowest = min(lowest, mean - float(values.std()))
                    panel.bar(place, mean, 0.34, color=colour, hatch=hatch, edgecolor="black", linewidth=0.6)
                    panel.errorbar(place, mean, float(values.std()), color="black", lw=0.8, capsize=2)
                    panel.text(place, 0.03, part, ha="center", fontsize=style.font - 2, bbox=LABEL)
        panel.axhline(0, color="0.4", lw=0.7)
        panel.set_xticks(range(len(RULES)), list(RULES.values()))
        panel.tick_params(axis="x", length=0)
        share = np.nanmean([r.head_share for _, r in rounds])
        title = ", ".join(filter(None, (method, scenario_text(scenario))))
        panel.set_title(f"{base.plain(title, 40)}\nthe head is {100 * share:.0f} % of the score")
        base.clean(panel)
        rows += [
            (scenario_text(scenario), method, seed, r.number, r.head_share, *r.correlations.values())
            for seed, r in rounds
        ]
    axes[0].set_ylim(lowest - 0.05, 1.05)  # shared by all panels
    figure.supylabel("rank correlation with weights\nfrom this part alone", fontsize=style.font)
    names = [f"{rule}_with_{part}" for rule in RULES for part in PARTS]
    columns = ("setting", "method", "seed", "round", "head_share", *names)
    title = "Weights by gradients and by validation loss: rank correlation with the head and the body"
    return [Drawing("head", title, figure, columns, rows)]


def _rounds(cell: Cell) -> list[tuple[int, Round]]:
    """Returns the seed and the correlations of every round that has them."""
    return [(run.config.seed, measured) for run in cell.runs.values() for measured in rounds_of(run)]


def rounds_of(run: Run) -> list[Round]:
    """Returns the correlations of every round of a run that has them."""
    return [
        measured
        for record in run.records
        if (measured := round_of(record, run.layers, departs(run.config, "untrained"))) is not None
    ]
