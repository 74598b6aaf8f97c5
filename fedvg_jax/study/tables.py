"""The tables of a report: results, effects against a baseline, means of all that runs record, and what was tuned."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from fedvg_jax.config import method_title
from fedvg_jax.core.types import UsageError
from fedvg_jax.study import outcomes, statistics
from fedvg_jax.study.collect import PLACE
from fedvg_jax.study.groups import Frame, Study
from fedvg_jax.study.markup import Table, number, p_value, spread
from fedvg_jax.study.outcomes import CHOICES, TO_TARGET, Choice
from fedvg_jax.study.places import condition_text
from fedvg_jax.study.statistics import Pair

MARK = "†"
"""Mark of groups with runs that have no result or stopped early."""

ALL = "all"
"""The baseline with which every pair of methods is compared."""


class Options(NamedTuple):
    """What the tables compare with."""

    baseline: str | None
    """Name of a method of the study; None for all pairs of methods."""
    choice: Choice = "final"
    """The evaluation that stands for a run."""

    def pairs(self, study: Study) -> list[Pair]:
        """Returns the pairs of methods that are compared, the later one of every pair first."""
        if self.baseline is None:
            return [(later, earlier) for earlier, later in itertools.combinations(study.methods, 2)]
        return [(method, self.baseline) for method in study.methods if method != self.baseline]

    def compared(self, study: Study) -> Frame:
        """Returns the comparisons of a study; see `statistics.compare_pairs`."""
        return statistics.compare_pairs(study, tuple(self.pairs(study)), self.choice)


def options(study: Study, baseline: str | None = None, choice: Choice = "final") -> Options:
    """Returns the options of the tables.

    Args:
        study: what is reported.
        baseline: a method, as `--method` takes it or as the tables print it; "all" for every pair of methods; None for
            fedavg, or the first method without it.
        choice: of the evaluation that stands for a run.

    Raises:
        UsageError: the study has no such method.
    """
    if baseline is None:
        return Options("fedavg" if "fedavg" in study.methods else study.methods[0], choice)
    spellings: dict[str, str | None] = {ALL: None}
    spellings |= {method_title(method).casefold(): method for method in study.methods}
    spellings |= {method.casefold(): method for method in study.methods}
    if baseline.casefold() not in spellings:
        listed = ", ".join(map(repr, study.methods))
        raise UsageError(f"no method {baseline[:100]!r} to compare with; the runs have {listed}")
    return Options(spellings[baseline.casefold()], choice)


def all_tables(study: Study, chosen: Options) -> list[Table]:
    """Returns every table that the study has values for."""
    made = [accuracy(study, chosen), means(study)]
    if len(study.methods) > 1:
        made.insert(1, effects(study, chosen))
    return [*made, tuned(study)] if study.tuned else made


def footnotes(study: Study, choice: Choice) -> list[str]:
    """Returns a line for every run that has no result or stopped early, and the notes of the study."""
    lines = []
    for row in study.frame.itertuples():
        is_lost = math.isnan(getattr(row, choice))
        text = row.problem or (
            f"{row.name}: {study.outcome.title} is not finite" if is_lost else ""
        )
        lines += [f"{MARK} {text}"] if text else []
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


def accuracy(study: Study, chosen: Options) -> Table:
    """Returns mean and deviation at a choice of the round: a row per method, a column per condition."""
    choice, outcome = chosen.choice, study.outcome
    compared = chosen.compared(study)
    ahead = statistics.leaders(compared)
    by_group = study.frame.groupby(["condition", "method"], sort=False)
    numbers = by_group[choice].agg(mean="mean", std="std", n="count").reset_index()
    numbers = numbers.sort_values("condition", kind="stable")
    shown: dict[str, dict[str, str]] = {method: {} for method in study.methods}
    for row in numbers.itertuples():
        rows = by_group.get_group((row.condition, row.method))
        text = spread(row.mean, row.std, outcome.digits)
        if any(rows["problem"]) or row.n < len(rows):
            text += f" {MARK}"
        elif (row.condition, row.method) in ahead:
            text = f"**{text}**"
        title = condition_text(study.conditions[row.condition]) or outcome.title
        shown[row.method][title] = text
    import pandas

    texts = pandas.DataFrame.from_dict(shown, orient="index").fillna("")
    texts.insert(0, "method", [method_title(method) for method in shown])
    title = f"{study.title}: {outcome.title}, {statistics.stands_for(study, choice)}, mean ± standard deviation"
    note = "Bold: has all its runs and is ahead in every comparison. " + statistics.family(compared)
    notes = (note, *footnotes(study, choice))
    return Table("accuracy", title, _settings(study, numbers), texts, notes)


# --- effects


def effects(study: Study, chosen: Options) -> Table:
    """Returns the differences of paired runs, with intervals and p values corrected by Holm, a row per comparison."""
    compared, digits = chosen.compared(study), study.outcome.digits
    shown = _named(study, compared[["condition", "method", "against"]])
    shown["against"] = shown["against"].map(method_title)
    low, high, shown["difference"] = (
        [number(value, digits, "+") for value in compared[name]]
        for name in ("t_low", "t_high", "difference")
    )
    shown["95 % t interval"] = [f"[{a}, {b}]" for a, b in zip(low, high, strict=True)]
    for title, name in {"p, t test": "t_p", "p, Holm": "t_p_holm"}.items():
        shown[title] = compared[name].map(p_value)
    shown["n"] = compared["n"].astype(str)
    note = (
        f"Differences in {study.outcome.title}, {statistics.stands_for(study, chosen.choice)}, paired by seed and"
        f" partition seed. {statistics.family(compared)} A method that has runs without a result is not tested: the"
        " others are chosen by their success."
    )
    heading = f"{study.title}: differences of methods"
    notes = (note, *footnotes(study, chosen.choice))
    return Table("effects", heading, _settings(study, compared), shown, notes)


# --- everything else that runs record


def means(study: Study) -> Table:
    """Returns the means over runs of all that they record: metrics in the final round, and costs."""
    values = values_of_runs(study)
    columns = [*values.columns[list(values).index("rounds") :]]
    by_group = values.groupby(["condition", "method"], sort=False)
    numbers = by_group[columns].mean().dropna(axis="columns", how="all").reset_index()
    columns = [*numbers.columns[2:]]
    targets = [name for name in TO_TARGET if name in columns]
    for name in targets:  # runs that never reach it count as later than all
        by_group = values.fillna({name: math.inf}).groupby(["condition", "method"], sort=False)
        numbers[name] = by_group[name].median().to_numpy()
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

    rows = []
    for place in itertools.product(study.methods, study.conditions):
        for row in study.group(*place).rows.dropna(subset=["run"]).to_dict("records"):
            run = row["run"]
            values = {name: row[name] for name in (*PLACE, *CHOICES)}
            values |= {"majority": run.majority, "rounds": len(run.records)}
            values |= {"seconds": run.seconds, "bytes_sent": run.bytes_sent}
            values |= {"epsilon": run.epsilon} if run.epsilon is not None else {}
            if "virtual_seconds" in run.records[-1]:
                values["virtual_seconds"] = run.records[-1]["virtual_seconds"]
            if study.outcome.goal:
                values |= study.outcome.to_target(run.records)
            rows.append({**values, **outcomes.of_last(run.records), **values})
    frame = pandas.DataFrame(rows).sort_values("condition", kind="stable", ignore_index=True)
    return frame[["condition", *(name for name in frame if name != "condition")]]


def tuned(study: Study) -> Table:
    """Returns the values that were chosen on the validation set."""
    import pandas

    numbers = pandas.DataFrame(
        study.tuned, columns=["condition", "values", "metric", "score", "num_runs"]
    )
    shown = numbers.astype(str).set_axis(
        ["condition", "chosen", "metric", "on D_val", "tuning runs"], axis="columns"
    )
    title = f"{study.title}: values that were chosen on D_val by runs of their own"
    return Table("tuning", title, numbers, shown)
