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
        of_hypothesis = {control: [] for control in uses.CONTROLS}
        for (control, _), contrast in uses.primary(uses.read(folder)).items():
            of_hypothesis[control].append(contrast)
        rows.append([title, *map(uses.verdict, of_hypothesis.values())])
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
                rows.append([title, alpha, seeds, *shown])
    return table(["data", "alpha", "seeds", *_hypotheses()], rows)


def _shown(contrast: uses.Contrast, decides: bool) -> str:
    return interval(contrast.interval) + (f", {contrast.outcome}" if decides else "")


def pretraining() -> str:
    """Returns the four contrasts with pretrained weights minus the same with random ones."""
    rows = []
    for folder, title in uses.RANDOM.items():
        effects = uses.effects_of_pretraining(folder)
        for alpha in dict.fromkeys(alpha for _, alpha in effects):
            of_alpha = (effects[name, alpha].interval for name in uses.CONTROLS)
            rows.append([title, alpha, *map(interval, of_alpha)])
    return table(["data", "alpha", *_hypotheses()], rows)


def _hypotheses() -> list[str]:
    """Returns the titles of the columns of the primary contrasts."""
    controls = ("FedAvg", "uniform", "placebo", "FedAvg with server steps")
    return [
        f"{name}: minus {control}" for name, control in zip(uses.CONTROLS, controls, strict=True)
    ]


def uses_of_validation(folder: str) -> str:
    """Returns accuracies of every use of D_val on one data set, their differences to FedAvg, and the source."""
    values, balanced, rates = (uses.read(folder, name) for name in ("final", "balanced", "lr"))
    accuracy, balanced, rates = (of_runs.mean() for of_runs in (values, balanced, rates))
    ratios = uses.read(folder, "inequality").median()
    alphas = [alpha for alpha in uses.ALPHAS if (alpha, uses.FEDVG) in values]
    rows = []
    for method, title in {"fedavg": "FedAvg (no use)", **uses.USES}.items():
        ran = [alpha for alpha in alphas if (alpha, method) in values]
        if not ran:
            continue
        cells = []
        for alpha in alphas:
            place = alpha, method
            if alpha not in ran:
                cells += ["–"] * 2
                continue
            shown = f"{accuracy[place]:.1f}"
            if place in rates:  # it has none in the round best on D_val
                shown += f" / {balanced[place]:.1f} ({rates[place]:g})"
            gap = uses.against(values, alpha, method) if method != "fedavg" else None
            cells += [shown, interval(gap.interval) if gap else ""]
        of_method = [ratios[alpha, method] for alpha in ran if (alpha, method) in ratios]
        rows.append([title, *cells, f"{np.median(of_method):.3g}" if of_method else "–"])
    head = ["use of D_val"]
    for alpha in alphas:
        head += [f"alpha {alpha}: accuracy / balanced, % (rate)", "minus FedAvg, points"]
    return f"{table([*head, 'largest / smallest weight'], rows)}\n\n{source_of_folder(folder)}\n"


def methods_on_features(folder: str) -> str:
    """Returns accuracies of the paper's methods on one data set, what FedVG's weights add to each, and the source."""
    values, rates = uses.read(folder), uses.read(folder, "lr").mean()
    alphas, methods = (values.columns.unique(level) for level in ("alpha", "method"))
    rows = []
    for method in methods.drop(uses.CHOSEN):
        base = {uses.FEDVG: "fedavg"}.get(method, method.removesuffix("+fedvg"))
        cells = []
        for alpha in alphas:
            place = alpha, method
            gap = uses.against(values, alpha, method, base) if method != base else None
            cells += [f"{values[place].mean():.1f} ({rates[place]:g})"]
            cells += [interval(gap.interval) if gap else ""]
        rows.append([method_title(method), *cells])
    head = ["method"]
    for alpha in alphas:
        head += [f"alpha {alpha}: accuracy, % (rate)", "minus its base, points"]
    return f"{table(head, rows)}\n\n{source_of_folder(folder)}\n"
