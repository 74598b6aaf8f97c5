"""Norms of the clients' validation gradients by layer, at chosen rounds."""

from __future__ import annotations

import numpy as np

from fedvg_jax.runs.history import Record
from fedvg_jax.views.report.figures import base
from fedvg_jax.views.report.figures.base import Drawing, Style
from fedvg_jax.views.report.study import Run, Study, replicate_text, scenario_text

NUM_ROUNDS = 3
"""Rounds of a heat map: the first, the middle and the last."""

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


def norms_by_layer(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a heat map per scenario of one run's norms by client and layer at three rounds, on a common scale."""
    drawn = []
    for scenario in study.scenarios:
        cells = [study.cell(method, scenario) for method in study.methods]
        runs = [(cell.method, r, cell.runs[r]) for cell in cells if cell.runs for r in [min(cell.runs)]]
        first = next(((m, r, run) for m, r, run in runs if any(x.get("layer_shares") for x in run.records)), None)
        if first is None:
            continue
        method, replicate, run = first
        figure, rows = _heat_maps(run, style)
        where = ", ".join(filter(None, (method, scenario_text(scenario), replicate_text(replicate))))
        stem = "layers" if not drawn else f"layers-{len(drawn) + 1}"
        columns = ("setting", "method", "round", "client", "layer", "norm")
        rows = [(scenario_text(scenario), method, *row) for row in rows]
        drawn.append(Drawing(stem, f"Norms by layer: {where}", figure, columns, rows))
    return drawn or "no run records shares of layers; runs with weighting fedvg or generalised do"


def chosen_rounds(count: int) -> list[int]:
    """Returns the positions of the first, the middle and the last of `count` rounds.

    >>> chosen_rounds(9), chosen_rounds(1)
    ([0, 4, 8], [0])
    """
    return sorted({round(i * (count - 1) / (NUM_ROUNDS - 1)) for i in range(NUM_ROUNDS)})


def _signal_name(run: Run) -> str:
    """Returns what the norms are of."""
    options = run.config.fedvg
    signal = "delta" if options.norm == "delta" else options.signal
    return {"delta": "update", "fisher": "Fisher diagonal on $D_{val}$"}.get(signal, "gradient on $D_{val}$")


def _heat_maps(run: Run, style: Style):
    """Returns the figure and the rows of its CSV file."""
    from matplotlib.colors import LogNorm

    measured = [record for record in run.records if record.get("layer_shares")]
    records = [measured[i] for i in chosen_rounds(len(measured))]
    norms = [layer_norms(record) for record in records]
    positive = np.concatenate([n[np.isfinite(n) & (n > 0)] for n in norms if n is not None])
    scale = LogNorm(positive.min(), positive.max()) if positive.size else None
    num_clients = max(len(record["clients"]) for record in records)
    stacked = style.panels_per_row == 1
    inches = num_clients * ROW_INCHES + 1.5
    figure, axes = base.grid(
        style._replace(panels_per_row=1 if stacked else 3), len(records), inches / style.panel_height
    )
    rows, image = [], None
    for panel, record, values in zip(axes, records, norms, strict=True):
        assert values is not None
        order = sorted(range(len(record["clients"])), key=lambda i: record["num_samples"][i])
        image = panel.imshow(values[order], aspect="auto", cmap="cividis", norm=scale, interpolation="nearest")
        labels = [str(record["clients"][i]) for i in order]
        every = max(1, len(labels) // 20)
        panel.set_yticks(range(0, len(labels), every), labels[::every], fontsize=style.font - 2)
        layers = list(run.layers) if len(run.layers) == values.shape[1] else [str(i) for i in range(values.shape[1])]
        if len(layers) <= 24:
            names = [base.plain(name.removesuffix("/kernel"), 18) for name in layers]
            panel.set_xticks(range(len(layers)), names, rotation=90, fontsize=style.font - 2)
        else:
            panel.set_xlabel("layer")
        panel.set_title(f"round {record['round']}")
        panel.tick_params(length=0)
        rows += [
            (record["round"], record["clients"][i], name, values[i, j]) for i in order for j, name in enumerate(layers)
        ]
    axes[0].set_ylabel("client, smallest first")
    if image is not None:
        figure.colorbar(image, ax=axes, label=f"norm of the {_signal_name(run)}", shrink=0.9, aspect=30)
    return figure, rows
