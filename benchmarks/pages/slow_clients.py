"""Tables of the study of slow clients, from its runs and contrasts."""

from __future__ import annotations

import itertools

import pandas as pd

from benchmarks.machine import RESULTS
from benchmarks.pages.markdown import interval, table
from benchmarks.studies import slow_clients as study
from fedvg_jax.study.statistics import LEVEL

FOLDER = RESULTS / "slow_clients"


def outcomes() -> str:
    """Returns for every contrast how many of its conditions are significant, and the outcome by the protocol."""
    rows = []
    for name, conditions in _contrasts().groupby("contrast"):
        is_significant = conditions.p_holm < LEVEL
        above = int((is_significant & (conditions.difference > 0)).sum())
        below = int((is_significant & (conditions.difference < 0)).sum())
        is_decided = min(above, below) == 0 and max(above, below) > len(conditions) / 2
        direction = "positive" if above else "negative"
        outcome = direction if is_decided else "undecided"
        mean = f"{conditions.difference.mean():+.2f}"
        rows.append([name, len(conditions), above, below, mean, outcome])
    head = ["contrast", "conditions", "significant, positive", "significant, negative", "mean"]
    return table([*head, "outcome"], rows)


def contrasts() -> str:
    """Returns every contrast by data and alpha, with a column for each clock; * where it is significant."""
    rows = []
    for place, conditions in _contrasts().groupby(["contrast", "data", "alpha"]):
        by_clock = conditions.set_index("clock")
        shown = []
        for clock in study.CLOCKS:
            if clock not in by_clock.index:
                shown.append("–")
                continue
            found = by_clock.loc[clock]
            mark = " *" if found.p_holm < LEVEL else ""
            shown.append(interval([found.difference, found.low, found.high]) + mark)
        rows.append([*place, *shown])
    return table(["contrast", "data", "alpha", *study.CLOCKS], rows)


def servers() -> str:
    """Returns the mean over seeds of accuracy and of what explains it, by clock, server and weights."""
    runs = pd.read_csv(FOLDER / "runs.csv")
    runs = runs[runs.seed.isin(study.SEEDS)]
    measures = ["accuracy", "rounds", "staleness", "correlation", "slow_trainings", "slow_weight"]
    means = runs.groupby(["clock", "server", "weights"])[measures].mean()
    rows = []
    for place in itertools.product(study.CLOCKS, study.SERVERS, study.WEIGHTS):
        if place not in means.index:  # FedVG's two scores differ on buffered servers only
            continue
        accuracy, rounds, *others = means.loc[place]
        numbers = [f"{accuracy:.1f}", f"{rounds:.0f}", *(f"{value:.2f}" for value in others)]
        rows.append([*place, *(number.replace("nan", "–") for number in numbers)])
    head = ["clock", "server", "weights", "accuracy, %", "updates", "staleness", "correlation"]
    return table([*head, "share of slow clients", "their weight"], rows)


def _contrasts() -> pd.DataFrame:
    return pd.read_csv(FOLDER / "contrasts.csv")
