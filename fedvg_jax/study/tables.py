"""The tables of a report: accuracy, choice of the round, effect against a baseline, and cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.config import method_title
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs.record.history import CLIENT_ACCURACIES
from fedvg_jax.study import cells, statistics
from fedvg_jax.study.cells import CHOICES, Cell, Choice, Run, Scenario, Study
from fedvg_jax.study.effects import all_pairs, compare_all, compare_pairs, family
from fedvg_jax.study.markup import Column, Entry, Table, number, p_value, spread
from fedvg_jax.views import output

NAMES = ("accuracy", "choices", "clients", "effects", "pairs", "cost", "runs")
"""Stems of the files of all tables."""

INCOMPLETE, FAILED, UNRECORDED = "†", "‡", "§"
"""Marks of cells that lack runs, of cells with runs that diverged or failed, and of values that some runs lack."""

NO_NUMBERS = Entry("–", (None, None))
"""Entry of two numbers, such as the limits of an interval, where there are none."""

PUBLISHED_CHOICE = (
    "The published code reports the maximum: the best test accuracy among its evaluations, chosen on the test set."
    " It is optimistic."
)


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
    every_pair = baseline == ALL and ALL not in study.methods
    if every_pair:
        baseline = None
    if baseline is not None:
        baseline = _method_named(study, baseline)
    if target is not None and study.unit > 1 and not 0 < target <= 1:
        raise UsageError(f"--target must be an accuracy in (0, 1]; got {target:g}")
    default = "fedavg" if "fedavg" in study.methods else study.methods[0]
    return Options(baseline or default, None if target is None else study.unit * target, choice, every_pair)


def _method_named(study: Study, text: str) -> str:
    """Returns the method of the study that a text names, as `--method` or as the tables print it.

    Raises:
        UsageError: there is none.
    """
    for known in study.methods:
        if text.casefold() in (known.casefold(), method_title(known).casefold()):
            return known
    listed = ", ".join(map(repr, study.methods))
    raise UsageError(f"no method {text[:100]!r} to compare with; the runs have {listed}")


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
    column = cells.column_setting(study)
    groups = cells.panels(study)
    values = list(dict.fromkeys(cells.column_value(study, scenario) for scenario in study.scenarios))
    rows: list[tuple[Entry, ...]] = []
    for rest, scenarios in groups.items():
        by_value = {cells.column_value(study, scenario): scenario for scenario in scenarios}
        by_column = [_ranked(study, by_value.get(value), choice) for value in values]
        lead = [_setting(rest)] * (len(groups) > 1)
        rows += [
            (*lead, _method_entry(method), *(entries[i] for entries in by_column))
            for i, method in enumerate(study.methods)
        ]
        largest = [_majority_entry(study, by_value.get(value)) for value in values]
        if any(entry.numbers[0] is not None for entry in largest):
            rows.append((*lead, Entry("always the largest class"), *largest))
    headers = [f"{column} {cells.value_text(value)}" if column else metric_name(study) for value in values]
    columns = (*_lead(len(groups) > 1), *(Column(h, (f"{h} mean", f"{h} std", f"{h} n")) for h in headers))
    title = (
        f"{study.title}: {metric_name(study)}, {cells.choice_name(study, choice)}, mean ± standard deviation over runs"
    )
    return Table("accuracy", title, columns, tuple(rows), (_counts(study, choice), *footnotes(study)))


def _ranked(study: Study, scenario: Scenario | None, choice: Choice) -> list[Entry]:
    """Returns the entries of all methods in a scenario, the best in bold where its lead over all others is significant.

    Cells that lack runs are neither bold nor compared with.
    """
    if scenario is None:
        return [Entry("", (None, None, 0)) for _ in study.methods]
    of_scenario = [study.cell(method, scenario) for method in study.methods]
    entries = [marked(spread_of(study, cell, choice), cell) for cell in of_scenario]
    whole = {
        i: values for i, c in enumerate(of_scenario) if not marks(c) and (values := cells.results(study, c, choice))
    }
    if len(whole) > 1:
        best = max(whole, key=lambda i: study.sign * statistics.mean_and_std(list(whole[i].values()))[0])
        others = [values for i, values in whole.items() if i != best]
        entries[best] = entries[best]._replace(is_bold=statistics.leads(whole[best], others))
    return entries


def spread_of(study: Study, cell: Cell, choice: Choice = "final") -> Entry:
    """Returns mean and deviation of a cell."""
    values = list(cells.results(study, cell, choice).values())
    return spread(*statistics.mean_and_std(values), len(values), study.digits)


def marks(cell: Cell) -> str:
    """Returns the marks of the footnotes of a cell."""
    return INCOMPLETE * bool(cell.missing) + FAILED * bool(cell.failures)


def marked(entry: Entry, cell: Cell) -> Entry:
    """Returns an entry with the marks of a cell behind its text, which the CSV file has not."""
    return entry._replace(text=f"{entry.text} {marks(cell)}".rstrip())


def _majority_entry(study: Study, scenario: Scenario | None) -> Entry:
    shares = () if scenario is None else [cells.majority(study, method, scenario) for method in study.methods]
    value = cells.mean(shares)
    return Entry(number(value).text, (value, None, None))


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


def _method_entry(method: str) -> Entry:
    """Returns the entry of a method: as a paper prints it, and in the CSV file as `--method` takes it."""
    return Entry(method_title(method), key=method)


def _lead(several: bool) -> list[Column]:
    """Returns the first columns: the setting, where there are several, and the method."""
    return [Column("setting", ("setting",))] * several + [Column("method", ("method",))]


def _setting(scenario: Scenario) -> Entry:
    """Returns the entry of a scenario; some may have none of the settings that the others have."""
    return Entry(cells.scenario_text(scenario) or "none")


def per_cell(
    study: Study, columns: Sequence[Column], entries: Callable[[Cell], Sequence[Entry]], skip: str = ""
) -> tuple[tuple[Column, ...], tuple[tuple[Entry, ...], ...]]:
    """Returns the columns and rows of a table with a row per scenario and method.

    Args:
        study: what is reported.
        columns: after those of scenario and method.
        entries: of a cell, one per column.
        skip: method without rows.
    """
    several = len(study.scenarios) > 1
    rows = []
    for scenario in study.scenarios:
        for method in study.methods:
            if method != skip:
                cell = study.cell(method, scenario)
                first = [_setting(scenario)] * several + [marked(_method_entry(method), cell)]
                rows.append((*first, *entries(cell)))
    return (*_lead(several), *columns), tuple(rows)


def choices(study: Study) -> Table:
    """Returns the final round, the round best on validation and the maximum side by side."""
    names = {choice: cells.choice_name(study, choice) for choice in CHOICES}
    columns = [Column(name, (f"{choice} mean", f"{choice} std", f"{choice} n")) for choice, name in names.items()]
    columns += [Column("always the largest class", ("majority",))] if study.metric == "accuracy" else []

    def entries(cell: Cell) -> list[Entry]:
        largest = [number(cells.majority(study, cell.method, cell.scenario))] if study.metric == "accuracy" else []
        return [spread_of(study, cell, choice) for choice in CHOICES] + largest

    header, rows = per_cell(study, columns, entries)
    selected = sorted({run.config.best_on for run in study.runs})
    notes = (
        f"Validation is {', or '.join(output.SELECTED_ON[name] for name in selected)}.",
        *([PUBLISHED_CHOICE] if study.metric == "accuracy" else []),
        *footnotes(study),
    )
    return Table("choices", f"{study.title}: {metric_name(study)}, by the choice of the round", header, rows, notes)


MODELS = dict(zip(CLIENT_ACCURACIES, ("global", "own", "fine-tuned"), strict=True))
"""Accuracies of clients in a record -> the model whose accuracies they are."""


def clients(study: Study) -> Table | None:
    """Returns mean, worst decile and spread of the clients' accuracies under each model; None where none is recorded.

    Of the final rounds, in percent, as means over the runs that record them.
    """

    def entry(cell: Cell, key: str) -> Entry:
        recorded = [run.records[-1].get(key) for run in cell.runs.values()]
        shown = number(cells.mean(None if value is None else 100 * value for value in recorded))
        return shown._replace(text=f"{shown.text} {UNRECORDED}") if None in recorded else shown

    titles = {
        key: f"{MODELS[name]}: {title}"
        for name, keys in CLIENT_ACCURACIES.items()
        for key, title in zip(keys, ("mean", "worst decile", "spread"), strict=True)
        if any(key in run.records[-1] for cell in study.cells.values() for run in cell.runs.values())
    }
    if not titles:
        return None
    titles = {"test_accuracy": "global, all test rows"} | titles
    columns = [Column(title, (key,)) for key, title in titles.items()]
    header, rows = per_cell(study, columns, lambda cell: [entry(cell, key) for key in titles])
    is_marked = any(UNRECORDED in value.text for row in rows for value in row)
    notes = (
        "Accuracies of the clients, each on its own test rows, in the final round. Own: of personal models, of the"
        " global model with the client's tensors, or of the global model for a method without either. Worst"
        " decile: mean of the lowest tenth of the clients. Spread: standard deviation over clients.",
        *([f"{UNRECORDED} Not recorded by all runs; --record does."] if is_marked else []),
        *footnotes(study),
    )
    return Table("clients", f"{study.title}: accuracy over clients, %", header, rows, notes)


P_VALUES = {
    "t_p": "p, t test",
    "t_p_holm": "p, t, Holm",
    "wilcoxon_p": "p, Wilcoxon",
    "wilcoxon_p_greater": "p, Wilcoxon, one-sided",
    "wilcoxon_p_holm": "p, Wilcoxon, Holm",
}
"""Field of `Comparison` -> its column."""


def effects(study: Study, chosen: Options) -> Table:
    """Returns every method against the baseline: paired differences, intervals and p values corrected by Holm."""
    compared = compare_all(study, chosen.baseline, chosen.choice)

    def entries(cell: Cell) -> list[Entry]:
        comparison = compared[cell.method, cell.scenario]
        difference, low, high = (
            number(value, study.digits, signed=True) for value in (comparison.mean, *comparison.t_interval)
        )
        has_limits = low.numbers != (None,)
        interval = Entry(f"[{low.text}, {high.text}]", (*low.numbers, *high.numbers)) if has_limits else NO_NUMBERS
        p_values = [p_value(getattr(comparison, name)) for name in P_VALUES]
        return [number(comparison.n, 0), difference, interval, *p_values]

    columns = [
        Column("n", ("n",)),
        Column("difference", ("difference",)),
        Column("95 % t interval", ("t_low", "t_high")),
        *(Column(title, (name,)) for name, title in P_VALUES.items()),
    ]
    baseline = method_title(chosen.baseline)
    header, rows = per_cell(study, columns, entries, skip=chosen.baseline)
    counts = [each.n for each in compared.values() if each.n]
    # Holm multiplies only the smallest p by the size of the family, and more pairs may have it
    size = len(counts) if len(set(counts)) == 1 else 1
    warnings = [text for n in sorted(set(counts)) if (text := statistics.warning(n, size))]
    notes = (
        f"Differences are method minus {baseline}, {cells.choice_name(study, chosen.choice)}, paired by seed and"
        f" partition seed. Holm corrects over {family(list(compared.values()))}: every method with {baseline}"
        f"{' in every setting' * (len(study.scenarios) > 1)}. One-sided tests whether the"
        " method's values are larger than the baseline's. Where runs diverged or failed, there is no test: the others"
        " are chosen by their success.",
        *warnings,
        *footnotes(study),
    )
    return Table("effects", f"{study.title}: effect against {baseline}, {study.difference_unit}", header, rows, notes)


def pairs(study: Study, chosen: Options) -> Table:
    """Returns every pair of methods as a triangle: row minus column, with intervals and p values corrected by Holm."""
    compared = compare_pairs(study, all_pairs(study), chosen.choice)
    others, fields = study.methods[:-1], ("n", "difference", "t_low", "t_high", "t_p", "t_p_holm", "wilcoxon_p_holm")

    def entry(cell: Cell, other: str) -> Entry:
        if (found := compared.get((cell.method, other, cell.scenario))) is None:
            return Entry("", (None,) * len(fields))
        values = [found.mean, *found.t_interval, found.t_p, found.t_p_holm, found.wilcoxon_p_holm]
        shown = [number(value, study.digits, signed=True).text for value in values[:3]]
        numbers = [value if math.isfinite(value) else None for value in values]
        text = f"{shown[0]} [{shown[1]}, {shown[2]}], p {p_value(found.t_p_holm).text}" if found.n else "–"
        return Entry(text, (found.n, *numbers), found.t_p_holm < statistics.LEVEL)

    columns = [Column(method_title(m), tuple(f"{m} {field}" for field in fields)) for m in others]
    header, rows = per_cell(
        study, columns, lambda cell: [entry(cell, other) for other in others], skip=study.methods[0]
    )
    notes = (
        f"Row minus column, {cells.choice_name(study, chosen.choice)}, paired by seed and partition seed, with 95 % t"
        f" intervals. Holm corrects over {family(list(compared.values()))}: every pair of methods"
        f"{' in every setting' * (len(study.scenarios) > 1)}. Bold: p < {statistics.LEVEL:g}.",
        *footnotes(study),
    )
    return Table("pairs", f"{study.title}: every pair, {study.difference_unit}", header, rows, notes)


def cost(study: Study, chosen: Options) -> Table:
    """Returns accuracy beside rounds to the target, seconds and megabytes sent."""
    baseline = method_title(chosen.baseline)
    columns = [
        Column(f"{metric_name(study)}, {CHOICES['final']}", ("mean", "std", "n")),
        Column("target", ("target",)),
        Column("rounds to the target", ("rounds_to_target", "reached")),
        Column("seconds", ("seconds",)),
        Column("MB sent", ("megabytes",)),
        *[Column("epsilon", ("epsilon",))] * _is_private(study),
    ]

    def entries(cell: Cell) -> list[Entry]:
        runs = list(cell.runs.values())
        base = study.cell(chosen.baseline, cell.scenario)
        default, _ = statistics.mean_and_std(list(cells.results(study, base).values()))
        target = default if chosen.target is None else chosen.target
        reached = [r for run in runs if (r := cells.rounds_to(study, run, target)) is not None]
        sent = [cells.bytes_sent(run) for run in runs]
        return [
            spread_of(study, cell),
            number(target, study.digits),
            _rounds(reached, len(runs)) if runs and math.isfinite(target) else NO_NUMBERS,
            number(cells.mean(map(cells.seconds, runs)), 1),
            number(None if None in sent else cells.mean(size and size / 1e6 for size in sent), 1),
            *[number(cells.mean(map(epsilon, runs)))] * _is_private(study),
        ]

    header, rows = per_cell(study, columns, entries)
    default = f"the mean final result of {baseline}; a dash where it has none"
    target = default if chosen.target is None else "the one given"
    notes = (
        f"The target is {target}. Rounds to the target are medians over runs; those that never reach it count as later"
        " than all. Seconds and MB sent are means over runs, of all rounds.",
        *footnotes(study),
    )
    return Table("cost", f"{study.title}: {study.metric_title} and cost", header, rows, notes)


def epsilon(run: Run) -> float | None:
    """Returns the epsilon of a private run; None for another one."""
    return run.history.summary.get("epsilon")


def _is_private(study: Study) -> bool:
    return any(epsilon(run) is not None for run in study.runs)


def _rounds(reached: Sequence[int], num_runs: int) -> Entry:
    """Returns the median round over all runs, of which some may not reach the target, and their number.

    >>> _rounds([12, 20], 2).text, _rounds([12, 20], 3).text, _rounds([12], 3).text
    ('16', '20, not reached by 1 of 3', 'not reached by 2 of 3')
    """
    never = num_runs - len(reached)
    median = float(np.median([*reached, *[math.inf] * never]))
    lead = f"{median:g}" if math.isfinite(median) else ""
    text = ", ".join(filter(None, (lead, f"not reached by {never} of {num_runs}" if never else "")))
    return Entry(text, (median if lead else None, len(reached)))


# --- runs


def runs(study: Study) -> Table:
    """Returns one row per run and one column per value, for statistics of one's own."""
    varied = cells.settings(study)
    measured = ("method", "seed", "partition_seed", *CHOICES, "majority", "rounds", "seconds", "bytes_sent")
    measured += ("epsilon",) * _is_private(study)
    recorded = [name for run in study.runs for name in cells.last_outcomes(run)]
    names = tuple(dict.fromkeys((*varied, *measured, *recorded)))  # rounds may vary, and are those of the records
    rows = []
    for cell in (study.cell(method, scenario) for scenario in study.scenarios for method in study.methods):
        by_choice = [cells.results(study, cell, choice) for choice in CHOICES]
        for (seed, partition_seed), run in sorted(cell.runs.items()):
            chosen = [*(values.get((seed, partition_seed)) for values in by_choice), cells.majority_of_run(run)]
            cost_of_run = [len(run.records), cells.seconds(run), cells.bytes_sent(run)]
            values = [cell.method, seed, partition_seed, *chosen, *cost_of_run]
            row = cells.last_outcomes(run) | dict(cell.scenario)
            row |= dict(zip(measured, [*values, epsilon(run)], strict=False))
            rows.append(tuple(_value(row.get(name)) for name in names))
    title = f"{study.title}: {metric_name(study)} of every run"
    return Table("runs", title, tuple(Column(name, (name,)) for name in names), tuple(rows))


def _value(value: Any) -> Entry:
    """Returns the entry of a setting's or a run's value; None is empty."""
    is_text = isinstance(value, (bool, str))
    return Entry(cells.value_text(value), () if is_text else (value,)) if value is not None else number(None)
