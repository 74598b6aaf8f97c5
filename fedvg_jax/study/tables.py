"""The tables of a report: accuracy, choice of the round, effect against a baseline, and cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.config import method_title
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs.record.history import CLIENT_ACCURACIES
from fedvg_jax.study import cells, statistics
from fedvg_jax.study.cells import CHOICES, Cell, Choice, Run, Scenario, Study
from fedvg_jax.study.markup import Entry, Row, Table, label, number, p_value, spread
from fedvg_jax.views import output

INCOMPLETE, FAILED = "†", "‡"
"""Marks of cells that lack runs, and of cells with runs that diverged or failed."""

ALL = "all"
"""The baseline with which every pair of methods is compared."""


class Options(NamedTuple):
    """What the tables compare with."""

    baseline: str
    """Name of a method of the study."""
    target: float | None = None
    """Test accuracy in percent, or loss; None for the baseline's mean in the final round."""
    choice: Choice = "final"
    """The evaluation that stands for a run, in the tables of accuracy and of effects."""
    every_pair: bool = False
    """Whether all pairs of methods are compared, in place of all others with the baseline."""

    def pairs(self, study: Study) -> list[tuple[str, str]]:
        """Returns the pairs of methods that are compared, the later one of every pair first."""
        if self.every_pair:
            return [(later, earlier) for earlier, later in itertools.combinations(study.methods, 2)]
        return [(method, self.baseline) for method in study.methods if method != self.baseline]


def options(
    study: Study, baseline: str | None = None, target: float | None = None, choice: Choice = "final"
) -> Options:
    """Returns the options of the tables.

    Args:
        study: what is reported.
        baseline: a method, as `--method` takes it or as the tables print it; "all" for every pair of methods; None for
            fedavg, or the first method without it.
        target: test accuracy from 0 to 1, or loss; None for the baseline's mean in the final round.
        choice: of the evaluation that stands for a run.

    Raises:
        UsageError: the study has no such method, or the target is not an accuracy.
    """
    default = "fedavg" if "fedavg" in study.methods else study.methods[0]
    every_pair = baseline == ALL and ALL not in study.methods
    names = {name.casefold(): known for known in study.methods for name in (known, method_title(known))}
    named = default if baseline is None or every_pair else names.get(baseline.casefold())
    if named is None:
        listed = ", ".join(map(repr, study.methods))
        raise UsageError(f"no method {str(baseline)[:100]!r} to compare with; the runs have {listed}")
    if target is not None and study.unit > 1 and not 0 < target <= 1:
        raise UsageError(f"--target must be an accuracy in (0, 1]; got {target:g}")
    return Options(named, None if target is None else study.unit * target, choice, every_pair)


def all_tables(study: Study, chosen: Options) -> list[Table]:
    """Returns every table that the study has values for."""
    compared = (pairs if chosen.every_pair else effects)(study, chosen) if len(study.methods) > 1 else None
    made = (accuracy(study, chosen.choice), choices(study), clients(study), compared, cost(study, chosen))
    return [table for table in made if table]


def metric_name(study: Study) -> str:
    """Returns the metric with its unit."""
    return f"{study.metric_title}, %" if study.unit > 1 else study.metric_title


# --- accuracy


def accuracy(study: Study, choice: Choice = "final") -> Table:
    """Returns mean and deviation at a choice of the round: a row per method, a column per value of its setting."""
    column, groups = cells.column_setting(study), cells.panels(study)
    values = dict.fromkeys(cells.column_value(study, scenario) for scenario in study.scenarios)
    titles = {value: f"{column} {cells.value_text(value)}" if column else metric_name(study) for value in values}
    rows: list[Row] = []
    for rest, scenarios in groups.items():
        by_title = {titles[cells.column_value(study, scenario)]: scenario for scenario in scenarios}
        lead = _setting(rest) if len(groups) > 1 else {}
        ranked = {title: _ranked(study, by_title.get(title), choice, title) for title in titles.values()}
        rows += [lead | _method(m) | {title: of[m] for title, of in ranked.items()} for m in study.methods]
        largest = {
            title: cells.mean(
                cells.majority(study, m, by_title[title]) if title in by_title else None for m in study.methods
            )
            for title in titles.values()
        }
        if any(value is not None for value in largest.values()):
            shares = {title: number(f"{title} mean", value) for title, value in largest.items()}
            rows.append(lead | {"method": label("method", "always the largest class")} | shares)
    title = (
        f"{study.title}: {metric_name(study)}, {cells.choice_name(study, choice)}, mean ± standard deviation over runs"
    )
    return Table("accuracy", title, rows, (_counts(study, choice), *footnotes(study)))


def _ranked(study: Study, scenario: Scenario | None, choice: Choice, key: str) -> dict[str, Entry]:
    """Returns the entry of every method in a scenario, the best in bold where its lead over all others is significant.

    Cells that lack runs are neither bold nor compared with.
    """
    if scenario is None:
        return dict.fromkeys(study.methods, spread(key, math.nan, math.nan, 0)._replace(text=""))
    of_scenario = {method: study.cell(method, scenario) for method in study.methods}
    entries = {m: marked(spread_of(study, cell, key, choice), cell) for m, cell in of_scenario.items()}
    unmarked = {m: cells.results(study, cell, choice) for m, cell in of_scenario.items() if not marks(cell)}
    whole = {method: values for method, values in unmarked.items() if values}
    if len(whole) > 1:
        best = max(whole, key=lambda m: study.sign * statistics.mean_and_std(list(whole[m].values()))[0])
        others = [values for method, values in whole.items() if method != best]
        entries[best] = entries[best]._replace(is_bold=statistics.leads(whole[best], others))
    return entries


def spread_of(study: Study, cell: Cell, key: str = "", choice: Choice = "final") -> Entry:
    """Returns mean and deviation of a cell."""
    values = list(cells.results(study, cell, choice).values())
    return spread(key, *statistics.mean_and_std(values), len(values), study.digits)


def marks(cell: Cell) -> str:
    """Returns the marks of the footnotes of a cell."""
    return INCOMPLETE * bool(cell.missing) + FAILED * bool(cell.failures)


def marked(entry: Entry, cell: Cell) -> Entry:
    """Returns an entry with the marks of a cell behind its text, which the CSV file has not."""
    return entry._replace(text=f"{entry.text} {marks(cell)}".rstrip())


def _counts(study: Study, choice: Choice) -> str:
    """Returns a line with the number of runs with a result per cell, and when one is bold."""
    counts = sorted({len(cells.results(study, cell, choice)) for cell in study.cells.values()})
    text = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return (
        f"n = {text} runs per cell. Bold: ahead of every other method with all its runs, paired t tests after Holm's"
        f" correction, p < {statistics.LEVEL:g}."
    )


def footnotes(study: Study) -> list[str]:
    """Returns a line for every run that is missing, incomplete, diverged or failed, and the notes of the study."""
    missing = [f"{INCOMPLETE} {line}" for cell in study.cells.values() for line in cell.missing]
    failures = [f"{FAILED} {line}" for cell in study.cells.values() for line in cell.failures]
    return missing + failures + [f"Note: {note}." for note in study.notes]


# --- rows of one scenario and method each


def _method(method: str) -> Row:
    """Returns the name of a method: as a paper prints it, and in the CSV file as `--method` takes it."""
    return {"method": label("method", method, method_title(method))}


def _setting(scenario: Scenario) -> Row:
    """Returns the text of a scenario; some may have none of the settings that the others have."""
    return {"setting": label("setting", cells.scenario_text(scenario) or "none")}


def per_cell(study: Study, entries: Callable[[Cell], Row], skip: str = "") -> list[Row]:
    """Returns a row per scenario and method: their names, and the entries of the cell.

    Args:
        study: what is reported.
        entries: of a cell, by column.
        skip: method without rows.
    """
    rows = []
    for scenario, method in itertools.product(study.scenarios, study.methods):
        if method != skip:
            cell = study.cell(method, scenario)
            lead = _setting(scenario) if len(study.scenarios) > 1 else {}
            rows.append(lead | {"method": marked(_method(method)["method"], cell)} | entries(cell))
    return rows


def choices(study: Study) -> Table:
    """Returns the final round, the round best on validation and the maximum side by side."""

    def entries(cell: Cell) -> Row:
        row = {cells.choice_name(study, choice): spread_of(study, cell, choice, choice) for choice in CHOICES}
        largest = number("majority", cells.majority(study, cell.method, cell.scenario))
        return row | ({"always the largest class": largest} if study.metric == "accuracy" else {})

    selected = sorted({run.config.best_on for run in study.runs})
    notes = (
        f"Validation is {', or '.join(output.SELECTED_ON[name] for name in selected)}.",
        *footnotes(study),
    )
    title = f"{study.title}: {metric_name(study)}, by the choice of the round"
    return Table("choices", title, per_cell(study, entries), notes)


MODELS = dict(zip(CLIENT_ACCURACIES, ("global", "own", "fine-tuned"), strict=True))
"""Accuracies of clients in a record -> the model whose accuracies they are."""


def clients(study: Study) -> Table | None:
    """Returns mean, worst decile and spread of the clients' accuracies under each model; None where none is recorded.

    Of the final rounds, in percent, as means over the runs; a dash where some run of the cell has not recorded it.
    """

    def entry(cell: Cell, key: str) -> Entry:
        recorded = [run.records[-1].get(key) for run in cell.runs.values()]
        mean = None if None in recorded else cells.mean(recorded)
        return number(key, None if mean is None else 100 * mean)

    titles = {
        key: f"{MODELS[name]}: {title}"
        for name, keys in CLIENT_ACCURACIES.items()
        for key, title in zip(keys, ("mean", "worst decile", "spread"), strict=True)
        if any(key in run.records[-1] for run in study.runs)
    }
    if not titles:
        return None
    titles = {"test_accuracy": "global, all test rows"} | titles
    rows = per_cell(study, lambda cell: {title: entry(cell, key) for key, title in titles.items()})
    notes = (
        "Accuracies of the clients, each on its own test rows, in the final round. Own: of personal models, of the"
        " global model with the client's tensors, or of the global model for a method without either. Worst"
        " decile: mean of the lowest tenth of the clients. Spread: standard deviation over clients.",
        *footnotes(study),
    )
    return Table("clients", f"{study.title}: accuracy over clients, %", rows, notes)


P_VALUES = {
    "t_p": "p, t test",
    "t_p_holm": "p, t, Holm",
    "wilcoxon_p": "p, Wilcoxon",
    "wilcoxon_p_greater": "p, Wilcoxon, one-sided",
    "wilcoxon_p_holm": "p, Wilcoxon, Holm",
}
"""Field of `Comparison` -> its column."""


def _family(study: Study, compared: Sequence[statistics.Comparison], what: str) -> str:
    where = " in every setting" * (len(study.scenarios) > 1)
    return f"Holm corrects over {statistics.family(compared)}: every {what}{where}."


def effects(study: Study, chosen: Options) -> Table:
    """Returns every method against the baseline: paired differences, intervals and p values corrected by Holm."""
    compared = statistics.compare_pairs(study, chosen.pairs(study), chosen.choice)

    def entries(cell: Cell) -> Row:
        effect = compared[cell.method, chosen.baseline, cell.scenario]
        difference, low, high = (
            number(key, value, study.digits, signed=True)
            for key, value in zip(("difference", "t_low", "t_high"), (effect.mean, *effect.t_interval), strict=True)
        )
        has_limits = math.isfinite(effect.t_interval[0])
        interval = Entry(f"[{low.text}, {high.text}]" if has_limits else "–", {**low.values, **high.values})
        row = {"n": number("n", effect.n, 0), "difference": difference, "95 % t interval": interval}
        return row | {title: p_value(name, getattr(effect, name)) for name, title in P_VALUES.items()}

    baseline = method_title(chosen.baseline)
    notes = (
        f"Differences are method minus {baseline}, {cells.choice_name(study, chosen.choice)}, paired by seed and"
        f" partition seed. {_family(study, list(compared.values()), f'method with {baseline}')} One-sided tests whether"
        " the method's values are larger than the baseline's. Where runs diverged or failed, there is no test: the"
        " others are chosen by their success.",
        *footnotes(study),
    )
    title = f"{study.title}: effect against {baseline}, {study.difference_unit}"
    return Table("effects", title, per_cell(study, entries, skip=chosen.baseline), notes)


def pairs(study: Study, chosen: Options) -> Table:
    """Returns every pair of methods as a triangle: row minus column, with intervals and p values corrected by Holm."""
    compared = statistics.compare_pairs(study, chosen.pairs(study), chosen.choice)

    def entry(cell: Cell, other: str) -> Entry:
        effect = compared.get((cell.method, other, cell.scenario), statistics.compare({}, {}))
        values = dict(zip(("difference", "t_low", "t_high"), (effect.mean, *effect.t_interval), strict=True))
        mean, low, high = (number("", value, study.digits, signed=True).text for value in values.values())
        text = f"{mean} [{low}, {high}], p {p_value('', effect.t_p_holm).text}" if effect.n else "–"
        values |= {name: getattr(effect, name) for name in ("t_p", "t_p_holm", "wilcoxon_p_holm")}
        is_lower = study.methods.index(cell.method) > study.methods.index(other)
        held = {"n": effect.n if is_lower else None} | {n: v if math.isfinite(v) else None for n, v in values.items()}
        is_bold = effect.t_p_holm < statistics.LEVEL
        return Entry(text * is_lower, {f"{other} {name}": value for name, value in held.items()}, is_bold)

    rows = per_cell(
        study,
        lambda cell: {method_title(other): entry(cell, other) for other in study.methods[:-1]},
        skip=study.methods[0],
    )
    notes = (
        f"Row minus column, {cells.choice_name(study, chosen.choice)}, paired by seed and partition seed, with 95 % t"
        f" intervals. {_family(study, list(compared.values()), 'pair of methods')} Bold: p < {statistics.LEVEL:g}.",
        *footnotes(study),
    )
    return Table("pairs", f"{study.title}: every pair, {study.difference_unit}", rows, notes)


def cost(study: Study, chosen: Options) -> Table:
    """Returns accuracy beside rounds to the target, seconds and megabytes sent."""

    def entries(cell: Cell) -> Row:
        runs = list(cell.runs.values())
        base = cells.results(study, study.cell(chosen.baseline, cell.scenario))
        target = statistics.mean_and_std(list(base.values()))[0] if chosen.target is None else chosen.target
        sent = [cells.bytes_sent(run) for run in runs]
        row = {
            f"{metric_name(study)}, {CHOICES['final']}": spread_of(study, cell),
            "target": number("target", target, study.digits),
            "rounds to the target": _rounds([cells.rounds_to(study, r, target) for r in runs if math.isfinite(target)]),
            "seconds": number("seconds", cells.mean(map(cells.seconds, runs)), 1),
            "MB sent": number("megabytes", None if None in sent else cells.mean(s and s / 1e6 for s in sent), 1),
        }
        return row | ({"epsilon": number("epsilon", cells.mean(map(epsilon, runs)))} if _is_private(study) else {})

    default = f"the mean final result of {method_title(chosen.baseline)}; a dash where it has none"
    notes = (
        f"The target is {default if chosen.target is None else 'the one given'}. Rounds to the target are medians over"
        " runs; those that never reach it count as later than all. Seconds and MB sent are means over runs, of all"
        " rounds.",
        *footnotes(study),
    )
    return Table("cost", f"{study.title}: {study.metric_title} and cost", per_cell(study, entries), notes)


def epsilon(run: Run) -> float | None:
    """Returns the epsilon of a private run; None for another one."""
    return run.history.summary.get("epsilon")


def _is_private(study: Study) -> bool:
    return any(epsilon(run) is not None for run in study.runs)


def _rounds(reached: Sequence[int | None]) -> Entry:
    """Returns the median round over all runs, and the number of runs that do not reach the target.

    >>> _rounds([12, 20]).text, _rounds([12, 20, None]).text, _rounds([12, None, None]).text
    ('16', '20, not reached by 1 of 3', 'not reached by 2 of 3')
    """
    never = list(reached).count(None)
    median = float(np.median([math.inf if number is None else number for number in reached] or [math.inf]))
    lead = f"{median:g}" if math.isfinite(median) else ""
    text = ", ".join(filter(None, (lead, f"not reached by {never} of {len(reached)}" if never else "")))
    return Entry(
        text or "–",
        {"rounds_to_target": median if lead else None, "reached": len(reached) - never if reached else None},
    )


# --- runs


def runs(study: Study) -> Table:
    """Returns one row per run and one column per value, for statistics of one's own."""
    values_of_runs: list[dict[str, Any]] = []
    for scenario, method in itertools.product(study.scenarios, study.methods):
        cell = study.cell(method, scenario)
        by_choice = {choice: cells.results(study, cell, choice) for choice in CHOICES}
        for (seed, partition_seed), run in sorted(cell.runs.items()):
            row = {"method": method, "seed": seed, "partition_seed": partition_seed}
            row |= {choice: values.get((seed, partition_seed)) for choice, values in by_choice.items()}
            row |= {"majority": cells.majority_of_run(run), "rounds": len(run.records)}
            row |= {"seconds": cells.seconds(run), "bytes_sent": cells.bytes_sent(run)}
            row |= {"epsilon": epsilon(run)} if _is_private(study) else {}
            values_of_runs.append(
                row | {n: v for n, v in {**cells.last_outcomes(run), **dict(scenario)}.items() if n not in row}
            )
    names = dict.fromkeys([*cells.settings(study), *(name for row in values_of_runs for name in row)])
    rows = [{name: _value(name, row.get(name)) for name in names} for row in values_of_runs]
    return Table("runs", f"{study.title}: {metric_name(study)} of every run", rows)


def _value(name: str, value: Any) -> Entry:
    """Returns the entry of a setting's or a run's value; None is empty."""
    return Entry("–" if value is None else cells.value_text(value), {name: value})
