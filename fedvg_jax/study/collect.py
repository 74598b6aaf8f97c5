"""Collects runs into a study, a frame with a row for each, and refuses those that cannot be compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedvg_jax.config.methods import algorithm_of
from fedvg_jax.host import files
from fedvg_jax.host.errors import UsageError
from fedvg_jax.runs.record.history import OF_GLOBAL_MODEL
from fedvg_jax.study import places, reading, tuning
from fedvg_jax.study.groups import Frame, Study
from fedvg_jax.study.outcomes import CHOICES, choose_outcome
from fedvg_jax.study.places import Condition, Place
from fedvg_jax.study.reading import Folder
from fedvg_jax.study.run import Run
from fedvg_jax.study.sweep_folder import Stored

MAX_LISTED = 40
"""Most lines of a refusal; a count of the others follows."""

OF_OWN_MODELS = (
    "results are of the clients' own models on their own test rows, and of the global model for a method without such"
    " models; the table of clients has the global model on all test rows beside them"
)

PLACE = ["method", "condition", "seed", "partition_seed"]
"""Columns that name a run: two with equal values are one run that was done twice."""


def collect(
    folders: Sequence[Path | str], partial: bool = False, metric: str | None = None
) -> Study:
    """Returns the study of run folders.

    Args:
        folders: sweep folders (with sweep.json), run folders, or folders of these.
        partial: keep to the runs that are finished and mark the groups that lack some.
        metric: the outcome that is compared, a name of `outcomes.measured`; "min:NAME" and "max:NAME" declare that
            lower or higher values are better. None for the accuracy of the clients' own models if a method has such
            models and all runs record it, else for the global model's, or loss if some run has no accuracy.

    Raises:
        UsageError: there is no run, two runs are the same, data are mixed, or, unless `partial`, runs are missing, as
            where methods have other settings. The message lists them.
    """
    runs, lost, sweeps = reading.read_all([files.user_path(folder) for folder in folders])
    return make_study(runs, lost, sweeps, folders, partial, metric)


def make_study(
    read: Sequence[Folder],
    lost: Sequence[str],
    sweeps: Sequence[Stored],
    sources: Sequence[Path | str],
    partial: bool = False,
    metric: str | None = None,
) -> Study:
    """Returns the study of what was read.

    Args:
        read: the runs.
        lost: lines on runs that lost their settings.
        sweeps: of the runs.
        sources: where they are from, for messages.
        partial, metric: see `collect`.
    """
    finished = [folder for folder in read if folder.run]
    if not finished:
        reasons = [folder.missing or folder.failure for folder in read]
        where = ", ".join(map(str, sources))
        raise UsageError(
            f"{where}: no finished run to report; {_listed([*reasons, *lost]) or 'name a folder of runs'}"
        )
    is_one_sweep = len(sweeps) == 1 and len(sweeps[0].trials) == len(read)
    placed = _places(read, sweeps, is_one_sweep)
    conditions = tuple(sorted(dict.fromkeys(place.condition for place in placed), key=_order))
    frame = make_frame(read, placed, conditions)
    if mixed := _mixed_sources(frame):
        raise UsageError(
            f"the runs are of different data or partitions: {_listed(mixed)}; report them apart"
        )
    frame, twins = _without_twins(frame)
    if not is_one_sweep:
        frame = _with_unpaired(frame, conditions)
    missing = [*frame["missing"], *lost]
    if any(missing) and not partial:
        raise UsageError(
            f"the runs cannot be reported as one study: {_listed(missing)}; finish, recompute or leave out those runs,"
            " or report with --partial"
        )
    runs = [folder.run for folder in finished if folder.run]
    _refuse_other_objects(runs)
    outcome = choose_outcome(runs, any(map(_has_personal_models, runs)), metric)
    is_finished = frame["run"].notna()
    for choice in CHOICES:
        values = [outcome.of_run(run.history, choice) for run in frame["run"][is_finished]]
        frame.loc[is_finished, choice] = values
    titles = [sweep.title for sweep in sweeps if sweep.title] or [
        Path(source).resolve().name for source in sources
    ]
    notes = [*_shared_partition(frame, conditions), *_of_models(runs, outcome.metric)]
    notes += [] if is_one_sweep else tuning.different_grids(sweeps)
    return Study(
        title="; ".join(dict.fromkeys(titles)),
        methods=tuple(dict.fromkeys(place.method for place in placed)),
        conditions=conditions,
        frame=frame,
        outcome=outcome,
        settings=places.shared_settings([folder.settings for folder in finished]),
        notes=(*notes, *twins, *lost),
        tuned=tuple(tuning.choices_in_words(sweeps)),
    )


def _places(read: Sequence[Folder], sweeps: Sequence[Stored], is_one_sweep: bool) -> list[Place]:
    """Returns the places of runs, whose names have no values that each method was tuned to."""
    settings = [folder.settings for folder in read]
    if is_one_sweep:
        return places.places(settings, sweeps[0].axes)
    tuned = tuning.tuned_by_all(sweeps, len(read))
    others = [{n: v for n, v in each.items() if n not in tuned} for each in settings]
    placed = places.places(others)
    chosen: dict[tuple, dict[str, Any]] = {}
    for place, each in zip(placed, settings, strict=True):
        values = {name: each.get(name) for name in tuned}
        if chosen.setdefault((place.method, place.condition), values) != values:
            return places.places(settings)  # one method with the choices of two sweeps
    return placed


def _order(condition: Condition) -> list[tuple[str, float, str]]:
    """Returns the sorting key of a condition: numbers by size, other values by their text."""
    key = []
    for name, value in condition:
        is_number = isinstance(value, (int, float))
        key.append((name, value, "") if is_number else (name, math.inf, str(value)))
    return key


def _listed(lines: Sequence[str]) -> str:
    """Returns lines joined by semicolons, at most `MAX_LISTED` of them."""
    shown = list(dict.fromkeys(filter(None, lines)))
    more = [f"and {len(shown) - MAX_LISTED} more"] if len(shown) > MAX_LISTED else []
    return "; ".join(shown[:MAX_LISTED] + more)


def _has_personal_models(run: Run) -> bool:
    return bool(run.config.local) or algorithm_of(run.config).personal is not None


# --- the frame


def make_frame(
    read: Sequence[Folder], placed: Sequence[Place], conditions: Sequence[Condition]
) -> Frame:
    """Returns the frame of a study without outcomes, in the order of the seeds of each method."""
    import pandas

    rows = [_row(folder, place, conditions) for folder, place in zip(read, placed, strict=True)]
    frame = pandas.DataFrame(rows, dtype=object)
    return frame.sort_values(["seed", "partition_seed"], kind="stable", ignore_index=True)


def _row(folder: Folder, place: Place, conditions: Sequence[Condition]) -> dict[str, Any]:
    """Returns the row of one run."""
    seed, partition_seed = place.seeds
    row = {
        "name": folder.name,
        "method": place.method,
        "condition": conditions.index(place.condition),
        "seed": seed,
        "partition_seed": partition_seed,
        "seeds": place.seeds,
        "run": folder.run,
        "missing": folder.missing,
        "failure": folder.failure,
        "kind": folder.kind,
        "stopped": "",
        "data": "",
        "partition": "",
        "own_seed": -1,
    }
    if folder.run:
        row["stopped"] = f"{folder.name}: {folder.run.stop}" if folder.run.stop else ""
        row["own_seed"] = seed if "partition" in folder.run.custom else -1
        row["data"] = str(folder.run.manifest.get("data"))
        row["partition"] = str(folder.run.manifest.get("partition", partition_seed))
    return row


def _without_twins(frame: Frame) -> tuple[Frame, list[str]]:
    """Returns the frame without runs that occur twice, and a note on each.

    Raises:
        UsageError: two runs have the same place and other results.
    """
    finished = frame[frame["run"].notna()]
    repeated = finished.duplicated(PLACE)
    notes = []
    for _, twins in finished.groupby(PLACE, sort=False):
        first, *others = twins["run"]
        notes += [_twin(first, other) for other in others]
    return frame.drop(index=finished.index[repeated]).reset_index(drop=True), notes


def _twin(first: Run, second: Run) -> str:
    """Returns a note that of two equal runs the first is used; raises UsageError if their results differ."""
    ours, theirs = first.history.summary, second.history.summary
    if any(
        ours.get(name) != theirs.get(name) for name in ("test_accuracy_final", "test_loss_final")
    ):
        raise UsageError(
            f"{first.folder} and {second.folder} have equal settings and seeds but other results; report one"
        )
    return f"{second.folder.name} repeats {first.folder.name} and is left out"


def _with_unpaired(frame: Frame, conditions: Sequence[Condition]) -> Frame:
    """Returns the frame with a row for every run that a method lacks and another has in the same condition.

    A run that is missing or has failed has a row already.
    """
    import pandas

    counted = frame.assign(is_finished=frame["run"].notna().astype(float))
    seeds = counted.pivot_table("is_finished", "method", PLACE[1:], aggfunc="max", sort=False)
    wanted = seeds.loc[:, seeds.max() > 0]
    absent = wanted.isna().melt(ignore_index=False).reset_index()
    lacking, placed = [], []
    for row in absent[absent["value"]].itertuples():
        condition = conditions[row.condition]
        place = Place(row.method, condition, (row.seed, row.partition_seed))
        where = ", ".join(filter(None, (row.method, places.condition_text(condition))))
        line = f"{where}: no run with {places.seeds_text(place.seeds)}"
        lacking.append(Folder("", {}, missing=line))
        placed.append(place)
    return (
        pandas.concat([frame, make_frame(lacking, placed, conditions)], ignore_index=True)
        if placed
        else frame
    )


SOURCES = {"data": ["condition"], "partition": ["condition", "partition_seed", "own_seed"]}
"""Digest of a run -> columns that decide it. A partition from Python may depend on all seeds."""


def _mixed_sources(frame: Frame) -> list[str]:
    """Returns a line on conditions with different data, and on different partitions of one seed."""
    finished = frame[frame["run"].notna()]
    lines = []
    for name, keys in SOURCES.items():
        kinds = finished.groupby(keys)[name].transform("nunique")
        mixed = finished[kinds > 1].drop_duplicates([*keys, name])
        if len(mixed):
            rows = zip(mixed[name], mixed["run"], strict=True)
            listed = ", ".join(f"{digest[:12]} in {run.folder}" for digest, run in rows)
            lines.append(f"mixed {name}: {listed}")
    return lines


# --- notes


def _shared_partition(frame: Frame, conditions: Sequence[Condition]) -> list[str]:
    """Returns a line on conditions in which seeds share a partition."""
    drawn = frame[frame["run"].notna()].drop_duplicates(["condition", "seed", "partition"])
    counts = drawn.groupby("condition")["partition"].agg(["size", "nunique"])
    shared = counts.index[counts["nunique"] < counts["size"]]
    if shared.empty:
        return []
    named = "; ".join(places.condition_text(conditions[position]) for position in shared)
    where = f" at {named}" if len(shared) < len(counts) else ""
    return [
        f"seeds{where} share a partition, so that differences and intervals hold for the partitions drawn only"
    ]


def _of_models(runs: Sequence[Run], metric: str) -> list[str]:
    """Returns a line on the models that results are of, where a method has models of the clients' own."""
    if metric.startswith("personal_"):
        return [OF_OWN_MODELS]
    return [OF_GLOBAL_MODEL] if any(run.config.local for run in runs) else []


def _refuse_other_objects(runs: Sequence[Run]) -> None:
    """Raises UsageError for an object or a metric that is another one in some run than in one before it."""
    first: dict[tuple[str, str], Run] = {}
    for run in runs:
        for argument, digest in run.manifest.get("code", {}).items():
            name = run.custom.get(argument, "")
            other = first.setdefault((argument, name), run)
            if other.manifest["code"][argument] != digest:
                what = f"{argument} {name}".strip()
                raise UsageError(
                    f"{what} is not the same in {run.folder} as in {other.folder}; give it another name in one of"
                    " them, or report them apart"
                )
