"""Checks that the files of a run folder are as its run wrote them.

Compares the files of the folder with the digests in the seals of its checkpoints, in manifest.json and in summary.json,
which have digests of themselves. A run is resumed, and a report counts it, only if its folder passes. It detects
accidental changes, not tampering.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files
from fedvg_jax.runs.record import folder as run_folder
from fedvg_jax.runs.record import history, seals
from fedvg_jax.runs.record.history import Record

COMMAND = "python -m fedvg_jax.report"


class Findings(NamedTuple):
    """Results of checking a run folder, one line each."""

    misfits: list[str]
    """files that are not as the run wrote them"""
    notes: list[str]
    """remarks on files that fit, such as a checkpoint that a kill left half-written"""
    unusable: list[str]
    """those of the misfits that a resumed run leaves behind: single checkpoints, and lines that no seal vouches for"""


class MisfitError(UsageError):
    """Files of a run folder are not as its run wrote them."""

    exit_code = 1

    def __init__(self, folder: Path, misfits: Sequence[str]):
        more = f" (and {len(misfits) - 1} more: {COMMAND} {folder})" if len(misfits) > 1 else ""
        advice = ""
        if newest := _newest_intact(folder):
            advice = f", or start a new run from the model of round {int(newest.name)} with --init {newest}"
        super().__init__(
            f"{folder} is not as its run left it: {misfits[0]}{more}; nothing was changed; restore the file{advice}"
        )
        self.misfits = list(misfits)


def _newest_intact(folder: Path) -> Path | None:
    """Returns the newest checkpoint whose files are as they were sealed; None without one."""
    for path in reversed(seals.checkpoint_folders(folder)):
        with contextlib.suppress(ValueError, RuntimeError, OSError):
            if not files.damaged(path, seals.read_seal(path)["files"]):
                return path
    return None


def is_run(path: Path) -> bool:
    """Returns whether a folder has files of a run."""
    return any((path / name).exists() for name in ("config.json", "history.jsonl", "summary.json", seals.FOLDER))


def check(path: Path, *, with_arrays: bool = True) -> Findings:
    """Returns the findings of comparing the files of a run folder with one another.

    Args:
        path: of the run folder.
        with_arrays: whether to read the arrays of the checkpoints, which take most of the time.

    Raises:
        UsageError: `path` is not a run folder.
    """
    try:
        found = is_run(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {files.reason(error)}; name the folder of a run") from None
    if not found:
        run_folder.refuse_sweep(path)
        raise UsageError(f"{path} is not a run folder: it has no config.json; name the folder of a run")
    findings = Findings([], [], [])
    checkpoints = _read_checkpoints(path, findings, with_arrays)
    manifest, summary = (_read_object(path / name, findings) for name in ("manifest.json", "summary.json"))
    text, records = _read_history(path, findings)
    sealed = checkpoints | ({"summary.json": summary.get("seal", {})} if summary is not None else {})
    if (checkpoints or summary is not None) and not (manifest or {}).keys() >= {"data", "partition"}:
        findings.misfits.append("manifest.json is missing, or holds no digests of data and partition")
    for name, seal in [*sealed.items(), ("manifest.json", manifest or {})]:
        try:
            findings.misfits.extend(_contradictions(path, text, manifest or {}, name, seal))
        except (LookupError, TypeError, ValueError, AttributeError):
            findings.misfits.append(f"the digests in {name} are damaged")
    _check_config(path, checkpoints, findings)
    if summary is None and (records or not text):
        findings.notes.append("no summary.json: the run is going on, or it was killed")
    return findings._replace(misfits=list(dict.fromkeys(findings.misfits)))


def _read_checkpoints(path: Path, findings: Findings, with_arrays: bool) -> dict[str, seals.SealEntries]:
    """Returns the seals of the checkpoints by folder name, oldest first, and reports those that cannot be used."""
    entries, unusable = {}, findings.unusable
    for checkpoint in seals.checkpoint_folders(path):
        name = f"{seals.FOLDER}/{checkpoint.name}"
        try:
            seal = seals.read_seal(checkpoint)
        except (ValueError, RuntimeError) as error:
            is_partial = str(error) == "half-written"  # a kill leaves such a checkpoint, and no run resumes from it
            (findings.notes if is_partial else unusable).append(f"{name}: {error}")
            continue
        if with_arrays:
            unusable.extend(f"{name}/{file} is damaged" for file in files.damaged(checkpoint, seal["files"]))
        if seal["round"] != int(checkpoint.name):
            findings.misfits.append(f"{name} is of round {seal['round']}")
        entries[name] = seal
    findings.misfits.extend(unusable)
    return entries


def _read_object(path: Path, findings: Findings) -> dict[str, Any] | None:
    """Returns a JSON object that ends in a digest of itself; None if the file is missing or damaged."""
    if not path.exists():
        return None
    try:
        value = files.read_object(path)
    except UsageError as error:
        findings.misfits.append(str(error).removeprefix(f"{path.parent}/"))
        return None
    if not seals.has_own_digest(value):
        findings.misfits.append(f"{path.name} is not as it was written: its digest differs")
    return value


def _read_history(path: Path, findings: Findings) -> tuple[bytes, list[Record]]:
    """Returns bytes and records of history.jsonl."""
    try:
        text = files.read_regular(path / "history.jsonl")
    except FileNotFoundError:
        return b"", []  # as a kill before the first round leaves it; a seal of more lines does not fit
    except OSError as error:
        findings.misfits.append(f"history.jsonl cannot be read: {files.reason(error)}")
        return b"", []
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        findings.notes.append(f"history.jsonl ends in {len(text) - len(whole)} bytes of a line that was cut short")
    try:
        return text, history.parse(whole)
    except ValueError as error:
        findings.unusable.append(f"history.jsonl is damaged: {files.reason(error)}")
        findings.misfits.extend(findings.unusable[-1:])
        return text, []


def _contradictions(
    path: Path, text: bytes, manifest: Mapping[str, Any], name: str, seal: Mapping[str, Any]
) -> list[str]:
    """Returns what differs from the digests in a file.

    Args:
        path: of the run folder.
        text: of history.jsonl.
        manifest: content of manifest.json.
        name: of the file.
        seal: its digests of the history, of data and partition (`sources`), and of other files (`documents`).
    """
    misfits = []
    if name != "manifest.json" and not seals.history_fits(seal["history"], text):
        misfits.append(f"history.jsonl is not the one that {name} was sealed with")
    for source, digest in seal.get("sources", {}).items():
        if manifest.get(source, digest) != digest:
            misfits.append(f"manifest.json has another digest of the {source} than {name}")
    for document, digest in seal.get("documents", {}).items():
        try:
            is_same = seals.text_digest(files.read_regular(path / document).decode("utf-8")) == digest
        except (OSError, ValueError) as error:
            misfits.append(f"{document} cannot be read: {files.reason(error)}")
        else:
            misfits.extend([] if is_same else [f"{document} is not the one that {name} was sealed with"])
    return misfits


def _check_config(path: Path, checkpoints: Mapping[str, seals.SealEntries], findings: Findings) -> None:
    """Checks that config.json has the settings of the checkpoints."""
    try:
        config = run_folder.read_config(path)
    except UsageError as error:
        findings.misfits.append(f"config.json: {error}")
        return
    for name, seal in checkpoints.items():
        try:
            changed = run_folder.differences(run_folder.config_from_json(seal["config"], name), config)
        except UsageError as error:
            findings.notes.append(f"{name}: {error}")
            continue
        if changed:
            findings.misfits.append(f"config.json is not what {name} was made with: {', '.join(changed)}")
