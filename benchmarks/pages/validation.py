"""Tables of what a validation set on the server is worth."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.pages.files import source_of_folder
from benchmarks.pages.markdown import interval, table
from benchmarks.studies import uses
from fedvg_jax.config import method_title


def outcomes(sets: Mapping[str, str]) -> str:
    """Returns the outcome of every hypothesis in folders of results, folder -> title."""
    rows = []
    for folder, title in sets.items():
        found = uses.primary(uses.read(folder)).items()
        of_hypothesis = ([c for (name, _), c in found if name == h] for h in uses.CONTROLS)
        rows.append([title, *map(uses.verdict, of_hypothesis)])
    return table(["data", *_hypotheses()], rows)


def contrasts(sets: Mapping[str, str], choice: str = "final", decides: bool = True) -> str:
    """Returns FedVG minus its four controls in folders of results, folder -> title.

    If it decides, with the outcome of every contrast; otherwise exploratory, without correction.
    """
    rows = []
    for folder, title in sets.items():
        found = uses.primary(uses.read(folder, choice))
        for alpha in uses.ALPHAS:
            of_alpha = [found.get((name, alpha)) for name in uses.CONTROLS]
            if any(of_alpha):
                seeds = max(c.n for c in of_alpha if c)
                shown = [_shown(c, decides) if c else "–" for c in of_alpha]
                rows.append([title, alpha, str(seeds), *shown])
    return table(["data", "alpha", "seeds", *_hypotheses()], rows)


def _shown(contrast: uses.Contrast, decides: bool) -> str:
    return interval(contrast[1:4]) + (f", {contrast.outcome}" if decides else "")


def pretraining() -> str:
    """Returns the four contrasts with pretrained weights minus the same with random ones."""
    rows = []
    for folder, title in uses.RANDOM.items():
        effects = uses.effects_of_pretraining(folder)
        for alpha in dict.fromkeys(alpha for _, alpha in effects):
            rows.append(
                [title, alpha, *(interval(effects[name, alpha][1:4]) for name in uses.CONTROLS)]
            )
    return table(["data", "alpha", *_hypotheses()], rows)


def _hypotheses() -> list[str]:
    """Returns the titles of the columns of the primary contrasts."""
    controls = ("FedAvg", "uniform", "placebo", "FedAvg with server steps")
    return [
        f"{name}: minus {control}" for name, control in zip(uses.CONTROLS, controls, strict=True)
    ]


def uses_of_validation(folder: str) -> str:
    """Returns accuracies of every use of D_val on one data set, their differences to FedAvg, and the source."""
    values, balanced, inequality, rates = (
        uses.read(folder, column) for column in ("final", "balanced", "inequality", "lr")
    )
    rows, alphas = [], [alpha for alpha in uses.ALPHAS if (alpha, uses.FEDVG) in values]
    for method, title in {"fedavg": "FedAvg (no use)", **uses.USES}.items():
        if not any((alpha, method) in values for alpha in alphas):
            continue
        cells = []
        for alpha in alphas:
            if (alpha, method) not in values:
                cells += ["–"] * 2
                continue
            shown = f"{_mean(values[alpha, method]):.1f}"
            if method != uses.CHOSEN:
                rate = _mean(rates[alpha, method])
                shown += f" / {_mean(balanced[alpha, method]):.1f} ({rate:g})"
            gap = uses.against(values, alpha, method) if method != "fedavg" else None
            cells += [shown, interval(gap[1:4]) if gap else ""]
        ratios = [
            np.median([*inequality[a, method].values()])
            for a in alphas
            if (a, method) in inequality
        ]
        rows.append([title, *cells, f"{np.median(ratios):.3g}" if ratios else "–"])
    head = ["use of D_val"]
    for alpha in alphas:
        head += [f"alpha {alpha}: accuracy / balanced, % (rate)", "minus FedAvg, points"]
    return f"{table([*head, 'largest / smallest weight'], rows)}\n\n{source_of_folder(folder)}\n"


def _mean(values: uses.Values) -> float:
    return float(np.mean([*values.values()]))


def methods_on_features(folder: str) -> str:
    """Returns accuracies of the paper's methods on one data set, what FedVG's weights add to each, and the source."""
    values, rates = (uses.read(folder, column) for column in ("final", "lr"))
    rows, alphas = [], list(dict.fromkeys(alpha for alpha, _ in values))
    for method in dict.fromkeys(method for _, method in values if method != uses.CHOSEN):
        base = {uses.FEDVG: "fedavg"}.get(method, method.removesuffix("+fedvg"))
        cells = []
        for alpha in alphas:
            mean, rate = _mean(values[alpha, method]), _mean(rates[alpha, method])
            gap = uses.against(values, alpha, method, base) if method != base else None
            cells += [f"{mean:.1f} ({rate:g})", interval(gap[1:4]) if gap else ""]
        rows.append([method_title(method), *cells])
    head = ["method"]
    for alpha in alphas:
        head += [f"alpha {alpha}: accuracy, % (rate)", "minus its base, points"]
    return f"{table(head, rows)}\n\n{source_of_folder(folder)}\n"
