"""Every method against a baseline: paired comparisons, corrected over all of them, and what they say in sentences."""

from __future__ import annotations

import math

from fedvg_jax.config import method_title
from fedvg_jax.study import cells, statistics
from fedvg_jax.study.cells import Cell, Choice, Scenario, Study
from fedvg_jax.study.statistics import LEVEL, Comparison


def compare_all(study: Study, baseline: str, choice: Choice) -> dict[tuple[str, Scenario], Comparison]:
    """Returns (method, scenario) -> comparison with the baseline, of all other methods; Holm corrects over all.

    A comparison has no p value where runs of the method or of the baseline diverged or failed: the others are chosen by
    their success.
    """
    compared = {}
    for scenario in study.scenarios:
        theirs = study.cell(baseline, scenario)
        for ours in (study.cell(method, scenario) for method in study.methods if method != baseline):
            found = statistics.compare(*(cells.results(study, cell, choice) for cell in (ours, theirs)))
            if ours.failures or theirs.failures:
                found = found._replace(t_p=math.nan, wilcoxon_p=math.nan, wilcoxon_p_greater=math.nan)
            compared[ours.method, scenario] = found
    by_t, by_wilcoxon = (statistics.holm([getattr(c, p) for c in compared.values()]) for p in ("t_p", "wilcoxon_p"))
    rows = zip(compared.items(), by_t, by_wilcoxon, strict=True)
    return {key: each._replace(t_p_holm=p_t, wilcoxon_p_holm=p_wilcoxon) for (key, each), p_t, p_wilcoxon in rows}


def outcome(study: Study, comparison: Comparison) -> str:
    """Returns "ahead" or "behind" where the corrected t test is significant, otherwise "undecided"."""
    if not comparison.t_p_holm < LEVEL:  # nor nan
        return "undecided"
    return "ahead" if study.sign * comparison.mean > 0 else "behind"


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
        lines.append(_how(study, [effect.n for effect in compared.values()], choice))
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


def _how(study: Study, counts: list[int], choice: Choice) -> str:
    """Returns a sentence on what is compared, and when it is significant."""
    pairs = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    unit = "points of test accuracy" if study.metric == "accuracy" else "test loss"
    return (
        f"Mean differences in {unit} and 95 % intervals, {cells.choice_name(study, choice)}, paired by seed"
        f" (n = {pairs}). Ahead or behind: p < {LEVEL:g} in paired t tests after Holm's correction."
    )
