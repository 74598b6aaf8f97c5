"""Paired comparisons of methods by SciPy, corrected over all of a study, and what they say in sentences."""

from __future__ import annotations

import collections
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from fedvg_jax.config import method_title
from fedvg_jax.study.groups import NOT_FINITE, Frame, Group, Study, span
from fedvg_jax.study.outcomes import Choice, Outcome
from fedvg_jax.study.places import Seeds, condition_text

LEVEL = 0.05
"""Significance level."""

EXACT_UP_TO = 14
"""Most differences for which all sign patterns are enumerated, where ties rule out SciPy's exact table."""

ROUNDING = 1e-8
"""Differences that vary by less than this part of the largest result are equal: results have nine digits."""

Alternative = Literal["two-sided", "greater"]


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
    wilcoxon_p: float
    """Two-sided p of the signed-rank test."""


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean and the sample standard deviation; nan for the deviation of one value.

    >>> mean_and_std([1.0, 2.0, 3.0])
    (2.0, 1.0)
    """
    if not values:
        return math.nan, math.nan
    std = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return float(np.mean(values)), std


def compare(ours: Mapping[Seeds, float], theirs: Mapping[Seeds, float]) -> Comparison:
    """Returns the comparison of two methods over the seeds that both have.

    >>> comparison = compare({(s, 42): s + 2.0 for s in range(3)}, {(s, 42): 2.0 * s for s in range(3)})
    >>> comparison.n, comparison.mean  # differences 2, 1, 0; t(0.975, 2 degrees of freedom) = 4.303
    (3, 1.0)
    >>> [round(limit, 3) for limit in comparison.t_interval]
    [-1.484, 3.484]
    """
    shared = sorted(ours.keys() & theirs.keys())
    first = np.array([ours[seeds] for seeds in shared])
    second = np.array([theirs[seeds] for seeds in shared])
    differences = first - second
    tolerance = ROUNDING * np.abs([first, second]).max(initial=0)
    mean = float(differences.mean()) if shared else math.nan
    interval, t_p = _t_test(differences, tolerance)
    return Comparison(len(shared), mean, interval, t_p, wilcoxon(differences))


def _t_test(differences: np.ndarray, tolerance: float) -> tuple[tuple[float, float], float]:
    """Returns the 95 % limits and the two-sided p of the paired t test.

    Differences that are equal up to the tolerance have no deviation: their interval is a point, and p is nan unless
    they are 0.
    """
    from scipy import stats

    if len(differences) < 2:
        return (math.nan, math.nan), math.nan
    if np.ptp(differences) <= tolerance:
        value = float(differences.mean())
        return (value, value), 1.0 if abs(value) <= tolerance else math.nan
    result: Any = stats.ttest_1samp(differences, 0.0)
    interval = result.confidence_interval(1 - LEVEL)
    return (float(interval.low), float(interval.high)), float(result.pvalue)


def wilcoxon(differences: np.ndarray, alternative: Alternative = "two-sided") -> float:
    """Returns the p value of the signed-rank test, exact for up to 50 differences without ties.

    Differences of 0 are dropped. With ties, all sign patterns are enumerated for up to `EXACT_UP_TO` differences; above
    that, SciPy's normal approximation is used.

    Args:
        differences: [n] float.
        alternative: "greater" tests whether the differences tend to be positive.

    Returns:
        The p value; 1 if all differences are 0, nan for none.

    >>> wilcoxon(np.array([1.0, 2.0, 3.0, 4.0, 5.0])), wilcoxon(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), "greater")
    (0.0625, 0.03125)
    """
    from scipy import stats

    if not len(differences):
        return math.nan
    nonzero = differences[differences != 0]
    if not len(nonzero):
        return 1.0
    has_ties = len(np.unique(np.abs(nonzero))) < len(nonzero)
    if has_ties and len(nonzero) <= EXACT_UP_TO:
        # of ranks, because stats.wilcoxon's own permutations made `benchmarks.table` take 400 s in place of 11
        ranks = (np.sign(nonzero) * stats.rankdata(np.abs(nonzero)),)
        signs = {"permutation_type": "samples", "n_resamples": 2**EXACT_UP_TO}
        result: Any = stats.permutation_test(ranks, np.sum, alternative=alternative, **signs)
    else:
        method = "asymptotic" if has_ties or len(nonzero) > 50 else "exact"
        result = stats.wilcoxon(nonzero, alternative=alternative, method=method)
    return float(result.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p values corrected by Holm over a family; nan stays nan and is not a member.

    >>> holm([0.01, float("nan"), 0.04])
    [0.02, nan, 0.04]
    """
    tested = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    corrected = [math.nan] * len(p_values)
    least = 0.0
    for rank, (p, i) in enumerate(tested):
        least = min(1.0, max(least, p * (len(tested) - rank)))
        corrected[i] = least
    return corrected


# --- the methods of a study

Pair = tuple[str, str]
"""(method, the method that it is compared with)"""


COLUMNS = [
    "condition",
    "method",
    "other",
    "n",
    "difference",
    "t_low",
    "t_high",
    "t_p",
    "wilcoxon_p",
]
COLUMNS += ["rounds", "is_whole"]
"""Columns of comparisons: position of the condition, the two methods, and fields of `Comparison`; their numbers of
rounds, "" where they are equal; and whether both have all their runs."""


@functools.lru_cache(4)
def compare_pairs(study: Study, pairs: tuple[Pair, ...], choice: Choice) -> Frame:
    """Returns a row for every pair of methods in every condition: one family, over which Holm corrects.

    Tables, findings and figures are made from it. A comparison has no p value where runs of one of the two methods have
    no result: the others are chosen by their success.

    Returns:
        A frame with `COLUMNS`, `t_p_holm`, `wilcoxon_p_holm`, and `outcome`: "ahead" or "behind" where
        the corrected t test is significant, otherwise "undecided".
    """
    import pandas

    places = itertools.product(range(len(study.conditions)), pairs)
    rows = [_compared(study, position, pair, choice) for position, pair in places]
    frame: Frame = pandas.DataFrame(rows, columns=COLUMNS)
    for name in ("t_p", "wilcoxon_p"):
        frame[f"{name}_holm"] = holm(frame[name])
    is_significant = frame["t_p_holm"] < LEVEL
    is_better = study.outcome.sign * frame["difference"] > 0
    frame["outcome"] = np.select(
        [is_significant & is_better, is_significant], ["ahead", "behind"], "undecided"
    )
    return frame


def _compared(study: Study, position: int, pair: Pair, choice: Choice) -> tuple:
    """Returns a method in comparison with another one in a condition, without correction."""
    ours, theirs = (study.group(method, study.conditions[position]) for method in pair)
    comparison = compare(ours.results(choice), theirs.results(choice))
    if ours.losses(choice) or theirs.losses(choice):
        comparison = comparison._replace(t_p=math.nan, wilcoxon_p=math.nan)
    is_whole = all(group.is_whole(choice) for group in (ours, theirs))
    rounds = "" if ours.rounds == theirs.rounds else f"{ours.rounds} against {theirs.rounds}"
    n, mean, limits, *p_values = comparison
    return position, *pair, n, mean, *limits, *p_values, rounds, is_whole


def is_ahead(compared: Frame, method: str, position: int) -> bool:
    """Returns whether a method is ahead in every comparison in a condition in which both methods have all their runs.

    A method that lacks runs is not, and neither is one without comparisons.
    """
    known = compared[compared["is_whole"] & (compared["condition"] == position)]
    is_ours, is_theirs = known["method"] == method, known["other"] == method
    wins = (is_ours & (known["outcome"] == "ahead")) | (is_theirs & (known["outcome"] == "behind"))
    return bool(wins.any() and wins.sum() == (is_ours | is_theirs).sum())


def family(compared: Frame) -> str:
    """Returns a sentence on the comparisons that Holm's correction is over."""
    tested = compared["t_p"].count()
    if not tested:
        return "No comparison has a p value"
    return f"Holm corrects over {'one comparison' if tested == 1 else f'the {tested} comparisons'} of this study"


# --- sentences


def findings(study: Study, compared: Frame, choice: Choice) -> list[str]:
    """Returns what comparisons say, a line for every condition, and how the methods are compared; [] without any.

    A line names the methods with runs that have no result or stopped early, then the pairs in which one method is
    ahead of the other, the largest differences first, and then the pairs that are undecided.
    """
    known = compared[compared["n"] > 0]
    if known.empty:
        return []
    ordered = known.assign(lead=study.outcome.sign * known["difference"]).sort_values(
        "lead", ascending=False
    )
    lines = []
    for position, rows in ordered.groupby("condition"):
        condition = study.conditions[position]
        methods = {*rows["method"], *rows["other"]}
        sentences = [
            _remark(study, study.group(name, condition), choice)
            for name in study.methods
            if name in methods
        ]
        sentences += [
            _sentence(study, row) for row in rows.itertuples() if row.outcome != "undecided"
        ]
        undecided = [
            _pair_in_words(study, row) for row in rows.itertuples() if row.outcome == "undecided"
        ]
        sentences += [f"Undecided: {'; '.join(undecided)}."] if undecided else []
        where = condition_text(condition)
        lines.append(": ".join(filter(None, (where, " ".join(filter(None, sentences))))))
    what = (
        f"Mean differences in {study.outcome.difference_unit}, {study.outcome.choice_name(choice)}"
    )
    test = f"Ahead or behind: p < {LEVEL:g} in paired t tests. {family(compared)}"
    return [*lines, f"{what}, paired by seed (n = {span(known['n'])}). {test}."]


def _remark(study: Study, group: Group, choice: Choice) -> str:
    """Returns a sentence on the runs of a method that have no result or stopped early; "" where there are none."""
    title = method_title(group.method)
    counts = collections.Counter(group.losses(choice))
    counts["stopped early"] = len(group.lines("stopped"))
    counts["missing"] = len(group.lines("missing"))
    verbs = {NOT_FINITE: f"had no finite {study.outcome.title}", "missing": f"{_be(title)} missing"}
    parts = [
        f"{verbs.get(kind, kind)} in {count} of {len(group.rows)} runs"
        for kind, count in counts.items()
        if count
    ]
    return f"{title} {' and '.join(parts)}." if parts else ""


def _be(title: str) -> str:
    """Returns the verb behind the title of a method.

    >>> _be("FedVG"), _be("uniform weights, lr 0.1"), _be("FedProx with FedVG's weights")
    ('is', 'are', 'is')
    """
    name = title.partition(", ")[0]
    is_plural = name.endswith(" weights") and " with " not in name and not name.startswith("mean ")
    return "are" if is_plural else "is"


def _sentence(study: Study, row: Any) -> str:
    """Returns a decided comparison as a sentence."""
    ours, theirs = method_title(row.method), method_title(row.other)
    verdict = "ahead of" if row.outcome == "ahead" else "behind"
    sign = -1 if row.difference < 0 else 1
    low, high = sorted((sign * row.t_low, sign * row.t_high))
    size = amount(study.outcome, sign * row.difference, low, high)
    return f"{ours} {_be(ours)} {verdict} {theirs} by {size}{_after(row)}."


def _pair_in_words(study: Study, row: Any) -> str:
    """Returns an undecided comparison in words."""
    ours, theirs = method_title(row.method), method_title(row.other)
    size = amount(study.outcome, row.difference, row.t_low, row.t_high)
    return f"{ours} against {theirs}, {size}{_after(row)}"


def _after(row: Any) -> str:
    """Returns a remark on methods that have other numbers of rounds; "" otherwise."""
    return f", after {row.rounds} rounds" if row.rounds else ""


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
    unit = "points" if outcome.is_share else f"in {outcome.title}"
    text = f"{mean:z.{digits}f} {unit}"
    if not math.isfinite(low):
        return text
    return f"{text} (95 % interval {low:z.{digits}f} to {high:z.{digits}f})"
