"""Checks that the files of a run folder are as its run wrote them.

Recomputes the results of summary.json from history.jsonl, and compares the files of the folder with the digests in the
seals of its checkpoints, in manifest.json and in summary.json, and its settings with the point of a sweep that it is
in. It detects accidents and careless edits, not a forger who also rewrites every digest: no key is involved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.core import files
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs import history, resume, seals, sweep_folder
from fedvg_jax.runs.history import Record

COMMAND = "python -m fedvg_jax.verify"


class Report(NamedTuple):
    """Results of checking a run folder, one line each."""

    misfits: list[str]
    """files that are not as the run wrote them"""
    notes: list[str]
    """remarks on files that fit: lost records, digests that an earlier version did not write"""


class MisfitError(UsageError):
    """Files of a run folder are not as its run wrote them."""

    exit_code = 1

    def __init__(self, folder: Path, misfits: Sequence[str]):
        more = f" (and {len(misfits) - 1} more: {COMMAND} {folder})" if len(misfits) > 1 else ""
        super().__init__(f"{folder} is not as its run left it: {misfits[0]}{more}")
        self.misfits = list(misfits)


class _Folder(NamedTuple):
    """The content of a run folder."""

    path: Path
    text: bytes
    """of history.jsonl"""
    records: list[Record]
    seals: dict[str, seals.SealEntries]
    """seals of the checkpoints by folder name, oldest first"""
    manifest: dict[str, Any]
    summary: dict[str, Any] | None


def is_run(path: Path) -> bool:
    """Returns whether a folder has files of a run."""
    return any((path / name).exists() for name in ("config.json", "history.jsonl", "summary.json", seals.FOLDER))


def check(path: Path, *, with_arrays: bool = True) -> Report:
    """Returns the report of comparing the files of a run folder with one another.

    Args:
        path: of the run folder.
        with_arrays: whether to read the arrays of the checkpoints, which take most of the time.

    Raises:
        UsageError: `path` is not a run folder.
    """
    try:
        if not is_run(path):
            history.refuse_sweep(path)
            raise UsageError(f"{path} is not a run folder: it has no config.json; name the folder of a run")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {files.reason(error)}; name the folder of a run") from None
    report = Report([], [])
    folder = _read(path, report, with_arrays)
    for part in (_check_history, _check_config, _check_manifest, _check_documents, _check_best, _check_summary):
        part(folder, report)
    return report


def _read(path: Path, report: Report, with_arrays: bool) -> _Folder:
    """Returns the content of the folder, and reports files that cannot be read."""
    entries = {}
    for checkpoint in seals.checkpoint_folders(path):
        name = f"{seals.FOLDER}/{checkpoint.name}"
        try:
            seal = seals.read_seal(checkpoint)
        except (ValueError, RuntimeError) as error:
            is_partial = str(error) == "half-written"  # a kill leaves such a checkpoint, and no run resumes from it
            (report.notes if is_partial else report.misfits).append(f"{name}: {error}")
            continue
        if seal["round"] != int(checkpoint.name):
            report.misfits.append(f"{name} is of round {seal['round']}")
        if with_arrays:
            report.misfits.extend(f"{name}/{file} is damaged" for file in files.damaged(checkpoint, seal["files"]))
        entries[name] = seal
    manifest, summary = (_object(path / name, report) for name in ("manifest.json", "summary.json"))
    is_digested = any("chain" in seal for seal in entries.values())
    is_digested |= any(seals.DIGEST in value for value in (manifest, summary) if value)
    _check_own_digest("manifest.json", manifest, is_digested, report)
    _check_own_digest("summary.json", summary, is_digested, report)
    if (entries or summary is not None) and not (manifest or {}).keys() >= {"data", "partition"}:
        report.misfits.append("manifest.json is missing, or holds no digests of data and partition")
    return _Folder(path, *_history(path, report), entries, manifest or {}, summary)


def _object(path: Path, report: Report) -> dict[str, Any] | None:
    """Returns a JSON object; None if the file is missing, or damaged, which is reported."""
    try:
        value = json.loads(files.read_regular(path).decode("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        report.misfits.append(f"{path.name} is damaged: {files.reason(error)}")
        return None
    if not isinstance(value, dict):
        report.misfits.append(f"{path.name} is damaged: it is not a JSON object")
        return None
    return value


def _check_own_digest(name: str, value: Mapping[str, Any] | None, is_digested: bool, report: Report) -> None:
    """Checks the digest that a file has of itself.

    Args:
        name: of the file.
        value: its content; None if there is none.
        is_digested: whether the run is of a version that writes digests, so that the file must have one.
        report: of the run folder.
    """
    if value is None:
        return
    if not seals.has_own_digest(value) or (is_digested and seals.DIGEST not in value):
        report.misfits.append(f"{name} is not as it was written: its digest differs")
    elif seals.DIGEST not in value:
        report.notes.append(f"{name} has no digest of its own: an earlier version wrote it")


def _history(path: Path, report: Report) -> tuple[bytes, list[Record]]:
    """Returns bytes and records of history.jsonl."""
    try:
        text = files.read_regular(path / "history.jsonl")
    except OSError as error:
        report.misfits.append(f"history.jsonl cannot be read: {files.reason(error)}")
        return b"", []
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        report.notes.append(f"history.jsonl ends in {len(text) - len(whole)} bytes of a line that was cut short")
    try:
        return text, history.parse(whole)
    except ValueError as error:
        report.misfits.append(f"history.jsonl is damaged: {files.reason(error)}")
        return text, []


def _check_history(folder: _Folder, report: Report) -> None:
    """Checks that the history has every seal's lines, except those that are marked as lost."""
    lost = [r["round"] for r in folder.records if history.is_lost(r)]
    if lost:
        report.notes.append(f"history.jsonl: the records of {len(lost)} rounds are lost, the first is {lost[0]}")
    entries: dict[str, Any] = dict(folder.seals)
    if folder.summary and isinstance(folder.summary.get("seal"), dict):
        entries["summary.json"] = folder.summary["seal"]
    for name, seal in entries.items():
        try:
            if seals.history_fits(seal, folder.text):
                continue
            changed = _changed_lines(seal, folder, lost)
        except (LookupError, TypeError, ValueError):
            changed = "its seal is damaged"
        if changed:
            report.misfits.append(f"history.jsonl is not the one that {name} was sealed with: {changed}")


def _changed_lines(seal: Mapping[str, Any], folder: _Folder, lost: Sequence[int]) -> str:
    """Returns which lines are not as they were sealed, except lost ones; "" if there are none."""
    count = len(seals.line_crcs(seal))
    if not count:
        return "its first bytes differ"
    intact = seals.intact_lines(seal, folder.text)
    changed = [number for number in range(1, count + 1) if number not in intact and number not in lost]
    if changed:
        return f"round {changed[0]}" + (f" and {len(changed) - 1} more" if len(changed) > 1 else "")
    return "" if lost else "its lines are in another order"


def _check_config(folder: _Folder, report: Report) -> None:
    """Checks that config.json has the settings of the checkpoints, and of the point of a sweep."""
    try:
        config = history.read_config(folder.path)
        stored = files.read_object(folder.path / "config.json")
    except UsageError as error:
        report.misfits.append(f"config.json: {error}")
        return
    if contradiction := sweep_folder.contradiction(folder.path, config):
        report.misfits.append(contradiction)
    for name, seal in folder.seals.items():
        try:
            changed = resume.differences(history.config_from_json(seal["config"], name), config)
        except UsageError as error:
            report.notes.append(f"{name}: {error}")
            continue
        if changed:
            report.misfits.append(f"config.json is not what {name} was made with: {', '.join(changed)}")
    _check_final_config(folder, stored, report)


def _check_final_config(folder: _Folder, stored: dict[str, Any], report: Report) -> None:
    """Checks that config.json of a run that has ended is that of its newest checkpoint, in all entries."""
    newest = list(folder.seals.values())[-1:]
    has_ended = newest and folder.summary is not None and folder.summary.get("rounds") == newest[0]["round"]
    if has_ended and not _same(stored, newest[0]["config"]) and not report.misfits:
        sealed = newest[0]["config"]
        changed = [name for name in {**sealed, **stored} if not _same(stored.get(name), sealed.get(name))]
        report.misfits.append(f"config.json is not what the run ended with: {', '.join(changed)}")


def _check_manifest(folder: _Folder, report: Report) -> None:
    """Checks that data and partition have the same digests in all files."""
    for name, sources in _entries(folder, "sources").items():
        for source, digest in sources.items():
            if source in folder.manifest and folder.manifest[source] != digest:
                report.misfits.append(f"manifest.json has another digest of the {source} than {name}")


def _check_documents(folder: _Folder, report: Report) -> None:
    """Checks that layers.json, partition.json and config.json have the sealed digests."""
    sealed = _entries(folder, "documents")
    if isinstance(folder.manifest.get("documents"), dict):
        sealed["manifest.json"] = folder.manifest["documents"]
    if not sealed:
        report.notes.append("layers.json and partition.json were not sealed: an earlier version wrote them")
    digests: dict[str, str] = {}
    for document in sorted({document for documents in sealed.values() for document in documents}):
        try:
            digests[document] = seals.text_digest(files.read_regular(folder.path / document).decode("utf-8"))
        except (OSError, ValueError) as error:
            report.misfits.append(f"{document} cannot be read: {files.reason(error)}")
    for document, digest in digests.items():
        others = [name for name, documents in sealed.items() if documents.get(document, digest) != digest]
        if others:
            report.misfits.append(f"{document} is not the one that {others[0]} was sealed with")


def _entries(folder: _Folder, entry: str) -> dict[str, dict[str, str]]:
    """Returns one entry of every seal that has it, including the summary's."""
    holders: dict[str, Any] = dict(folder.seals)
    if folder.summary and isinstance(folder.summary.get("seal"), dict):
        holders["summary.json"] = folder.summary["seal"]
    return {name: held[entry] for name, held in holders.items() if isinstance(held.get(entry), dict)}


def _check_best(folder: _Folder, report: Report) -> None:
    """Checks that the best model of each checkpoint is of the best evaluation in the history."""
    for name, seal in folder.seals.items():
        best, records = seal["best"], folder.records[: seal["round"]]
        if not best or any(history.is_lost(r) for r in records):
            continue
        try:
            expected = history.summarise(records).get("best_val_round")
        except (LookupError, TypeError, ValueError):
            continue  # reported with the summary
        if expected is not None and best["round"] != expected:
            report.misfits.append(f"{name} keeps the model of round {best['round']} as the best, not of {expected}")


def _check_summary(folder: _Folder, report: Report) -> None:
    """Checks that the results of summary.json are those of the history."""
    summary = folder.summary
    if summary is None:
        report.notes.append("no summary.json: the run is going on, or it was killed")
        return
    if folder.text and not folder.records:
        return  # the damage is already reported
    try:
        expected: dict[str, Any] = {"rounds": len(folder.records), **history.summarise(folder.records)}
    except (LookupError, TypeError, ValueError):
        report.misfits.append("history.jsonl lacks numbers that its evaluations must have")
        return
    for name, value in expected.items():
        is_unknown = value is None and "lost_rounds" in expected
        if not is_unknown and (name not in summary or not _same(summary[name], value)):
            report.misfits.append(f"summary.json: {name} is {summary.get(name)!r}, the history gives {value!r}")
    newest = max((seal["round"] for seal in folder.seals.values()), default=0)
    if newest > len(folder.records):
        report.misfits.append(f"summary.json is of {summary.get('rounds')!r} rounds, the newest checkpoint of {newest}")


def _same(one: Any, other: Any) -> bool:
    """Returns whether values are equal as JSON, including their types."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
