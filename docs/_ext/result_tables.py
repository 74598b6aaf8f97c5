"""Tables from results files and from the tables of the paper."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from option_lists import escape, table

from fedvg_jax import paper as published

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"

RESNETS = {
    "cifar10": ("CIFAR-10", "resnet18"),
    "organamnist": ("OrganAMNIST", "resnet18"),
    "tinyimagenet": ("Tiny ImageNet", "resnet50"),
    "covid19": ("COVID19", "resnet50"),
    "dermamnist": ("DermaMNIST", "resnet50"),
}
ALPHAS = (0.05, 0.1, 1.0, 10.0, 100.0)


def load(name: str) -> Any:
    """A results file; None where it has not been measured."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def cohort_memory() -> str:
    """MiB of a round's temporaries, by cohort and `--hold`."""
    measured = load("cohort_memory")
    points = {(p["cohort"], p["hold"]): p["bytes"] / 2**20 for p in measured["points"]}
    cohorts = sorted({cohort for cohort, _ in points})
    holds = sorted({hold for _, hold in points}, key=lambda hold: (hold > 0, -hold))
    rows = [
        [f"`--hold {hold}`" + ("" if hold else " (the whole cohort)")]
        + [f"{points[c, hold]:,.0f} MiB" if (c, hold) in points else "" for c in cohorts]
        for hold in holds
    ]
    return table(["setting", *(f"cohort of {cohort}" for cohort in cohorts)], rows)


def hypergradient_memory() -> str:
    """MiB that a hypergradient through k rounds holds."""
    sizes = load("hypergradient_memory")["bytes"]
    counts = list(next(iter(sizes.values())))
    rows = [[name, *(f"{by_rounds[c] / 2**20:,.1f}" for c in counts)] for name, by_rounds in sizes.items()]
    return table(["rounds", *counts], rows)


def fidelity() -> str:
    """One row for every difference between the paper, the published code and the defaults here."""
    from fedvg_jax.paper.fidelity import DEPARTURES

    rows = []
    for row in DEPARTURES:
        flags = ", ".join(f"`--{name.replace('_', '-')} {value}`" for name, value in row.settings.items())
        reproduced = f"{flags} (in the profile)" if row.official else flags or "not reproduced"
        rows.append([escape(cell) for cell in (row.subject, row.paper, row.published, row.ours)] + [reproduced])
    head = ["subject", "paper", "published code", "default here", "setting that follows the published code"]
    return table(head, rows) + "\n" + reasons(DEPARTURES)


def reasons(departures) -> str:
    """A line for every difference that `--fidelity official` leaves alone."""
    lines = [f"- {escape(row.subject)}: {escape(row.reason)}." for row in departures if row.reason]
    return "\n".join(["Differences that the profile leaves as they are:", "", *lines]) + "\n"


def demo() -> str:
    """Test accuracy on the digits demonstration, and FedVG's paired differences."""
    result = load("demo")
    if result is None:
        return "Not measured yet: `python -m benchmarks.demo` measures it in about half an hour.\n"
    from benchmarks.demo import differences

    settings, accuracy = result["settings"], result["accuracy"]
    gaps = differences(accuracy)
    rows = []
    for name, runs in accuracy.items():
        percent = [100 * value for value in runs["final"]]
        gap = gaps.get(name)
        said = f"{gap.mean:+.2f} ({gap.low:+.2f} to {gap.high:+.2f})" if gap else ""
        rows.append([name, f"{statistics.mean(percent):.2f} ± {statistics.stdev(percent):.2f}", said])
    head = ["weights", "test accuracy, %, mean ± deviation", "FedVG minus these, points (95 % interval)"]
    about = (
        f"{settings['seeds']} seeds, {settings['rounds']} rounds, alpha {settings['alpha']}, final round; differences"
        " are paired by seed."
    )
    return f"{about}\n\n{table(head, rows)}"


def paper() -> str:
    """The paper's main tables for ResNets: a table for every data set."""
    cells = [cell for cell in published.cells() if cell.table == "results_resnet"]
    parts = []
    for dataset, (title, model) in RESNETS.items():
        mine = {(c.method, c.alpha): c for c in cells if (c.dataset, c.model) == (dataset, model)}
        methods = list(dict.fromkeys(method for method, _ in mine))
        alphas = [alpha for alpha in ALPHAS if any(a == alpha for _, a in mine)]
        rows = [[method, *(printed(mine.get((method, alpha))) for alpha in alphas)] for method in methods]
        if rows:
            parts += [f"### {title}, {model}", "", table(["method", *(f"alpha {a:g}" for a in alphas)], rows)]
    return "\n".join(parts)


def printed(cell) -> str:
    """Mean and deviation as the paper prints them, its best in bold."""
    if cell is None:
        return ""
    text = f"{cell.mean:.2f}" + (f" ± {cell.std:.2f}" if cell.std is not None else "")
    return f"**{text}**" if cell.mark == "bold" else text
