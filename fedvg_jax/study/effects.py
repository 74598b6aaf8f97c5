"""Every method against a baseline: paired comparisons, corrected over all of them, and what they say in sentences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from fedvg_jax.config import method_title
from fedvg_jax.study import cells, statistics
from fedvg_jax.study.cells import Cell, Choice, Scenario, Study
from fedvg_jax.study.statistics import LEVEL, Comparison


def compare_all(study: Study, baseline: str, choice: Choice) -> dict[tuple[str, Scenario], Comparison]:
    """Returns (method, scenario) -> comparison with the baseline, of all other methods; see `compare_pairs`."""
    pairs = [(method, baseline) for method in study.methods if method != baseline]
    compared = compare_pairs(study, pairs, choice)
    return {(method, scenario): comparison for (method, _, scenario), comparison in compared.items()}


def all_pairs(study: Study) -> list[tuple[str, str]]:
    """Returns every pair of methods, the later one of the study first."""
    return [(later, earlier) for earlier, later in itertools.combinations(study.methods, 2)]


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
        found = statistics.compare(*(cells.results(study, cell, choice) for cell in both))
        if any(cell.failures for cell in both):
            found = found._replace(t_p=math.nan, wilcoxon_p=math.nan, wilcoxon_p_greater=math.nan)
        compared[*pair, scenario] = found
    by_t, by_wilcoxon = (statistics.holm([getattr(c, p) for c in compared.values()]) for p in ("t_p", "wilcoxon_p"))
    rows = zip(compared.items(), by_t, by_wilcoxon, strict=True)
    return {key: each._replace(t_p_holm=p_t, wilcoxon_p_holm=p_wilcoxon) for (key, each), p_t, p_wilcoxon in rows}


def outcome(study: Study, comparison: Comparison) -> str:
    """Returns "ahead" or "behind" where the corrected t test is significant, otherwise "undecided"."""
    if not comparison.t_p_holm < LEVEL:  # nor nan
        return "undecided"
    return "ahead" if study.sign * comparison.mean > 0 else "behind"


def findings_of_pairs(study: Study, choice: Choice) -> list[str]:
    """Returns a sentence for every scenario with the pairs of methods that are decided; [] for one method."""
    compared, lines = compare_pairs(study, all_pairs(study), choice), []
    for scenario in study.scenarios:
        of_scenario = [(pair, effect) for (*pair, s), effect in compared.items() if s == scenario and effect.n]
        decided = []
        for (ours, theirs), effect in of_scenario:
            if (word := outcome(study, effect)) != "undecided":
                first, second = map(method_title, (ours, theirs))
                decided.append(f"{first} {word}{' of' * (word == 'ahead')} {second} {_difference(study, effect)}")
        lost = [_lost(study, cell, choice) for m in study.methods if (cell := study.cell(m, scenario)).failures]
        open_pairs = len(of_scenario) - len(decided)
        said = "; ".join([*lost, *decided, f"{open_pairs} of {len(of_scenario)} pairs undecided"])
        if where := cells.scenario_text(scenario):
            said = f"{where}: {said}"
        lines.append(f"{said[0].upper()}{said[1:]}.")
    return [*lines, _how(study, list(compared.values()), choice)] if compared else []


def findings(study: Study, baseline: str, choice: Choice) -> list[str]:
    """Returns a sentence for every scenario, and how the methods are compared.

    It names the methods with runs that diverged or failed, and then those that are ahead, behind or undecided. Returns
    [] for a study of one method.
    """
    compared, lines = compare_all(study, baseline, choice), []
    for scenario in study.scenarios:
        by_outcome: dict[str, list[str]] = {"ahead": [], "behind": [], "undecided": []}
        lost = [_lost(study, cell, choice) for m in study.methods if (cell := study.cell(m, scenario)).failures]
        whole = {m: c for (m, s), c in compared.items() if s == scenario and c.n and not study.cell(m, s).failures}
        for method, effect in sorted(whole.items(), key=lambda item: -study.sign * item[1].mean):
            by_outcome[outcome(study, effect)].append(f"{method_title(method)} {_difference(study, effect)}")
        if whole or (lost and len(study.methods) > 1):
            name, ahead = method_title(baseline), ", ".join(by_outcome.pop("ahead"))
            leading = f"ahead of {name}: {ahead}" if ahead else f"no method is ahead of {name}"
            others = [f"{word}: {', '.join(named)}" for word, named in by_outcome.items() if named]
            where, said = cells.scenario_text(scenario), "; ".join([*lost, leading, *others])
            lines.append(f"{where}: {said}." if where else f"{said[0].upper()}{said[1:]}.")
    if lines:
        lines.append(_how(study, list(compared.values()), choice))
    return lines


def _lost(study: Study, cell: Cell, choice: Choice) -> str:
    """Returns how many runs of a method ended without a result."""
    verb = "failed" if any(": failed" in line for line in cell.failures) else "diverged"
    total = len(cell.failures) + len(cells.results(study, cell, choice))
    return f"{method_title(cell.method)} {verb} in {len(cell.failures)} of {total} runs"


def _difference(study: Study, effect: Comparison) -> str:
    """Returns a difference with its interval, such as "+1.20 [+0.40, +2.00]"."""
    mean, low, high = (f"{v:+.{study.digits}f}" for v in (effect.mean, *effect.t_interval))
    return f"{mean} [{low}, {high}]" if math.isfinite(effect.t_interval[0]) else mean


def _how(study: Study, compared: Sequence[Comparison], choice: Choice) -> str:
    """Returns a sentence on what is compared, and when it is significant."""
    counts = [effect.n for effect in compared]
    pairs = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return (
        f"Mean differences in {study.difference_unit} and 95 % intervals, {cells.choice_name(study, choice)}, paired"
        f" by seed (n = {pairs}). Ahead or behind: p < {LEVEL:g} in paired t tests after Holm's correction over"
        f" {family(compared)}."
    )


def family(compared: Sequence[Comparison]) -> str:
    """Returns which comparisons Holm's correction is over, in words."""
    tested = sum(not math.isnan(effect.t_p) for effect in compared)
    return f"the {tested} comparisons of this study that have a p value" if tested != 1 else "one comparison"
