"""Collects runs into a study, a frame with a row for each, and refuses those that cannot be compared."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from pathlib import Path

from fedvg_jax.host import files
from fedvg_jax.host.errors import UsageError
from fedvg_jax.runs.record.history import OF_GLOBAL_MODEL
from fedvg_jax.study import places, reading, tuning
from fedvg_jax.study.groups import Frame, Study
from fedvg_jax.study.outcomes import CHOICES, TO_TARGET, choose_outcome
from fedvg_jax.study.places import Condition, Place
from fedvg_jax.study.reading import Folder
from fedvg_jax.study.sweep_folder import Stored

MAX_LISTED = 40
"""Most lines of a refusal; a count of the others follows."""

PLACE = ["method", "condition", "seed", "partition_seed"]
"""Columns that name a run: two with equal values are one run that was done twice."""


def collect(
    folders: Sequence[Path | str],
    partial: bool = False,
    metric: str | None = None,
    target: float | None = None,
) -> Study:
    """Returns the study of run folders.

    Args:
        folders: sweep folders (with sweep.json), run folders, or folders of these.
        partial: keep to the runs that are finished and mark the groups that lack some.
        metric: the outcome that is compared, see `outcomes.choose_outcome`.
        target: accuracy from 0 to 1, or loss, for the metrics of `outcomes.TO_TARGET`; None for no target.

    Raises:
        UsageError: there is no run, two runs are the same, data or rounds are mixed, or, unless `partial`, runs are
            missing, as where methods have other settings. The message lists them.
    """
    runs, sweeps = reading.read_all([files.user_path(folder) for folder in folders])
    return make_study(runs, sweeps, folders, partial, metric, target)


def make_study(
    read: Sequence[Folder],
    sweeps: Sequence[Stored],
    sources: Sequence[Path | str],
    partial: bool,
    metric: str | None,
    target: float | None,
) -> Study:
    """Returns the study of what was read.

    Args:
        read: the runs.
        sweeps: of the runs.
        sources: where they are from, for messages.
        partial, metric, target: see `collect`.
    """
    runs = [folder.run for folder in read if folder.run]
    if not runs:
        reasons = _listed([folder.problem for folder in read]) or "the sweep has no trials"
        raise UsageError(f"{', '.join(map(str, sources))}: no finished run to report; {reasons}")
    is_one_sweep = len(sweeps) == 1 and len(sweeps[0].trials) == len(read)
    placed = _places(read, sweeps, is_one_sweep)
    conditions = tuple(dict.fromkeys(place.condition for place in placed))
    frame = make_frame(read, placed, conditions)
    _refuse_mixed(frame, (metric or "").removeprefix("min:") in TO_TARGET)
    if not is_one_sweep:
        frame = _with_unpaired(frame, conditions)
    missing = frame.loc[frame["kind"] == "missing", "problem"]
    if len(missing) and not partial:
        raise UsageError(
            f"the runs cannot be reported as one study: {_listed(missing)}; finish, recompute or leave out those"
            " runs, or report with --partial"
        )
    outcome = choose_outcome(runs, metric, target)
    for choice in CHOICES:
        frame[choice] = [
            outcome.of_run(run.history, choice) if run else math.nan for run in frame["run"]
        ]
    titles = [sweep.title for sweep in sweeps if sweep.title]
    titles = titles or [Path(source).resolve().name for source in sources]
    is_global = any(run.config.local for run in runs) and "personal_" not in outcome.metric
    notes = [OF_GLOBAL_MODEL] if is_global else []
    notes += tuning.different_grids(sweeps)
    return Study(
        title="; ".join(dict.fromkeys(titles)),
        methods=tuple(dict.fromkeys(place.method for place in placed)),
        conditions=conditions,
        frame=_without_twins(frame),
        outcome=outcome,
        settings=places.shared_settings([folder.settings for folder in read if folder.run]),
        notes=notes,
        tuned=tuning.choices_in_words(sweeps),
    )


def _places(read: Sequence[Folder], sweeps: Sequence[Stored], is_one_sweep: bool) -> list[Place]:
    """Returns the places of runs. Their names leave out values that each method was tuned to."""
    settings = [folder.settings for folder in read]
    if is_one_sweep:
        return places.places(settings, sweeps[0].axes)
    tuned = tuning.tuned_by_all(sweeps, len(read))
    others = []
    for each in settings:
        others.append({n: v for n, v in each.items() if n not in tuned})
    placed = places.places(others)
    chosen = {}
    for place, each in zip(placed, settings, strict=True):
        values = {name: each.get(name) for name in tuned}
        if chosen.setdefault((place.method, place.condition), values) != values:
            return places.places(settings)  # one method with the choices of two sweeps
    return placed


def _listed(lines: Sequence[str]) -> str:
    """Returns lines joined by semicolons, at most `MAX_LISTED` of them."""
    shown = list(dict.fromkeys(lines))
    if len(shown) > MAX_LISTED:
        shown[MAX_LISTED:] = [f"and {len(shown) - MAX_LISTED} more"]
    return "; ".join(shown)


# --- the frame


def make_frame(
    read: Sequence[Folder], placed: Sequence[Place], conditions: Sequence[Condition]
) -> Frame:
    """Returns the frame of a study without outcomes, in the order of the seeds of each method."""
    import pandas

    rows = [
        (*folder, place.method, conditions.index(place.condition), *place.seeds)
        for folder, place in zip(read, placed, strict=True)
    ]
    frame = pandas.DataFrame(rows, columns=[*Folder._fields, *PLACE], dtype=object)
    return frame.sort_values(PLACE[2:], kind="stable", ignore_index=True)


def _without_twins(frame: Frame) -> Frame:
    """Returns the frame without runs that occur twice.

    Raises:
        UsageError: two runs have the same place and other results.
    """
    finished = frame[frame["run"].notna()]
    repeated = finished.duplicated([*PLACE, *CHOICES])
    kept = finished[~repeated]
    if len(twins := kept[kept.duplicated(PLACE, keep=False)]):
        folders = " and ".join(str(run.folder) for run in twins["run"])
        raise UsageError(f"{folders} have equal settings and seeds but other results; report one")
    return frame.drop(index=finished.index[repeated]).reset_index(drop=True)


def _with_unpaired(frame: Frame, conditions: Sequence[Condition]) -> Frame:
    """Returns the frame with a row for every run that a method lacks and another has in the same condition."""
    import pandas

    counts = frame.pivot_table("name", "method", PLACE[1:], aggfunc="count", sort=False)
    missing = counts.isna().melt(ignore_index=False).reset_index()
    missing = missing[missing.pop("value")].assign(run=None, kind="missing")
    if missing.empty:
        return frame
    lines = []
    for row in missing.itertuples():
        condition = places.condition_text(conditions[row.condition])
        where = f"{row.method}, {condition}".removesuffix(", ")
        lines.append(f"{where}: no run with {places.seeds_text((row.seed, row.partition_seed))}")
    return pandas.concat([frame, missing.assign(problem=lines)], ignore_index=True)


def _refuse_mixed(frame: Frame, any_rounds: bool) -> None:
    """Raises UsageError for runs of one condition with different data, different partitions of one seed, or other code.

    A partition from Python may depend on all seeds. Nor may they have different rounds, unless `any_rounds`.
    """
    folders = collections.defaultdict(dict)
    for row in frame[frame["run"].notna()].itertuples():
        run, manifest = row.run, row.run.manifest
        own_seed = row.seed if "partition" in run.custom else None
        drawn_by = row.condition, row.partition_seed, own_seed
        digests = {
            ("data", row.condition): manifest.get("data"),
            ("rounds", row.condition): None if any_rounds else run.config.rounds,
            ("partition", drawn_by): manifest.get("partition", row.partition_seed),
        }
        for argument, digest in manifest.get("code", {}).items():
            name = f"{argument} {run.custom.get(argument, '')}".strip()
            digests[name, "code"] = digest
        for group, digest in digests.items():
            folders[group].setdefault(str(digest), run.folder)
    lines = []
    for (what, _), mixed in folders.items():
        if len(mixed) > 1:
            lines += [f"{what} {digest:.12} in {folder}" for digest, folder in mixed.items()]
    if lines:
        raise UsageError(
            f"the runs are of different data, partitions, rounds or code: {_listed(lines)}; report them apart, give"
            " objects other names, or compare methods of different rounds by --metric time_to_target"
        )
