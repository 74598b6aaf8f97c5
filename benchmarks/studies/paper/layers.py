"""Norms of the clients' validation gradients by layer, at chosen rounds."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from fedvg_jax.runs.record.history import Record
from fedvg_jax.study.cells import Replicate, Run, Scenario, Study, replicate_text, scenario_text
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing, Style

ROW_INCHES = 0.14


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
        return name.startswith(("classifier", "head")), [(int(p), "") if p.isdigit() else (-1, p) for p in parts]

    order = sorted(layers, key=key)
    return [order.index(name) for name in layers]


def drawn_runs(study: Study) -> list[tuple[Scenario, str, Replicate, Run]]:
    """Returns the run of every scenario's heat map: of the first method with shares, its smallest seed."""
    drawn = []
    for scenario in study.scenarios:
        cells = [study.cell(method, scenario) for method in study.methods]
        runs = [(scenario, cell.method, min(cell.runs), cell.runs[min(cell.runs)]) for cell in cells if cell.runs]
        drawn += [run for run in runs if measured(run[-1])][:1]
    return drawn


def measured(run: Run) -> list[Record]:
    """Returns the records of a run that have the layers' shares of the scores."""
    return [record for record in run.records if record.get("layer_shares")]


def norms_by_layer(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a heat map per scenario of one run's norms by client and layer at chosen rounds, on a common scale.

    Layers are in the order of `depths`.
    """
    drawn = []
    for scenario, method, replicate, run in drawn_runs(study):
        figure, rows = _heat_maps(run, style)
        where = ", ".join(filter(None, (method, scenario_text(scenario), replicate_text(replicate))))
        stem = "layers" if not drawn else f"layers-{len(drawn) + 1}"
        columns = ("setting", "method", "round", "client", "layer", "norm")
        rows = [(scenario_text(scenario), method, *row) for row in rows]
        drawn.append(Drawing(stem, f"Norms by layer: {where}", figure, columns, rows))
    return drawn or "no run records shares of layers; runs with weighting fedvg or generalised do"


def chosen_rounds(recorded: Sequence[int]) -> list[int]:
    """Returns the first, the middle and the last of the recorded rounds.

    >>> chosen_rounds(range(1, 10)), chosen_rounds([4])
    ([1, 5, 9], [4])
    """
    return sorted({recorded[0], recorded[(len(recorded) - 1) // 2], recorded[-1]})


def _signal_name(run: Run) -> str:
    """Returns what the norms are of."""
    options = run.config.fedvg
    signal = "delta" if options.norm == "delta" else options.signal
    return {"delta": "update", "fisher": "Fisher diagonal on $D_{val}$"}.get(signal, "gradient on $D_{val}$")


def _heat_maps(run: Run, style: Style):
    """Returns the figure and the rows of its CSV file."""
    from matplotlib.colors import LogNorm

    by_round = {record["round"]: record for record in measured(run)}
    records = [by_round[number] for number in chosen_rounds(list(by_round))]
    norms = [layer_norms(record) for record in records]
    positive = np.concatenate([n[np.isfinite(n) & (n > 0)] for n in norms if n is not None])
    scale = LogNorm(positive.min(), positive.max()) if positive.size else None
    num_clients = max(len(record["clients"]) for record in records)
    stacked = style.panels_per_row == 1
    inches = num_clients * ROW_INCHES + 1.5
    figure, axes = base.grid(
        style._replace(panels_per_row=1 if stacked else 3), len(records), inches / style.panel_height
    )
    count = norms[0].shape[1] if norms[0] is not None else 0
    names = list(run.layers) if len(run.layers) == count else [str(j) for j in range(count)]
    columns = np.argsort(depths(names)).tolist()
    layers = [names[j] for j in columns]
    rows, image = [], None
    for panel, record, measurements in zip(axes, records, norms, strict=True):
        assert measurements is not None
        order = sorted(range(len(record["clients"])), key=lambda i: record["num_samples"][i])
        values = measurements[np.ix_(order, columns)]
        image = panel.imshow(values, aspect="auto", cmap="cividis", norm=scale, interpolation="nearest")
        labels = [str(record["clients"][i]) for i in order]
        every = max(1, len(labels) // 20)
        panel.set_yticks(range(0, len(labels), every), labels[::every], fontsize=style.font - 2)
        if len(layers) <= 24:
            short = [base.plain(name.removesuffix("/kernel"), 18) for name in layers]
            panel.set_xticks(range(len(layers)), short, rotation=90, fontsize=style.font - 2)
        else:
            panel.set_xlabel("layer")
        panel.set_title(f"round {record['round']}")
        panel.tick_params(length=0)
        rows += [
            (record["round"], record["clients"][i], name, values[row, j])
            for row, i in enumerate(order)
            for j, name in enumerate(layers)
        ]
    axes[0].set_ylabel("client, smallest first")
    if image is not None:
        figure.colorbar(image, ax=axes, label=f"norm of the {_signal_name(run)}", shrink=0.9, aspect=30)
    return figure, rows
