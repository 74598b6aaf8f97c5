"""Collects run folders into a study, and refuses those that cannot be compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config import Config
from fedvg_jax.config.methods import algorithm_of
from fedvg_jax.config.options import partition_seed
from fedvg_jax.config.uses import PASSED
from fedvg_jax.host import files
from fedvg_jax.host.errors import UsageError, one_line
from fedvg_jax.runs import endings
from fedvg_jax.runs.record import digests, folder as run_folder
from fedvg_jax.runs.record.history import CLIENT_ACCURACIES, OF_GLOBAL_MODEL, History
from fedvg_jax.study import cells, sweep_folder, tuning
from fedvg_jax.study.cells import Cell, Place, Run, Scenario, Study
from fedvg_jax.study.sweep_folder import Stored

Cells = dict[tuple[str, Scenario], Cell]
"""(method, scenario) -> its runs"""

MAX_LISTED = 40
"""Most lines of a refusal; a count of the others follows."""


class Folder(NamedTuple):
    """What a run folder, or a point of a sweep, has to offer."""

    settings: Mapping[str, Any]
    """See `cells.settings_of`."""
    run: Run | None = None
    """None where the run is missing, incomplete or has failed."""
    missing: str = ""
    """Why there is no result, except for a failure."""
    failure: str = ""


def collect(folders: Sequence[Path | str], partial: bool = False, metric: str | None = None) -> Study:
    """Returns the study of run folders.

    Args:
        folders: sweep folders (with sweep.json), run folders, or folders of these.
        partial: keep to the runs that are finished and mark the cells that lack some.
        metric: the outcome that is compared, a name of `cells.outcomes`; "min:NAME" and "max:NAME" declare that a
            smaller or a larger value is better. None for accuracy, that of the clients' own models where a method has
            such models and all runs record it, or loss where some run has no accuracy.

    Raises:
        UsageError: there is no run, two runs are the same, data are mixed, or, unless `partial`, runs are missing, as
            where methods have other settings. The message lists them.
    """
    return make_study(*read_all([files.user_path(folder) for folder in folders]), folders, partial, metric)


def make_study(
    read: Sequence[Folder | str],
    sweeps: Sequence[Stored],
    folders: Sequence[Path | str],
    partial: bool = False,
    metric: str | None = None,
) -> Study:
    """Returns the study of what was read: runs, or lines on lost ones, and their sweeps; see `collect`."""
    lost = [line for line in read if isinstance(line, str)]
    run_folders = [folder for folder in read if not isinstance(folder, str)]
    if not any(folder.run for folder in run_folders):
        reasons = [*(folder.missing or folder.failure for folder in run_folders), *lost]
        where = ", ".join(map(str, folders))
        raise UsageError(f"{where}: no finished run to report; {_listed(reasons) or 'name a folder of runs'}")
    is_one_sweep = len(sweeps) == 1 and len(sweeps[0].points) == len(run_folders)
    placed = cells.places([folder.settings for folder in run_folders], sweeps[0].axes if is_one_sweep else ())
    if sources := _mixed_sources(run_folders, placed):
        raise UsageError(f"the runs are of different data or partitions: {_listed(sources)}; report them apart")
    by_place, twins = _cells(run_folders, placed)
    by_place = by_place if is_one_sweep else _with_unpaired(by_place, placed)
    missing = [line for cell in by_place.values() for line in cell.missing] + lost
    if missing and not partial:
        raise UsageError(
            f"the runs cannot be reported as one study: {_listed(missing)}; finish, recompute or leave out those runs,"
            " or report with --partial"
        )
    name, sign = _metric([folder.run for folder in run_folders if folder.run], metric)
    by_place = {key: _with_lost_results(cell, name) for key, cell in by_place.items()}
    named = [sweep.title for sweep in sweeps if sweep.title] or [Path(folder).resolve().name for folder in folders]
    runs = [folder.settings for folder in run_folders if folder.run]
    local = [OF_GLOBAL_MODEL] if any(settings.get("local") for settings in runs) else []
    local = [OF_OWN_MODELS] if name.startswith("personal_") else local
    scenarios = sorted(dict.fromkeys(scenario for _, scenario in by_place), key=_order)
    return Study(
        title="; ".join(dict.fromkeys(named)),
        methods=tuple(dict.fromkeys(method for method, _ in by_place)),
        scenarios=tuple(scenarios),
        cells=by_place,
        metric=name,
        declared_sign=sign,
        settings=cells.shared_settings(runs),
        notes=(*_shared_partition(by_place), *local, *_tuned(sweeps), *_other_code(by_place), *twins, *lost),
    )


def _other_code(by_place: Cells) -> list[str]:
    """Returns a line for every name of own objects that has other code in some run than in the first."""
    first: dict[tuple[str, str], Run] = {}
    lines: dict[tuple[str, str], str] = {}
    for run in (run for cell in by_place.values() for run in cell.runs.values()):
        codes = run.manifest.get("code", {})
        for key in ((argument, name) for argument, name in run.given.items() if name and argument in codes):
            other = first.setdefault(key, run)
            if other.manifest["code"][key[0]] != codes[key[0]]:
                lines.setdefault(key, f"{' '.join(key)} has other code in {run.folder} than in {other.folder}")
    return list(lines.values())


OF_OWN_MODELS = (
    "results are of the clients' own models on their own test rows, and of the global model for a method without such"
    " models; the table of clients has the global model on all test rows beside them"
)

PERSONAL, *_ = CLIENT_ACCURACIES["personal_accuracy"]


def _metric(runs: Sequence[Run], text: str | None) -> tuple[str, int]:
    """Returns the name of the metric that is compared, and its declared sign, 0 without one.

    Raises:
        UsageError: some run has not recorded it.
    """
    finals = [cells.last_outcomes(run) for run in runs]
    common = [name for name in finals[0] if all(name in final for final in finals)]
    if text is None:
        are_personal = any(r.config.local or algorithm_of(r.config).personal for r in runs)
        if are_personal and PERSONAL in common:
            return PERSONAL, 0
        return "accuracy" if "accuracy" in common else "loss", 0
    sign = {"min:": -1, "max:": 1}.get(text[:4], 0)
    name = text[4 * abs(sign) :].removeprefix("test_")
    if name not in common:
        without = next((run for run, final in zip(runs, finals, strict=True) if name not in final))
        raise UsageError(f"--metric {text[:100]}: {without.folder} has none; all runs have {', '.join(common)}")
    return name, sign


def _tuned(sweeps: Sequence[Stored]) -> list[str]:
    """Returns a line with the values that were chosen for every cell; none without tuning."""
    chosen = [
        f"{cell}: {', '.join(tuning.value_texts(choice['values'], sweep.tuning['settings']))}"
        for sweep in sweeps
        for cell, choice in sweep.tuning.get("chosen", {}).items()
    ]
    return [f"chosen on the validation set: {'; '.join(chosen)}"] if chosen else []


def _order(scenario: Scenario) -> list[tuple[str, float, str]]:
    """Returns the sorting key of a scenario: numbers by size, other values by their text."""
    return [
        (name, value, "") if isinstance(value, (int, float)) else (name, math.inf, str(value))
        for name, value in scenario
    ]


def _listed(lines: Sequence[str]) -> str:
    """Returns lines joined by semicolons, at most `MAX_LISTED` of them."""
    shown = list(dict.fromkeys(line for line in lines if line))
    more = [f"and {len(shown) - MAX_LISTED} more"] if len(shown) > MAX_LISTED else []
    return "; ".join(shown[:MAX_LISTED] + more)


def _with_lost_results(cell: Cell, metric: str) -> Cell:
    """Returns a cell with a failure for every run whose last evaluation is not finite, which has no result."""
    lost = (run.folder.name for run in cell.runs.values() if cells.last_outcomes(run)[metric] is None)
    lines = (f"{name}: final {cells.TITLES.get(metric, metric)} is not finite" for name in lost)
    return cell._replace(failures=(*cell.failures, *lines))


# --- reading


def read_all(folders: Sequence[Path]) -> tuple[list[Folder | str], list[Stored]]:
    """Returns every run below the given folders, or a line where its settings are lost, and their sweeps."""
    runs: list[Folder | str] = []
    sweeps: list[Stored] = []
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder; name a sweep, a run, or a folder of runs")
        if (folder / "sweep.json").exists():
            sweeps.append(sweep := sweep_folder.read(folder))
            for name, (values, config) in sweep.points.items():
                given = dict.fromkeys(PASSED.keys() & sweep.objects, "")
                given |= {n: values[n] for n in PASSED if f"{n} {values.get(n)}" in sweep.objects}
                read = _read_run(sweep_folder.point_folder(folder, name), values, given, config)
                settings = cells.settings_of(config, values, given)
                runs.append(Folder(settings, missing=read) if isinstance(read, str) else read)
        elif run_folder.is_run(folder):
            runs.append(_read_run(folder))
        else:
            inner = [p for p in sorted(folder.iterdir()) if (p / "sweep.json").exists() or run_folder.is_run(p)]
            if not inner:
                points = f", such as {folder / 'points'}" if (folder / "points").is_dir() else ""
                raise UsageError(f"{folder} holds no runs (no sweep.json, config.json); name a sweep or a run{points}")
            deeper, more = read_all(inner)
            runs += deeper
            sweeps += more
    return runs, sweeps


def _read_run(
    folder: Path, values: Mapping[str, Any] = {}, given: Mapping[str, str] = {}, planned: Config | None = None
) -> Folder | str:
    """Returns what a run folder has to offer, or why its settings are lost; damaged files are one line.

    Args:
        folder: of the run.
        values, given: see `settings_of`.
        planned: settings that the sweep of the run has for it.
    """
    name = folder.name
    if not (folder / "config.json").exists():
        return f"{name}: {'config.json is missing' if run_folder.is_run(folder) else 'no run folder yet'}"
    try:
        history = History.load(folder)
        paths = [folder / f"{stem}.json" for stem in ("partition", "manifest", "layers")]
        partition, manifest, layers = (files.read_json(path) if path.exists() else None for path in paths)
    except UsageError as error:
        return f"{name}: {one_line(str(error))}"
    assert history.config is not None
    if planned and (changed := run_folder.differences(planned, history.config)):
        return f"{name}: other settings than those of the sweep: {changed[0]}"
    given = {**given, **{n: name for n, name in (manifest or {}).get("given", {}).items() if n in PASSED}}
    settings, failure = cells.settings_of(history.config, values, given), _failure(folder, history)
    if problem := "" if failure else _unfinished(folder, history):
        return Folder(settings, missing=f"{name}: {problem}")
    if misfits := digests.check(folder):
        return Folder(settings, missing=f"{name}: {misfits[0]}")
    if failure:
        return Folder(settings, failure=f"{name}: {failure}")
    return Folder(settings, Run(folder, history, partition or {}, manifest or {}, layers or (), given))


def _failure(folder: Path, history: History) -> str:
    """Returns why a run ended early for good; empty where it did not."""
    if failure := sweep_folder.read_failure(folder):
        when = f" in round {failure.round}" if failure.round else ""
        return f"{failure.kind}{when}: {one_line(failure.reason).removeprefix(f'round {failure.round}: ')}"
    has_diverged = history.summary.get("stopped_by") == "diverged"
    return f"diverged in round {len(endings.until_first(history.records))}" if has_diverged else ""


def _unfinished(folder: Path, history: History) -> str:
    """Returns what a run lacks; empty for a finished one."""
    assert history.config is not None
    if not run_folder.is_finished(folder, history.config):
        return f"{len(history.records)} of {history.config.rounds} rounds"
    has_evaluation = any("test_loss" in record for record in history.records)
    return "" if has_evaluation else "no evaluation in its history"


# --- cells


def _cells(run_folders: Sequence[Folder], placed: Sequence[Place]) -> tuple[Cells, list[str]]:
    """Returns the cells in the order of their first run, and notes on runs that occur twice.

    Raises:
        UsageError: two runs have the same place and other results.
    """
    by_place: Cells = {}
    notes = []
    for folder, place in zip(run_folders, placed, strict=True):
        key = place.method, place.scenario
        cell = by_place.get(key) or Cell(*key, {})
        runs = {**cell.runs} | ({place.replicate: folder.run} if folder.run else {})
        if folder.run and (first := cell.runs.get(place.replicate)):
            runs[place.replicate] = first
            notes.append(_twin(first, folder.run))
        missing, failures = ((line,) if line else () for line in (folder.missing, folder.failure))
        by_place[key] = Cell(*key, runs, cell.missing + missing, cell.failures + failures)
    return by_place, notes


def _twin(first: Run, second: Run) -> str:
    """Returns a note that of two equal runs the first is used; raises UsageError if their results differ."""
    names = ("test_accuracy_final", "test_loss_final")
    if any(first.history.summary.get(name) != second.history.summary.get(name) for name in names):
        raise UsageError(
            f"{first.folder} and {second.folder} have equal settings and seeds but other results; report one"
        )
    return f"{second.folder.name} repeats {first.folder.name} and is left out"


def _with_unpaired(by_place: Cells, placed: Sequence[Place]) -> Cells:
    """Returns cells with a line for every replicate and scenario that another method has and they lack.

    Args:
        by_place: all cells.
        placed: places of all runs, of the missing and failed ones too, for which there is a line already.
    """
    complete = {}
    for method in dict.fromkeys(method for method, _ in by_place):
        for scenario in dict.fromkeys(scenario for _, scenario in by_place):
            cell = by_place.get((method, scenario)) or Cell(method, scenario, {})
            wanted = {r for (_, where), other in by_place.items() if where == scenario for r in other.runs}
            absent = wanted - {r for m, s, r in placed if (m, s) == (method, scenario)}
            where = ", ".join(filter(None, (method, cells.scenario_text(scenario))))
            lines = tuple(f"{where}: no run with {cells.replicate_text(r)}" for r in sorted(absent))
            complete[method, scenario] = cell._replace(missing=cell.missing + lines)
    return complete


def _mixed_sources(run_folders: Sequence[Folder], placed: Sequence[Place]) -> list[str]:
    """Returns a line for every scenario with different data, or with different partitions of one seed."""
    lines: dict[tuple[Scenario, str], str] = {}
    first: dict[tuple, Run] = {}
    for run, place in ((folder.run, place) for folder, place in zip(run_folders, placed, strict=True) if folder.run):
        # one from Python may depend on all seeds
        seeds = (partition_seed(run.config), *([run.config.seed] if "partition" in run.given else []))
        for name, key in {"data": (), "partition": seeds}.items():
            other = first.setdefault((place.scenario, name, key), run)
            if (ours := run.manifest.get(name)) != (theirs := other.manifest.get(name)):
                line = f"mixed {name}: {str(theirs)[:12]} in {other.folder}, {str(ours)[:12]} in {run.folder}"
                lines.setdefault((place.scenario, name), line)
    return list(lines.values())


def _shared_partition(by_place: Cells) -> list[str]:
    """Returns a line on scenarios in which seeds share a partition; it comes before all other notes."""
    drawn: dict[Scenario, set[tuple[int, Any]]] = {}
    for (_, scenario), cell in by_place.items():
        for run in cell.runs.values():
            partition = run.manifest.get("partition", partition_seed(run.config))
            drawn.setdefault(scenario, set()).add((run.config.seed, partition))
    shared = [s for s, pairs in drawn.items() if len({partition for _, partition in pairs}) < len(pairs)]
    where = f" at {'; '.join(map(cells.scenario_text, shared))}" if len(shared) < len(drawn) else ""
    line = f"seeds{where} share a partition, so that differences and intervals hold for the partitions drawn only"
    return [line] if shared else []
