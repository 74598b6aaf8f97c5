"""Paired comparisons of methods by SciPy, corrected over all of a study, and what they say in sentences."""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.config import method_title
from fedvg_jax.study.groups import Frame, Study
from fedvg_jax.study.outcomes import CHOICES, TO_TARGET, Outcome, has_clock
from fedvg_jax.study.places import Seeds, condition_text
from fedvg_jax.study.sweep_folder import count

LEVEL = 0.05
"""Significance level."""

ROUNDING = 1e-8
"""Differences that vary by less than this part of the largest result are equal: results have nine digits."""


class Comparison(NamedTuple):
    """Differences of one method to another over paired runs."""

    n: int
    mean: float
    """Mean difference, nan without a pair."""
    t_interval: tuple[float, float]
    """95 % limits by Student's t; not finite for fewer than two pairs.

    A bootstrap interval of few pairs is too narrow: it excludes 0 wherever all differences have one sign, as three have
    in a quarter of all cases without an effect.
    """
    t_p: float
    """Two-sided p of the paired t test."""


def compare(ours: Mapping[Seeds, float], theirs: Mapping[Seeds, float]) -> Comparison:
    """Returns the comparison of two methods over the seeds that both have.

    Differences that are equal up to rounding have no deviation: their interval has no width, and p is nan unless they
    are 0.

    >>> comparison = compare({(s, 42): s + 2.0 for s in range(3)}, {(s, 42): 2.0 * s for s in range(3)})
    >>> comparison.n, comparison.mean  # differences 2, 1, 0; t(0.975, 2 degrees of freedom) = 4.303
    (3, 1.0)
    >>> [round(limit, 3) for limit in comparison.t_interval]
    [-1.484, 3.484]
    """
    from scipy import stats

    shared = sorted(ours.keys() & theirs.keys())
    first = np.array([ours[seeds] for seeds in shared])
    second = np.array([theirs[seeds] for seeds in shared])
    differences = first - second
    mean = float(differences.mean()) if shared else math.nan
    n = len(shared)
    if n < 2:
        return Comparison(n, mean, (math.nan, math.nan), math.nan)
    tolerance = ROUNDING * np.abs([first, second]).max()
    if np.ptp(differences) <= tolerance:
        p = 1.0 if abs(mean) <= tolerance else math.nan
        return Comparison(n, mean, (mean, mean), p)
    result: Any = stats.ttest_1samp(differences, 0.0)
    low, high = result.confidence_interval(1 - LEVEL)
    return Comparison(n, mean, (float(low), float(high)), float(result.pvalue))


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p values corrected by Holm over a family; nan stays nan and is not a member.

    >>> holm([0.01, float("nan"), 0.04])
    [0.02, nan, 0.04]
    """
    import pandas

    ordered = pandas.Series(p_values, dtype=float).dropna().sort_values()
    corrected = (ordered * np.arange(len(ordered), 0, -1)).cummax().clip(upper=1.0)
    return corrected.reindex(range(len(p_values))).tolist()


# --- the methods of a study

COLUMNS = ["condition", "method", "against", "n", "difference", "t_low", "t_high", "t_p"]
"""Columns of comparisons: position of the condition, the two methods, and fields of `Comparison`."""


@functools.lru_cache(4)
def compare_pairs(study: Study) -> Frame:
    """Returns a row for every pair of methods in every condition: one family, over which Holm corrects.

    Tables, findings and figures are made from it. A comparison has no p value where runs of one of the two methods
    failed or have no finite outcome: the others are chosen by their success.

    Returns:
        A frame with `COLUMNS`, `t_p_holm`, and `outcome`: "ahead" or "behind" where the corrected t test is
        significant, otherwise "undecided".
    """
    import pandas

    choice = study.choice
    lost = study.frame[study.frame[choice].isna() & (study.frame["kind"] != "missing")]
    untested = {*zip(lost["condition"], lost["method"], strict=True)}
    rows = []
    for position, condition in enumerate(study.conditions):
        for pair in study.pairs:
            results = [study.group(method, condition).results(choice) for method in pair]
            n, mean, limits, p = compare(*results)
            is_tested = untested.isdisjoint((position, method) for method in pair)
            rows.append((position, *pair, n, mean, *limits, p if is_tested else math.nan))
    frame: Frame = pandas.DataFrame(rows, columns=COLUMNS)
    frame["t_p_holm"] = holm(frame["t_p"])
    is_significant = frame["t_p_holm"] < LEVEL
    is_better = study.outcome.sign * frame["difference"] > 0
    frame["outcome"] = np.select(
        [is_significant & is_better, is_significant], ["ahead", "behind"], "undecided"
    )
    return frame


def leaders(compared: Frame) -> set[tuple[int, str]]:
    """Returns (condition, method) of the methods that are ahead in every comparison in a condition."""
    wins = collections.defaultdict(list)
    for row in compared.itertuples():
        wins[row.condition, row.method].append(row.outcome == "ahead")
        wins[row.condition, row.against].append(row.outcome == "behind")
    return {place for place, won in wins.items() if all(won)}


def family(compared: Frame) -> str:
    """Returns a sentence on the tests."""
    tested = count(int(compared["t_p"].count()), "comparison")
    return f"Ahead or behind: p < {LEVEL:g} in paired t tests, corrected by Holm over {tested} with a p value."


# --- sentences


def findings(study: Study) -> list[str]:
    """Returns what comparisons say, a line for every condition, and how the methods are compared; [] without any.

    A line names the methods with runs that have no result, then the pairs in which one method is ahead of the other,
    the largest differences first, and then the pairs that are undecided.
    """
    compared = compare_pairs(study)
    if compared.empty:
        return []
    lag, is_open = -study.outcome.sign * compared["difference"], compared["outcome"] == "undecided"
    ordered = compared.assign(lag=lag, is_open=is_open).sort_values(["is_open", "lag"])
    lines = []
    for position, condition in enumerate(study.conditions):
        rows = ordered[(ordered["condition"] == position) & (ordered["n"] > 0)]
        sentences = _lost(study, position)
        sentences += [_comparison(study.outcome, row) for row in rows.itertuples()]
        if sentences:
            line = f"{condition_text(condition)}: {' '.join(sentences)}"
            lines.append(line.removeprefix(": "))
    n = " to ".join(map(str, sorted({compared["n"].min(), compared["n"].max()})))
    what = f"Mean differences in {study.outcome.title}, {stands_for(study)}"
    return [*lines, f"{what}, paired by seed (n = {n}). {family(compared)}{_clock(study)}"]


def _lost(study: Study, position: int) -> list[str]:
    """Returns a sentence on each method that has runs without a result in a condition."""
    rows = study.frame[study.frame["condition"] == position]
    sentences = []
    for method, results in rows.groupby("method", sort=False)[study.choice]:
        if lost := results.isna().sum():
            title = method_title(str(method))
            sentences.append(f"{title} has no result in {lost} of {len(results)} runs.")
    return sentences


def stands_for(study: Study) -> str:
    """Returns what of a run is compared: an evaluation, or the target that it is to reach."""
    outcome = study.outcome
    if outcome.metric not in TO_TARGET or outcome.goal is None:
        return CHOICES[study.choice]
    goal, target = outcome.goal
    return f"target {goal.metric} {target:g}{' %' if goal.is_share else ''}"


def _clock(study: Study) -> str:
    """Returns a sentence on the clock of all runs; "" where some have none, or its settings are in the conditions."""
    if not all(map(has_clock, study.runs)) or "clock.step" not in study.settings:
        return ""
    settings = study.settings.items()
    used = tuple((n, value) for n, value in settings if n.startswith("clock.") and value)
    return f" Virtual time: {condition_text(used) or 'a clock from Python'}."


def _comparison(outcome: Outcome, row: Any) -> str:
    """Returns a sentence on a comparison."""
    ours, against = method_title(row.method), method_title(row.against)
    is_open = row.outcome == "undecided"
    sign = -1 if row.difference < 0 and not is_open else 1
    limits = sorted((sign * row.t_low, sign * row.t_high))
    size = amount(outcome, sign * row.difference, *limits)
    if is_open:
        return f"{ours} against {against} is undecided: the difference is {size}."
    verdict = "ahead of" if row.outcome == "ahead" else "behind"
    return f"{ours} is {verdict} {against} by {size}."


def amount(outcome: Outcome, mean: float, low: float, high: float) -> str:
    """Returns a difference with its interval in words, with two digits or more; one pair of runs has no interval.

    >>> amount(Outcome("accuracy", "higher"), 2.51, 0.76, 4.26)
    '2.5 points (95 % interval 0.8 to 4.3)'
    >>> amount(Outcome("mae", "lower"), 0.126, math.nan, math.nan)
    '0.13 in mae'
    """
    values = [abs(value) for value in (mean, low, high) if math.isfinite(value)]
    leading = math.floor(math.log10(max(values))) if any(values) else 0
    digits = max(1, 1 - leading)
    units = {"rounds_to_target": "rounds", "time_to_target": "virtual seconds"}
    unit = "points" if outcome.is_share else units.get(outcome.metric, f"in {outcome.metric}")
    text = f"{mean:z.{digits}f} {unit}"
    if not math.isfinite(low):
        return text
    return f"{text} (95 % interval {low:z.{digits}f} to {high:z.{digits}f})"
