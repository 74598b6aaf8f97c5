"""Checks that a run folder holds what its run wrote.

Recomputes the results of summary.json from history.jsonl, and compares the files of the folder with the digests in the
seals of its checkpoints, in manifest.json and in summary.json. It finds accidents and careless edits, not a forger who
also rewrites every digest: no key is involved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config import to_json
from fedvg_jax.core import files
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs import history, resume, seals
from fedvg_jax.runs.history import Record

COMMAND = "python -m fedvg_jax.verify"


class Report(NamedTuple):
    """What was found in a run folder, a line each."""

    misfits: list[str]
    """what does not fit"""
    notes: list[str]
    """what fits, and should be known: lost records, digests that an earlier version did not write"""


class MisfitError(UsageError):
    """A run folder does not hold what its run wrote."""

    exit_code = 1

    def __init__(self, folder: Path, misfits: Sequence[str]):
        more = f" (and {len(misfits) - 1} more: {COMMAND} {folder})" if len(misfits) > 1 else ""
        super().__init__(f"{folder} is not as its run left it: {misfits[0]}{more}")
        self.misfits = list(misfits)


class _Folder(NamedTuple):
    """The parts of a run folder as read."""

    path: Path
    text: bytes
    """of history.jsonl"""
    records: list[Record]
    abouts: dict[str, seals.About]
    """seals of the checkpoints by folder name, oldest first"""
    manifest: dict[str, Any]
    summary: dict[str, Any] | None


def check(path: Path) -> Report:
    """Compares the files of a run folder with one another.

    Raises:
        UsageError: it is no run folder.
    """
    if not any((path / name).exists() for name in ("config.json", "history.jsonl", "summary.json", seals.FOLDER)):
        raise UsageError(f"{path} is no run folder: it has no config.json; name the folder of a run")
    report = Report([], [])
    folder = _read(path, report)
    for part in (_check_history, _check_config, _check_manifest, _check_documents, _check_best, _check_summary):
        part(folder, report)
    return report


def _read(path: Path, report: Report) -> _Folder:
    """The folder, and what of it cannot be read."""
    abouts = {}
    for checkpoint in seals.listed(path):
        name = f"{seals.FOLDER}/{checkpoint.name}"
        try:
            about = seals.unsealed(checkpoint)
        except (ValueError, RuntimeError) as error:
            is_partial = str(error) == "half-written"  # a kill leaves such a one, and no run goes on from it
            (report.notes if is_partial else report.misfits).append(f"{name}: {error}")
            continue
        if about["round"] != int(checkpoint.name):
            report.misfits.append(f"{name} is of round {about['round']}")
        report.misfits.extend(f"{name}/{file} is damaged" for file in files.damaged(checkpoint, about["files"]))
        abouts[name] = about
    is_digested = any("chain" in about for about in abouts.values())
    manifest = _object(path / "manifest.json", report, is_digested)
    if manifest is None and abouts:
        report.misfits.append("manifest.json is missing; the digests of data and partition in the checkpoints are used")
    summary = _object(path / "summary.json", report, is_digested)
    return _Folder(path, *_history(path, report), abouts, manifest or {}, summary)


def _object(path: Path, report: Report, is_digested: bool) -> dict[str, Any] | None:
    """A JSON object; None where there is no such file, or where it is damaged, which is reported.

    Args:
        is_digested: whether the run is of a version that writes digests, so that one must be there.
    """
    try:
        found = json.loads(files.read_regular(path).decode("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        report.misfits.append(f"{path.name} is damaged: {files.reason(error)}")
        return None
    if not isinstance(found, dict):
        report.misfits.append(f"{path.name} is damaged: it holds no table")
        return None
    if not seals.has_own_digest(found) or (is_digested and seals.OWN not in found):
        report.misfits.append(f"{path.name} is not as it was written: its digest is another")
    elif seals.OWN not in found:
        report.notes.append(f"{path.name} has no digest of its own: an earlier version wrote it")
    return found


def _history(path: Path, report: Report) -> tuple[bytes, list[Record]]:
    """Bytes and records of history.jsonl."""
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
    """Every seal's lines are in the history; lost records are known to be."""
    lost = [r["round"] for r in folder.records if history.is_lost(r)]
    if lost:
        report.notes.append(f"history.jsonl: the records of {len(lost)} rounds are lost, the first is {lost[0]}")
    sealed = dict(folder.abouts)
    if folder.summary and isinstance(folder.summary.get("seal"), dict):
        sealed["summary.json"] = folder.summary["seal"]
    for name, about in sealed.items():
        try:
            if seals.history_fits(about, folder.text):
                continue
            changed = _changed_lines(about, folder, lost)
        except (LookupError, TypeError, ValueError):
            changed = "its seal is damaged"
        if changed:
            report.misfits.append(f"history.jsonl is not the one that {name} was sealed with: {changed}")


def _changed_lines(about: Mapping[str, Any], folder: _Folder, lost: Sequence[int]) -> str:
    """Which lines are not as they were sealed, except those known to be lost; "" if there are none."""
    count = len(seals.line_crcs(about))
    if not count:
        return "its first bytes differ"
    intact = seals.intact_lines(about, folder.text)
    changed = [number for number in range(1, count + 1) if number not in intact and number not in lost]
    if changed:
        return f"round {changed[0]}" + (f" and {len(changed) - 1} more" if len(changed) > 1 else "")
    return "" if lost else "its lines are in another order"


def _check_config(folder: _Folder, report: Report) -> None:
    try:
        config = resume.stored(folder.path)
    except UsageError as error:
        report.misfits.append(f"config.json: {error}")
        return
    for name, about in folder.abouts.items():
        try:
            changed = resume.differences(resume.from_json(about["config"], name), config)
        except UsageError as error:
            report.notes.append(f"{name}: {error}")
            continue
        if changed:
            report.misfits.append(f"config.json is not what {name} was made with: {', '.join(changed)}")
    newest = list(folder.abouts.values())[-1:]
    is_ended = newest and folder.summary is not None and folder.summary.get("rounds") == newest[0]["round"]
    if is_ended and not _same(to_json(config), newest[0]["config"]) and not report.misfits:
        changed = [name for name, value in to_json(config).items() if not _same(value, newest[0]["config"].get(name))]
        report.misfits.append(f"config.json is not what the run ended with: {', '.join(changed)}")


def _check_manifest(folder: _Folder, report: Report) -> None:
    """Data and partition are the same everywhere."""
    for name, sources in _entries(folder, "sources").items():
        for source, digest in sources.items():
            if source in folder.manifest and folder.manifest[source] != digest:
                report.misfits.append(f"manifest.json names another {source} than {name}")


def _check_documents(folder: _Folder, report: Report) -> None:
    """layers.json and partition.json have the digests that were sealed."""
    known = _entries(folder, "documents")
    if isinstance(folder.manifest.get("documents"), dict):
        known["manifest.json"] = folder.manifest["documents"]
    if not known:
        report.notes.append("layers.json and partition.json were not sealed: an earlier version wrote them")
    found: dict[str, str] = {}
    for document in sorted({document for documents in known.values() for document in documents}):
        try:
            found[document] = seals.text_digest(files.read_regular(folder.path / document).decode("utf-8"))
        except (OSError, ValueError) as error:
            report.misfits.append(f"{document} cannot be read: {files.reason(error)}")
    for document, digest in found.items():
        others = [name for name, documents in known.items() if documents.get(document, digest) != digest]
        if others:
            report.misfits.append(f"{document} is not the one that {others[0]} was sealed with")


def _entries(folder: _Folder, entry: str) -> dict[str, dict[str, str]]:
    """An entry of every seal that has it, the summary's among them."""
    holders: dict[str, Any] = dict(folder.abouts)
    if folder.summary and isinstance(folder.summary.get("seal"), dict):
        holders["summary.json"] = folder.summary["seal"]
    return {name: held[entry] for name, held in holders.items() if isinstance(held.get(entry), dict)}


def _check_best(folder: _Folder, report: Report) -> None:
    """The model kept as the best on validation is that of the best evaluation in the history."""
    for name, about in folder.abouts.items():
        best, records = about["best"], folder.records[: about["round"]]
        if not best or any(history.is_lost(r) for r in records):
            continue
        try:
            expected = history.summarise(records).get("best_val_round")
        except (LookupError, TypeError, ValueError):
            continue  # reported with the summary
        if expected is not None and best["round"] != expected:
            report.misfits.append(f"{name} keeps the model of round {best['round']} as the best, not of {expected}")


def _check_summary(folder: _Folder, report: Report) -> None:
    """Every result of summary.json is what the history gives."""
    summary = folder.summary
    if summary is None:
        report.notes.append("no summary.json: the run has not ended, or it was killed")
        return
    if folder.text and not folder.records:
        return  # its damage is reported
    try:
        expected: dict[str, Any] = {"rounds": len(folder.records), **history.summarise(folder.records)}
    except (LookupError, TypeError, ValueError):
        report.misfits.append("history.jsonl lacks numbers that its evaluations must have")
        return
    for name, value in expected.items():
        is_unknown = value is None and "lost_rounds" in expected
        if not is_unknown and (name not in summary or not _same(summary[name], value)):
            report.misfits.append(f"summary.json: {name} is {summary.get(name)!r}, the history gives {value!r}")
    newest = max((about["round"] for about in folder.abouts.values()), default=0)
    if newest > len(folder.records):
        report.misfits.append(f"summary.json is of {summary.get('rounds')!r} rounds, the newest checkpoint of {newest}")


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: of one type, too."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
