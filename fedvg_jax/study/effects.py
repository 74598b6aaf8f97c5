"""Every method against a baseline: paired comparisons, corrected over all of them, and what they say in sentences."""

from __future__ import annotations

import math

from fedvg_jax.study import cells, statistics
from fedvg_jax.study.cells import Choice, Scenario, Study
from fedvg_jax.study.statistics import LEVEL, Comparison
from fedvg_jax.views.labels import method_label


def compare_all(study: Study, baseline: str, choice: Choice) -> dict[tuple[str, Scenario], Comparison]:
    """Returns (method, scenario) -> comparison with the baseline, of all other methods; Holm corrects over all."""
    compared = {
        (method, scenario): statistics.compare(
            *(cells.results(study, study.cell(name, scenario), choice) for name in (method, baseline))
        )
        for scenario in study.scenarios
        for method in study.methods
        if method != baseline
    }
    by_t, by_wilcoxon = (statistics.holm([getattr(c, p) for c in compared.values()]) for p in ("t_p", "wilcoxon_p"))
    rows = zip(compared.items(), by_t, by_wilcoxon, strict=True)
    return {key: each._replace(t_p_holm=p_t, wilcoxon_p_holm=p_wilcoxon) for (key, each), p_t, p_wilcoxon in rows}


def outcome(study: Study, comparison: Comparison) -> str:
    """Returns "ahead" or "behind" where the corrected t test is significant, otherwise "undecided"."""
    if not comparison.t_p_holm < LEVEL:  # nor nan
        return "undecided"
    return "ahead" if study.sign * comparison.mean > 0 else "behind"


def findings(study: Study, baseline: str, choice: Choice) -> list[str]:
    """Returns a sentence for every scenario on the methods that are ahead, behind or undecided, and how it is decided.

    Returns [] for a study of one method.
    """
    compared, lines = compare_all(study, baseline, choice), []
    name = method_label(baseline)
    for scenario in study.scenarios:
        by_outcome: dict[str, list[str]] = {"ahead": [], "behind": [], "undecided": []}
        here = {method: effect for (method, s), effect in compared.items() if s == scenario and effect.n}
        for method, effect in sorted(here.items(), key=lambda item: -study.sign * item[1].mean):
            by_outcome[outcome(study, effect)].append(f"{method_label(method)} {_difference(study, effect)}")
        if any(by_outcome.values()):
            ahead = ", ".join(by_outcome.pop("ahead"))
            leading = f"ahead of {name}: {ahead}" if ahead else f"no method is ahead of {name}"
            others = [f"{word}: {', '.join(named)}" for word, named in by_outcome.items() if named]
            where = cells.scenario_text(scenario)
            said = "; ".join([leading, *others])
            lines.append(f"{where}: {said}." if where else f"{said[0].upper()}{said[1:]}.")
    if lines:
        lines.append(_how(study, [effect.n for effect in compared.values()], choice))
    return lines


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
