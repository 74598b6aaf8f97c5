"""The tables of a report: results, effects against a baseline, means of all that runs record, and what was tuned."""

from __future__ import annotations

import dataclasses
import functools
import math

from fedvg_jax.config import method_title
from fedvg_jax.config.checks import require_name
from fedvg_jax.core.types import UsageError
from fedvg_jax.study import outcomes, statistics
from fedvg_jax.study.collect import PLACE
from fedvg_jax.study.groups import Frame, Study
from fedvg_jax.study.markup import Table, number, p_value, spread
from fedvg_jax.study.outcomes import CHOICES, TO_TARGET
from fedvg_jax.study.places import condition_text

MARK = "†"
"""Mark of groups with runs that have no result or stopped early."""

ALL = "all"
"""The baseline with which every pair of methods is compared."""


def comparing(study: Study, baseline: str | None = None, choice: str = "final") -> Study:
    """Returns a study with what its methods are compared with, and by which evaluation.

    Args:
        study: what is reported.
        baseline: a method, as `--method` takes it or as the tables print it; "all" for every pair of methods; None for
            fedavg, or the first method without it.
        choice: of the evaluation that stands for a run.

    Raises:
        UsageError: the study has no such method, or the choice is unknown.
    """
    require_name("choice", choice, CHOICES)
    if baseline is None:
        baseline = "fedavg" if "fedavg" in study.methods else study.methods[0]
    spellings: dict[str, str | None] = {ALL: None}
    spellings |= {method_title(method).casefold(): method for method in study.methods}
    spellings |= {method.casefold(): method for method in study.methods}
    name = baseline.casefold()
    if name not in spellings:
        listed = ", ".join(map(repr, study.methods))
        raise UsageError(f"no method {baseline[:100]!r} to compare with; the runs have {listed}")
    return dataclasses.replace(study, baseline=spellings[name], choice=choice)


def all_tables(study: Study) -> list[Table]:
    """Returns every table that the study has values for."""
    made = [accuracy(study), means(study)]
    if len(study.methods) > 1:
        made.insert(1, effects(study))
    return [*made, tuned(study)] if study.tuned else made


def footnotes(study: Study) -> list[str]:
    """Returns a line for every run that has no result or stopped early, and the notes of the study."""
    lines = []
    for row in study.frame.itertuples():
        text = row.problem
        if not text and math.isnan(getattr(row, study.choice)):
            text = f"{row.name}: {study.outcome.title} is not finite"
        if text:
            lines.append(f"{MARK} {text}")
    return lines + [f"Note: {note}." for note in study.notes]


def _settings(study: Study, rows: Frame) -> Frame:
    """Returns the rows with `condition` as a text."""
    texts = [condition_text(study.conditions[position]) for position in rows["condition"]]
    return rows.assign(condition=texts).rename(columns={"condition": "setting"})


def _named(study: Study, rows: Frame) -> Frame:
    """Returns rows with names for people, without the conditions where there is one."""
    named = _settings(study, rows).assign(method=rows["method"].map(method_title))
    return named if len(study.conditions) > 1 else named.drop(columns="setting")


# --- results


def accuracy(study: Study) -> Table:
    """Returns mean and deviation at a choice of the round: a row per method, a column per condition."""
    choice, outcome = study.choice, study.outcome
    compared = statistics.compare_pairs(study)
    ahead = statistics.leaders(compared)
    is_lost = study.frame["problem"].ne("") | study.frame[choice].isna()
    by_group = study.frame.assign(lost=is_lost).groupby(["condition", "method"], sort=False)
    numbers = by_group[choice].agg(mean="mean", std="std", n="count")
    numbers["lost"] = by_group["lost"].any()
    numbers = numbers.reset_index().sort_values("condition", kind="stable")
    shown = {method: {"method": method_title(method)} for method in study.methods}
    for row in numbers.itertuples():
        text = spread(row.mean, row.std, outcome.digits)
        if row.lost:
            text += f" {MARK}"
        elif (row.condition, row.method) in ahead:
            text = f"**{text}**"
        title = condition_text(study.conditions[row.condition]) or outcome.title
        shown[row.method][title] = text
    import pandas

    texts = pandas.DataFrame(shown.values()).fillna("")
    title = (
        f"{study.title}: {outcome.title}, {statistics.stands_for(study)}, mean ± standard deviation"
    )
    note = "Bold: has all its runs and is ahead in every comparison. " + statistics.family(compared)
    numbers = _settings(study, numbers.drop(columns="lost"))
    return Table("accuracy", title, numbers, texts, (note, *footnotes(study)))


# --- effects


def effects(study: Study) -> Table:
    """Returns the differences of paired runs, with intervals and p values corrected by Holm, a row per comparison."""
    compared = statistics.compare_pairs(study)
    signed = functools.partial(number, digits=study.outcome.digits, sign="+")
    shown = _named(study, compared[["condition", "method", "against"]])
    shown["against"] = shown["against"].map(method_title)
    low, high = compared["t_low"].map(signed), compared["t_high"].map(signed)
    shown["difference"] = compared["difference"].map(signed)
    shown["95 % t interval"] = "[" + low + ", " + high + "]"
    shown["p, t test"] = compared["t_p"].map(p_value)
    shown["p, Holm"] = compared["t_p_holm"].map(p_value)
    shown["n"] = compared["n"].astype(str)
    note = (
        f"Differences in {study.outcome.title}, {statistics.stands_for(study)}, paired by seed and"
        f" partition seed. {statistics.family(compared)} A method that has runs without a result is not tested: the"
        " others are chosen by their success."
    )
    heading = f"{study.title}: differences of methods"
    notes = (note, *footnotes(study))
    return Table("effects", heading, _settings(study, compared), shown, notes)


# --- everything else that runs record


def means(study: Study) -> Table:
    """Returns the means over runs of all that they record: metrics in the final round, and costs."""
    values = values_of_runs(study)
    columns = list(values.loc[:, "rounds":])
    groups = ["condition", "method"]
    numbers = values.groupby(groups, sort=False)[columns].mean().dropna(axis="columns", how="all")
    targets = [name for name in TO_TARGET if name in numbers]
    for name in targets:  # runs that never reach it count as later than all
        late = values.fillna({name: math.inf})
        numbers[name] = late.groupby(groups, sort=False)[name].median()
    columns, numbers = [*numbers], numbers.reset_index()
    shown = _named(study, numbers)
    for name in columns:
        shown[name] = shown[name].map("{:,.5g}".format).replace({"nan": "–", "inf": "–"})
    note = "Means over runs, shares in percent; seconds and bytes are of all rounds."
    if targets:
        note += (
            " Rounds and time to the target are medians; a dash: half of the runs never reach it."
        )
    title = f"{study.title}: metrics in the final round, and costs"
    return Table("means", title, _settings(study, numbers), shown, (note,))


def runs(study: Study) -> Frame:
    """Returns a row for each run and a column for each value, for other statistics."""
    import pandas

    values = values_of_runs(study)
    conditions = [dict(study.conditions[position]) for position in values.pop("condition")]
    return pandas.concat([pandas.DataFrame(conditions), values], axis="columns")


def values_of_runs(study: Study) -> Frame:
    """Returns a row for each finished run: its place, its outcomes, its costs and its metrics in the final round."""
    import pandas

    rows, finished = [], study.frame.dropna(subset=["run"])
    finished = finished.assign(position=finished["method"].map(study.methods.index))
    finished = finished.sort_values(["condition", "position"], kind="stable")
    for row in finished.to_dict("records"):
        values = {name: row[name] for name in (*PLACE, *CHOICES)}
        values |= row["run"].costs
        if study.outcome.goal:
            values |= study.outcome.to_target(row["run"].records)
        last = outcomes.evaluations(row["run"].records)[-1]
        rows.append({**values, **outcomes.measured(last), **values})
    return pandas.DataFrame(rows)


def tuned(study: Study) -> Table:
    """Returns the values that were chosen on the validation set."""
    import pandas

    numbers = pandas.DataFrame(
        study.tuned, columns=["condition", "values", "metric", "score", "num_runs"]
    )
    shown = numbers.map(str).set_axis(
        ["condition", "chosen", "metric", "on D_val", "tuning runs"], axis="columns"
    )
    title = f"{study.title}: values that were chosen on D_val by separate runs"
    return Table("tuning", title, numbers, shown)
