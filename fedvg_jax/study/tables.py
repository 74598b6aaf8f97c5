"""The tables of a report: accuracy, choice of the round, effect against a baseline, cost, and what was tuned."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.config import method_title
from fedvg_jax.config.methods import WEIGHTINGS, weighting_names
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs.record.history import CLIENT_ACCURACIES
from fedvg_jax.study import outcomes, statistics
from fedvg_jax.study.groups import (
    Frame,
    Group,
    Study,
    column_setting,
    column_value,
    mean,
    panels,
    settings,
    span,
)
from fedvg_jax.study.markup import Entry, Row, Table, label, number, p_value, spread
from fedvg_jax.study.outcomes import CHOICES, Choice
from fedvg_jax.study.places import Condition, condition_text, value_text
from fedvg_jax.study.statistics import Pair

FAILED = "‡"
"""Mark of groups with runs that have no result."""

MARKS = {"missing": "†", "failure": FAILED, "stopped": "§"}
"""Column of a study's frame with lines on runs -> the mark of groups that have some."""

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

    def pairs(self, study: Study) -> list[Pair]:
        """Returns the pairs of methods that are compared, the later one of every pair first."""
        if self.every_pair:
            return [(later, earlier) for earlier, later in itertools.combinations(study.methods, 2)]
        return [(method, self.baseline) for method in study.methods if method != self.baseline]

    def compared(self, study: Study) -> Frame:
        """Returns the comparisons of a study; see `statistics.compare_pairs`."""
        return statistics.compare_pairs(study, tuple(self.pairs(study)), self.choice)


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
    named = "fedavg" if "fedavg" in study.methods else study.methods[0]
    every_pair = baseline == ALL and ALL not in study.methods
    if baseline is not None and not every_pair:
        spellings = {method_title(method).casefold(): method for method in study.methods}
        spellings |= {method.casefold(): method for method in study.methods}
        if baseline.casefold() not in spellings:
            listed = ", ".join(map(repr, study.methods))
            raise UsageError(
                f"no method {baseline[:100]!r} to compare with; the runs have {listed}"
            )
        named = spellings[baseline.casefold()]
    if target is not None and study.outcome.is_share:
        if not 0 < target <= 1:
            raise UsageError(f"--target must be an accuracy in (0, 1]; got {target:g}")
        target = 100 * target
    return Options(named, target, choice, every_pair)


def all_tables(study: Study, chosen: Options) -> list[Table]:
    """Returns every table that the study has values for."""
    made = [accuracy(study, chosen), choices(study), clients(study)]
    if len(study.methods) > 1:
        made.append((pairs if chosen.every_pair else effects)(study, chosen))
    return [table for table in (*made, cost(study, chosen), tuned(study)) if table]


# --- marks and notes


def marked(entry: Entry, group: Group, choice: Choice) -> Entry:
    """Returns an entry with the marks of the footnotes of a group behind its text, which the CSV file has not."""
    marks = [mark for column, mark in MARKS.items() if group.lines(column)]
    if group.not_finite(choice) and FAILED not in marks:
        marks.append(FAILED)
    return entry._replace(text=" ".join(filter(None, (entry.text, "".join(marks)))))


def footnotes(study: Study, *chosen: Choice) -> list[str]:
    """Returns a line for every run that is missing, has no result or stopped early, and the notes of the study."""
    lines = []
    everything = Group("", (), study.frame)
    for column, mark in MARKS.items():
        lines += [f"{mark} {line}" for line in everything.lines(column)]
    for choice in chosen:
        what = f"{study.outcome.title} is not finite, {study.outcome.choice_name(choice)}"
        lines += [f"{FAILED} {name}: {what}" for name in everything.not_finite(choice)]
    return lines + [f"Note: {note}." for note in study.notes]


# --- accuracy


def accuracy(study: Study, chosen: Options) -> Table:
    """Returns mean and deviation at a choice of the round: a row per method, a column per value of its setting."""
    choice, outcome = chosen.choice, study.outcome
    compared = chosen.compared(study)
    groups = panels(study)
    rows: list[Row] = []
    for rest, conditions in groups.items():
        lead = _setting(rest) if len(groups) > 1 else {}
        for method in study.methods:
            row = lead | _method(method)
            for title, condition in _columns(study, conditions).items():
                entry = spread(title, math.nan, math.nan, 0)._replace(text="")
                if condition is not None:
                    group = study.group(method, condition)
                    entry = marked(spread_of(study, group, title, choice), group, choice)
                    is_bold = statistics.is_ahead(
                        compared, method, study.conditions.index(condition)
                    )
                    entry = entry._replace(is_bold=is_bold)
                row[f"{title}{outcome.direction}"] = entry
            rows.append(row)
        rows += [lead | row for row in _largest_class(study, conditions)]
    title = f"{study.title}: {outcome.heading}, {outcome.choice_name(choice)}, mean ± standard deviation over runs"
    n = span(len(group.results(choice)) for group in study.groups.values())
    note = f"n = {n} runs per condition."
    if len(study.methods) > 1:
        test = f"p < {statistics.LEVEL:g} in paired t tests. {statistics.family(compared)}"
        note += f" Bold: has all its runs and is ahead in every comparison of the findings, {test}."
    return Table("accuracy", title, rows, (note, *footnotes(study, choice)))


def _columns(study: Study, conditions: Sequence[Condition]) -> dict[str, Condition | None]:
    """Returns the titles of the columns -> the condition among these that a column is of, if any."""
    titles = dict.fromkeys(column_title(study, condition) for condition in study.conditions)
    return titles | {column_title(study, condition): condition for condition in conditions}


def _largest_class(study: Study, conditions: Sequence[Condition]) -> list[Row]:
    """Returns the row of always answering the largest class, means over all methods; [] where it is not recorded."""
    row: Row = {"method": label("method", "always the largest class")}
    known = []
    for title, condition in _columns(study, conditions).items():
        of_methods = [
            majority(study, study.group(method, condition))
            for method in study.methods
            if condition is not None
        ]
        known.append(mean(of_methods))
        row[f"{title}{study.outcome.direction}"] = number(f"{title} mean", known[-1])
    return [row] if any(known) else []


def column_title(study: Study, condition: Condition) -> str:
    """Returns the title of the column of a condition."""
    column = column_setting(study)
    return (
        f"{column} {value_text(column_value(study, condition))}" if column else metric_name(study)
    )


def metric_name(study: Study) -> str:
    """Returns the metric with its unit."""
    return f"{study.outcome.title}, %" if study.outcome.is_share else study.outcome.title


def majority(study: Study, group: Group) -> float | None:
    """Returns the mean accuracy of always answering the largest class, in percent.

    None where it is not recorded, and where another metric is compared.
    """
    if study.outcome.metric != "accuracy":
        return None
    return mean(run.majority for run in group.runs.values())


def spread_of(study: Study, group: Group, key: str = "", choice: Choice = "final") -> Entry:
    """Returns mean and deviation of a group."""
    values = list(group.results(choice).values())
    return spread(key, *statistics.mean_and_std(values), len(values), study.outcome.digits)


# --- rows of one condition and method each


def _method(method: str) -> Row:
    """Returns the name of a method: as a paper prints it, and in the CSV file as `--method` takes it."""
    return {"method": label("method", method, method_title(method))}


def _setting(condition: Condition) -> Row:
    """Returns the text of a condition; some may have none of the settings that the others have."""
    return {"setting": label("setting", condition_text(condition) or "none")}


def per_group(
    study: Study, choice: Choice, entries: Callable[[Group], Row], skip: str = ""
) -> list[Row]:
    """Returns a row per condition and method: their names, and the entries of the group.

    Args:
        study: what is reported.
        choice: the evaluation that decides which marks a group has.
        entries: of a group, by column.
        skip: method without rows.
    """
    rows = []
    for condition, method in itertools.product(study.conditions, study.methods):
        if method != skip:
            group = study.group(method, condition)
            lead = _setting(condition) if len(study.conditions) > 1 else {}
            lead |= {"method": marked(_method(method)["method"], group, choice)}
            rows.append(lead | entries(group))
    return rows


def choices(study: Study) -> Table:
    """Returns the final round, the round best on validation and the maximum side by side."""

    def entries(group: Group) -> Row:
        row = {}
        for choice in CHOICES:
            entry = spread_of(study, group, choice, choice)
            mark = f" {FAILED}" if choice != "final" and group.not_finite(choice) else ""
            row[study.outcome.choice_name(choice)] = entry._replace(text=f"{entry.text}{mark}")
        if study.outcome.metric == "accuracy":
            row["always the largest class"] = number("majority", majority(study, group))
        return row

    title = f"{study.title}: {study.outcome.heading}, by the choice of the round"
    notes = (*_validation_rows(study), *footnotes(study, *CHOICES))
    return Table("choices", title, per_group(study, "final", entries), notes)


def _validation_rows(study: Study) -> list[str]:
    """Returns a line on the rows that choose the best round, where FedVG's weights use D_val, too."""
    names = weighting_names(" ".join(run.weighting for run in study.runs))
    if not any(name in WEIGHTINGS and WEIGHTINGS[name].options for name in names):
        return []
    return ["Validation is D_val, which FedVG's weights also use."]


MODELS = dict(zip(CLIENT_ACCURACIES, ("global", "own"), strict=True))
"""Accuracies of clients in a record -> the model that they were measured on."""


def clients(study: Study) -> Table | None:
    """Returns mean, worst decile and spread of the clients' accuracies under each model; None where none is recorded.

    Of the final rounds, in percent, as means over the runs; a dash where some run of the group has not recorded it.
    """
    titles = _titles_of_clients(study)
    if not titles:
        return None
    titles = {"test_accuracy": "global, all test rows"} | titles

    def entries(group: Group) -> Row:
        row = {}
        for key, title in titles.items():
            recorded = [run.records[-1].get(key) for run in group.runs.values()]
            average = None if None in recorded else mean(recorded)
            row[title] = number(key, None if average is None else 100 * average)
        return row

    notes = (
        "Accuracies of the clients, each on its own test rows, in the final round. Own: of personal models, of the"
        " global model with the client's tensors, or of the global model for a method without either. Worst"
        " decile: mean of the lowest tenth of the clients. Spread: standard deviation over clients.",
        *footnotes(study),
    )
    return Table(
        "clients",
        f"{study.title}: accuracy over clients, %",
        per_group(study, "final", entries),
        notes,
    )


def _titles_of_clients(study: Study) -> dict[str, str]:
    """Returns the entries of a record on clients' accuracies that some run has -> their titles."""
    recorded = {key for run in study.runs for key in run.records[-1]}
    titles = {}
    for name, keys in CLIENT_ACCURACIES.items():
        for key, statistic in zip(keys, ("mean", "worst decile", "spread"), strict=True):
            if key in recorded:
                titles[key] = f"{MODELS[name]}: {statistic}"
    return titles


# --- effects

P_VALUES = {
    "t_p": "p, t test",
    "t_p_holm": "p, t, Holm",
    "wilcoxon_p": "p, Wilcoxon",
    "wilcoxon_p_holm": "p, Wilcoxon, Holm",
}
"""Field of `Comparison` -> its column."""

WITHOUT_TEST = (
    "Where runs have no result, there is no test: the others are chosen by their success."
)


def effects(study: Study, chosen: Options) -> Table:
    """Returns every method against the baseline: paired differences, intervals and p values corrected by Holm."""
    compared = chosen.compared(study)
    by_group = {(row.method, row.condition): row for row in compared.itertuples()}

    def entries(group: Group) -> Row:
        effect = by_group[group.method, study.conditions.index(group.condition)]
        row = {"n": number("n", effect.n, 0)} | _difference(study, effect)
        if any(compared["rounds"]):
            row["rounds"] = label("rounds", effect.rounds)
        return row | {
            title: p_value(name, getattr(effect, name)) for name, title in P_VALUES.items()
        }

    baseline = method_title(chosen.baseline)
    notes = (
        f"Differences are method minus {baseline}, {study.outcome.choice_name(chosen.choice)}, paired by seed and"
        f" partition seed. {statistics.family(compared)}: every method with {baseline}{_everywhere(study)}."
        f" {WITHOUT_TEST}",
        *footnotes(study, chosen.choice),
    )
    heading = f"{study.title}: effect against {baseline}, {study.outcome.difference_unit}"
    return Table(
        "effects", heading, per_group(study, chosen.choice, entries, skip=chosen.baseline), notes
    )


def _everywhere(study: Study) -> str:
    return " in every setting" if len(study.conditions) > 1 else ""


def _difference(study: Study, effect: Any) -> Row:
    """Returns the mean difference and its interval."""
    digits = study.outcome.digits
    mean = number("difference", effect.difference, digits, signed=True)
    low = number("t_low", effect.t_low, digits, signed=True)
    high = number("t_high", effect.t_high, digits, signed=True)
    text = f"[{low.text}, {high.text}]" if math.isfinite(effect.t_low) else "–"
    return {"difference": mean, "95 % t interval": Entry(text, {**low.values, **high.values})}


OF_PAIRS = ("n", "difference", "t_low", "t_high", "t_p", "t_p_holm", "wilcoxon_p_holm")
"""Columns of comparisons in the table of pairs."""


def pairs(study: Study, chosen: Options) -> Table:
    """Returns every pair of methods as a triangle: row minus column, with intervals and p values corrected by Holm."""
    compared = chosen.compared(study)
    by_pair = {(row.method, row.other, row.condition): row for row in compared.itertuples()}

    def entries(group: Group) -> Row:
        position = study.conditions.index(group.condition)
        others = study.methods[:-1]
        return {
            method_title(o): _pair(study, o, by_pair.get((group.method, o, position)))
            for o in others
        }

    notes = (
        f"Row minus column, {study.outcome.choice_name(chosen.choice)}, paired by seed and partition seed, with 95 % t"
        f" intervals. {statistics.family(compared)}: every pair of methods{_everywhere(study)}. Bold: p <"
        f" {statistics.LEVEL:g}. {WITHOUT_TEST}",
        *footnotes(study, chosen.choice),
    )
    title = f"{study.title}: every pair, {study.outcome.difference_unit}"
    return Table(
        "pairs", title, per_group(study, chosen.choice, entries, skip=study.methods[0]), notes
    )


def _pair(study: Study, other: str, effect: Any) -> Entry:
    """Returns the comparison with another method; empty above the diagonal, where there is none."""
    if effect is None:
        return Entry("", {f"{other} {name}": None for name in OF_PAIRS})
    values = {f"{other} {name}": getattr(effect, name) for name in OF_PAIRS}
    if not effect.n:
        return Entry("–", values)
    difference, interval = (entry.text for entry in _difference(study, effect).values())
    after = f", rounds {effect.rounds}" if effect.rounds else ""
    text = f"{difference} {interval}, p {p_value('', effect.t_p_holm).text}{after}"
    return Entry(text, values, effect.t_p_holm < statistics.LEVEL)


# --- cost


def cost(study: Study, chosen: Options) -> Table:
    """Returns accuracy beside rounds to the target, seconds and megabytes sent."""
    outcome = study.outcome
    is_private = any(run.epsilon is not None for run in study.runs)

    def entries(group: Group) -> Row:
        runs = list(group.runs.values())
        target = chosen.target
        if target is None:
            of_baseline = study.group(chosen.baseline, group.condition).results()
            target = statistics.mean_and_std(list(of_baseline.values()))[0]
        sent = [run.bytes_sent for run in runs]
        megabytes = None if None in sent else mean(count and count / 1e6 for count in sent)
        row = {
            f"{outcome.heading}, {CHOICES['final']}": spread_of(study, group),
            "target": number("target", target, outcome.digits),
            "rounds to the target": _rounds_to(study, group, target),
            "seconds": number("seconds", mean(run.seconds for run in runs), 1),
            "MB sent": number("megabytes", megabytes, 1),
        }
        if is_private:
            row["epsilon"] = number("epsilon", mean(run.epsilon for run in runs))
        return row

    default = f"the mean final result of {method_title(chosen.baseline)}; a dash where it has none"
    notes = (
        f"The target is {default if chosen.target is None else 'the one given'}. Rounds to the target are medians over"
        " runs; those that never reach it count as later than all. Seconds and MB sent are means over runs, of all"
        " rounds.",
        *footnotes(study, "final"),
    )
    return Table(
        "cost",
        f"{study.title}: {outcome.title} and cost",
        per_group(study, "final", entries),
        notes,
    )


def _rounds_to(study: Study, group: Group, target: float) -> Entry:
    """Returns the rounds to a target over the runs of a group; a dash where it is not finite."""
    if not math.isfinite(target):
        return _rounds([])
    return _rounds(
        [outcomes.rounds_to(study.outcome, run.records, target) for run in group.runs.values()]
    )


def _rounds(reached: Sequence[float]) -> Entry:
    """Returns the median round over all runs, and the number of runs that do not reach the target.

    >>> _rounds([12, 20]).text, _rounds([12, 20, math.inf]).text, _rounds([12, math.inf, math.inf]).text
    ('16', '20, not reached by 1 of 3', 'not reached by 2 of 3')
    """
    if not reached:
        return Entry("–", {"rounds_to_target": None, "reached": None})
    never = list(reached).count(math.inf)
    median = float(np.median(reached))
    words = [f"{median:g}"] if math.isfinite(median) else []
    words += [f"not reached by {never} of {len(reached)}"] if never else []
    known = median if math.isfinite(median) else None
    return Entry(", ".join(words), {"rounds_to_target": known, "reached": len(reached) - never})


# --- tuning


def tuned(study: Study) -> Table | None:
    """Returns the values that were chosen on the validation set; None without tuning."""
    if not study.tuned:
        return None
    rows = []
    for choice in study.tuned:
        metric, score = choice.get("metric", "loss"), choice.get("score")
        shown = number("score", score, 4)
        if score is not None and metric in outcomes.SHARES:
            shown = number("score", 100 * score)
        rows.append(
            {
                "condition": label("condition", choice["condition"]),
                "chosen": label("chosen", choice["values"] or "nothing to choose"),
                "metric": label("metric", metric),
                "on D_val": shown,
                "tuning runs": number("num_runs", choice.get("num_runs"), 0),
            }
        )
    return Table(
        "tuning", f"{study.title}: values that were chosen on D_val by runs of their own", rows
    )


# --- runs


def runs(study: Study) -> Table:
    """Returns one row per run and one column per value, for your own statistics."""
    values_of_runs = []
    for condition, method in itertools.product(study.conditions, study.methods):
        rows = study.group(method, condition).rows.to_dict("records")
        values_of_runs += [_values_of_run(row, condition) for row in rows if row["run"]]
    names = dict.fromkeys([*settings(study), *itertools.chain(*values_of_runs)])
    rows = [_row_of_run(values, names) for values in values_of_runs]
    return Table("runs", f"{study.title}: {study.outcome.heading} of every run", rows)


def _values_of_run(row: dict[str, Any], condition: Condition) -> dict[str, Any]:
    """Returns the values of a run by column, from its row of the study's frame."""
    run = row["run"]
    values = {name: row[name] for name in ("method", "seed", "partition_seed", *CHOICES)}
    values |= {"majority": run.majority, "rounds": len(run.records)}
    values |= {"seconds": run.seconds, "bytes_sent": run.bytes_sent}
    if run.epsilon is not None:
        values["epsilon"] = run.epsilon
    others = {**outcomes.of_last(run.records), **dict(condition)}
    return {**values, **others, **values}


def _row_of_run(values: dict[str, Any], names: Iterable[str]) -> Row:
    """Returns the entries of a run's values; one that is not known is empty."""
    import pandas

    row = {}
    for name in names:
        value = values.get(name)
        is_empty: Any = pandas.isna(value)
        row[name] = (
            Entry("–", {name: None}) if is_empty else Entry(value_text(value), {name: value})
        )
    return row
