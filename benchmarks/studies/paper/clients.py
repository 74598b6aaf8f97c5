"""Measurements of a round's clients, from its record: norms by layer, and rank correlations.

FedVG's score is the mean of the layers' norms. From the norms of the head alone, and of the other layers alone, follow
two further lists of weights. Their rank correlations with FedVG's weights and with weights by validation loss, over the
clients of a round, say which part each rule follows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedvg_jax.config.options import as_reference
from fedvg_jax.host import files
from fedvg_jax.runs.record.history import Record
from fedvg_jax.study.run import Run

ACCURACY = "client_accuracy"
"""Key of a record: accuracy of every client's model on the pooled test set, in the order of `clients`."""

LOSS = "client_val_loss"
"""Key of a record: loss of every client's model on D_val."""

HEADS = ("classifier", "head")
"""First parts of the names of a head's layers."""

RULES = {"val_loss": "validation loss", "gradient": "FedVG: gradients"}
"""Rule of weights -> its name in a finding."""


def rank_correlation(
    measure: Sequence[float | None] | np.ndarray, accuracy: Sequence[float | None] | np.ndarray
) -> float:
    """Returns Spearman's correlation over the clients that have both; nan where one of them is constant.

    It is nan for fewer than three clients, too.

    >>> rank_correlation([0.1, 0.3, 0.6, None], [0.5, 0.7, 0.9, 0.1])
    1.0
    """
    pairs = pd.DataFrame([measure, accuracy], dtype=float).T
    return round(float(pairs.corr("spearman", min_periods=3).iloc[0, 1]), 12)


def of_present(run: Run, record: Record, values: Sequence[Any]) -> list[Any]:
    """Returns values of a cohort's clients with None for clients that are dropped from the round's average.

    Dropped clients have the weight 0 and the global model, which say nothing about the client. Those without a local
    step are present only by the reference behaviour untrained.

    Args:
        run: gives the settings.
        record: of the round.
        values: one per client, in the order of `clients`.
    """
    absent = {*record.get("dropped", ()), *record.get("diverged", ())}
    absent.update(() if as_reference(run.config, "untrained") else record.get("untrained", ()))
    return [
        None if k in absent else value for k, value in zip(record["clients"], values, strict=True)
    ]


def layer_norms(record: Record) -> np.ndarray | None:
    """Returns the norm of every client's layers, [K, layers]; None where the record has no shares.

    The score is the mean of the layers' norms: a norm is share x score x number of layers.

    >>> layer_norms({"layer_shares": [[0.25, 0.75]], "scores": [4.0]}).tolist()
    [[2.0, 6.0]]
    """
    if not record.get("layer_shares"):
        return None
    shares = np.array(record["layer_shares"], float)
    scores = np.array([np.nan if score is None else score for score in record["scores"]], float)
    return shares * scores[:, None] * shares.shape[1]


def depths(layers: Sequence[str]) -> list[int]:
    """Returns the position of every layer from the input, by its name: numbers by size, the classifier last.

    >>> depths(["classifier/kernel", "layer10/kernel", "layer2/kernel"])
    [2, 1, 0]
    """

    def key(name: str) -> tuple:
        parts = re.split(r"(\d+)", name)
        return name.startswith(HEADS), [(int(p), "") if p.isdigit() else (-1, p) for p in parts]

    order = sorted(layers, key=key)
    return [order.index(name) for name in layers]


def weighting_of(run: Run) -> str:
    """Returns the weighting of a run, by the name of an object from Python."""
    return run.custom.get("weighting", run.config.weighting)


def layers_of(run: Run) -> list[str]:
    """Returns the names of the columns of `layer_shares`; [] where the run has none."""
    path = run.folder / "layers.json"
    return files.read_json(path) if path.exists() else []


def head_minus_body(run: Run) -> dict[str, list[float]]:
    """Returns a number per round of a run, by key of `RULES`.

    It is the rank correlation of the rule's weights with those from the norms of the head alone, minus that with those
    from the body alone. Rounds without norms or losses, and networks without a head or a body, have none.
    """
    of_head = np.array([layer.partition("/")[0] in HEADS for layer in layers_of(run)], bool)
    gaps: dict[str, list[float]] = {rule: [] for rule in RULES}
    for record in run.records:
        norms, losses = layer_norms(record), record.get(LOSS)
        if (
            norms is None
            or not losses
            or norms.shape[1] != len(of_head)
            or of_head.all()
            or not of_head.any()
        ):
            continue
        parts = [
            of_present(run, record, norms[:, part].sum(1).tolist()) for part in (of_head, ~of_head)
        ]
        # weights are inverses, so both lists have the reversed order of what they invert
        for rule, inverted in (("val_loss", losses), ("gradient", record["scores"])):
            head, body = (rank_correlation(inverted, part) for part in parts)
            if math.isfinite(head - body):
                gaps[rule].append(head - body)
    return gaps
