"""Paired comparisons of methods by SciPy, corrected over all of a study, and what they say in sentences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from fedvg_jax.config import method_title
from fedvg_jax.study import cells
from fedvg_jax.study.cells import Cell, Choice, Replicate, Scenario, Study

LEVEL = 0.05
"""Significance level."""

EXACT_UP_TO = 14
"""Most differences for which all sign patterns are enumerated, where ties rule out SciPy's exact table."""

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
    wilcoxon_p_greater: float
    """One-sided p of the signed-rank test: the method's values are larger."""
    t_p_holm: float = math.nan
    """`t_p` corrected over a family of comparisons."""
    wilcoxon_p_holm: float = math.nan


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean and the sample standard deviation; nan for the deviation of one value.

    >>> mean_and_std([1.0, 2.0, 3.0])
    (2.0, 1.0)
    """
    if not values:
        return math.nan, math.nan
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def paired_differences(ours: Mapping[Replicate, float], theirs: Mapping[Replicate, float]) -> np.ndarray:
    """Returns ours - theirs for the replicates that both have, [n] float.

    Results have nine digits. Differences are rounded to the eighth digit of the largest result, because equal
    differences must tie.

    >>> paired_differences({(0, 1): 3.0, (1, 1): 2.0}, {(1, 1): 1.5, (2, 1): 0.0}).tolist()
    [0.5]
    >>> paired_differences({(0, 1): 50.2272727, (1, 1): 50.4545455}, {(0, 1): 50.0, (1, 1): 50.2272727}).tolist()
    [0.227273, 0.227273]
    """
    pairs = np.array([(ours[r], theirs[r]) for r in sorted(ours.keys() & theirs.keys())]).reshape(-1, 2)
    largest = np.abs(pairs).max(initial=0, where=np.isfinite(pairs))
    decimals = 8 - math.ceil(math.log10(largest)) if largest else 0
    return np.round(pairs[:, 0] - pairs[:, 1], decimals)


def compare(ours: Mapping[Replicate, float], theirs: Mapping[Replicate, float]) -> Comparison:
    """Returns the comparison of two methods over the replicates that both have.

    >>> comparison = compare({(s, 42): s + 2.0 for s in range(3)}, {(s, 42): 2.0 * s for s in range(3)})
    >>> comparison.n, comparison.mean  # differences 2, 1, 0; t(0.975, 2 degrees of freedom) = 4.303
    (3, 1.0)
    >>> [round(limit, 3) for limit in comparison.t_interval]
    [-1.484, 3.484]
    """
    differences = paired_differences(ours, theirs)
    mean = float(differences.mean()) if len(differences) else math.nan
    interval, t_p = _t_test(differences)
    p_values = wilcoxon(differences), wilcoxon(differences, "greater")
    return Comparison(len(differences), mean, interval, t_p, *p_values)


def _t_test(differences: np.ndarray) -> tuple[tuple[float, float], float]:
    """Returns the 95 % limits and the two-sided p of the paired t test.

    Equal differences have no deviation: their interval is a point, and p is nan unless they are 0.
    """
    from scipy import stats

    if len(differences) < 2:
        return (math.nan, math.nan), math.nan
    if np.ptp(differences) == 0:
        value = float(differences[0])
        return (value, value), 1.0 if value == 0 else math.nan
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
    corrected, least = [math.nan] * len(p_values), 0.0
    for rank, (p, i) in enumerate(tested):
        corrected[i] = least = min(1.0, max(least, p * (len(tested) - rank)))
    return corrected


def leads(best: Mapping[Replicate, float], others: Sequence[Mapping[Replicate, float]]) -> bool:
    """Returns whether one method differs significantly from every other one, by paired t tests corrected by Holm.

    >>> best, near, far = (dict(zip([(0, 0), (1, 0), (2, 0)], row)) for row in ([9, 8, 8], [9, 7, 9], [1, 0, 1]))
    >>> leads(best, [far]), leads(best, [near, far])
    (True, False)
    """
    return all(p < LEVEL for p in holm([compare(best, other).t_p for other in others]))  # not so for nan


# --- the methods of a study


def compare_pairs(
    study: Study, pairs: Sequence[tuple[str, str]], choice: Choice
) -> dict[tuple[str, str, Scenario], Comparison]:
    """Returns (method, other, scenario) -> comparison of a method with the other; Holm corrects over all of them.

    A comparison has no p value where runs of one of the two methods diverged or failed: the others are chosen by
    their success.
    """
    compared = {}
    for scenario, pair in itertools.product(study.scenarios, pairs):
        both = [study.cell(method, scenario) for method in pair]
        comparison = compare(*(cells.results(study, cell, choice) for cell in both))
        if any(cell.failures for cell in both):
            comparison = comparison._replace(t_p=math.nan, wilcoxon_p=math.nan, wilcoxon_p_greater=math.nan)
        compared[*pair, scenario] = comparison
    by_t, by_wilcoxon = (holm([getattr(c, p) for c in compared.values()]) for p in ("t_p", "wilcoxon_p"))
    rows = zip(compared.items(), by_t, by_wilcoxon, strict=True)
    return {key: each._replace(t_p_holm=p_t, wilcoxon_p_holm=p_wilcoxon) for (key, each), p_t, p_wilcoxon in rows}


def outcome(study: Study, comparison: Comparison) -> str:
    """Returns "ahead" or "behind" where the corrected t test is significant, otherwise "undecided"."""
    if not comparison.t_p_holm < LEVEL:  # nor nan
        return "undecided"
    return "ahead" if study.sign * comparison.mean > 0 else "behind"


def findings(study: Study, pairs: Sequence[tuple[str, str]], choice: Choice) -> list[str]:
    """Returns a sentence for every scenario, and how the methods are compared; [] without pairs.

    It names the methods with runs that diverged or failed, then the pairs in which one method is ahead of the other,
    the largest differences first, and then the others, or their number where they are many.
    """
    compared, lines = compare_pairs(study, pairs, choice), []
    for scenario in study.scenarios if pairs else ():
        texts: dict[str, list[str]] = {word: [] for word in WORDS}
        mine = [(pair, each) for (*pair, where), each in compared.items() if where == scenario and each.n]
        for (ours, theirs), each in sorted(mine, key=lambda item: -study.sign * item[1].mean):
            text = f"{method_title(ours)} {WORDS[outcome(study, each)]} {method_title(theirs)}"
            texts[outcome(study, each)].append(f"{text} {_difference(study, each)}")
        lost = [_lost(study, cell, choice) for m in study.methods if (cell := study.cell(m, scenario)).failures]
        undecided, decided = texts.pop("undecided"), [*lost, *texts["ahead"], *texts["behind"]]
        if len(undecided) > MAX_UNDECIDED:
            undecided = [f"{len(undecided)} of {len(mine)} comparisons"]
        if undecided:
            verdict = "undecided" if decided else "No difference is decided"
            decided.append(f"{verdict}: {', '.join(undecided)}")
        text, where = "; ".join(decided), cells.scenario_text(scenario)
        lines += [f"{where}: {text}." if where else f"{text}."] if text else []
    return [*lines, _how(study, list(compared.values()), choice)] if lines else []


WORDS = {"ahead": "ahead of", "behind": "behind", "undecided": "against"}
"""Outcome of a comparison -> the words between two methods."""

MAX_UNDECIDED = 3
"""Most undecided comparisons that findings name."""


def _lost(study: Study, cell: Cell, choice: Choice) -> str:
    """Returns how many runs of a method ended without a result."""
    verb = "failed" if any(": failed" in line for line in cell.failures) else "diverged"
    total = len(cell.failures) + len(cells.results(study, cell, choice))
    return f"{method_title(cell.method)} {verb} in {len(cell.failures)} of {total} runs"


def _difference(study: Study, effect: Comparison) -> str:
    """Returns a difference with its interval, such as "+1.20 [+0.40, +2.00]"; one pair of runs has no interval."""
    mean, low, high = (f"{v:+.{study.digits}f}" for v in (effect.mean, *effect.t_interval))
    return f"{mean} [{low}, {high}]" if math.isfinite(effect.t_interval[0]) else mean


def _how(study: Study, compared: Sequence[Comparison], choice: Choice) -> str:
    """Returns a sentence on what is compared, and when it is significant."""
    counts = sorted({effect.n for effect in compared})
    return (
        f"Mean differences in {study.difference_unit} and 95 % intervals, {cells.choice_name(study, choice)}, paired"
        f" by seed (n = {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))}). Ahead or behind: p <"
        f" {LEVEL:g} in paired t tests after Holm's correction over {family(compared)}."
    )


def family(compared: Sequence[Comparison]) -> str:
    """Returns which comparisons Holm's correction is over, in words."""
    tested = sum(not math.isnan(effect.t_p) for effect in compared)
    return f"the {tested} comparisons of this study that have a p value" if tested != 1 else "one comparison"
