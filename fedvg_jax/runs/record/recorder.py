"""Writes the run folder: every chunk's records at once, checkpoints in the background.

A checkpoint holds the state and the variables that were best on validation. Its seal has the digests of the history up
to its round, of the data and of the partition. A resumed run continues from a checkpoint with exactly the records up to
its round; rounds after it are computed again. A folder that is not as its run left it is refused, and not changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config import Config, to_json
from fedvg_jax.core.types import SimState, UsageError, Variables
from fedvg_jax.host import files, processes
from fedvg_jax.runs.placement import client_memories
from fedvg_jax.runs.record import checkpoint, history, provenance, seals, verification
from fedvg_jax.runs.record import folder as run_folder
from fedvg_jax.runs.record.history import Record

SECONDS = 60.0
"""Seconds between checkpoints where `checkpoint_every` is 0."""

SLOW = 5.0
"""Seconds of a chunk after which it is saved where `checkpoint_every` is 0: schedulers kill soon after a stop."""

Log = Callable[[str], None]
"""Takes a line for the user."""


class BestModel(NamedTuple):
    """The best model so far on D_val, or on the half of it that `best_on` holds out."""

    round: int
    metric: str
    """accuracy, or loss for a task without it"""
    value: float
    variables: Variables
    """on the host"""

    def as_json(self) -> dict[str, Any]:
        """Returns the entries of a seal, such as {"round": 4, "val_accuracy": 0.9}."""
        return {"round": self.round, f"val_{self.metric}": self.value}


def update_best(best: BestModel | None, record: Record, variables: Variables) -> BestModel | None:
    """Returns the best model after a round by the task's primary metric; of equal ones the first."""
    if "test_loss" not in record:
        return best
    metric = history.primary_metric(record)
    least = history.quality(best.as_json(), f"val_{metric}") if best else -math.inf
    if history.quality(record) <= least:
        return best
    return BestModel(record["round"], metric, record[f"val_{metric}"], checkpoint.to_host(variables))


class Start(NamedTuple):
    """The state that a run continues from: the initial one, or a checkpoint."""

    state: SimState
    records: list[Record]
    best: BestModel | None = None
    seconds: tuple[float, float] = (0.0, 0.0)
    """of compiling and of running, in earlier parts"""
    parts: int = 1
    resumed_from: int | None = None
    summary: dict[str, Any] | None = None
    """of a finished run"""
    has_state: bool = True
    """False for a finished run without a checkpoint, whose final state is lost"""


class Destination(NamedTuple):
    """A run folder that belongs to this process."""

    folder: Path
    pool: ThreadPoolExecutor
    """writes checkpoints, one at a time"""
    sources: Callable[[], dict[str, str]]
    """() -> digests of data and partition"""
    documents: dict[str, str]
    """digests of layers.json and partition.json"""


class Recorder:
    """Records a run's progress: to disk, or in memory when there is no run folder.

    Attributes:
        folder: the run folder, or None.
        start: the state that the run continues from.
        best: the best model so far, or None.
    """

    def __init__(self, config: Config, start: Start, destination: Destination | None = None, lines: bytes = b""):
        """Args: lines: history.jsonl up to the start."""
        self.folder, self._config, self._destination = config.out, config, destination
        self._history_size, self._history_digest = len(lines), hashlib.sha256(lines)
        self._pending: Future = Future()  # the newest checkpoint
        self._pending.set_result(None)
        self.start, self.best = start, start.best
        self._round = self._saved_round = len(start.records)
        self._saved_at = self._chunk_start = time.perf_counter()

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether the run writes checkpoints."""
        return self._destination is not None and self._config.keep > 0

    def add(self, records: Sequence[Record], state: SimState) -> None:
        """Appends the records of a chunk to history.jsonl, and keeps the model after it if it is the best."""
        self._round = records[-1]["round"]
        self.best = update_best(self.best, records[-1], state.variables)
        if self._destination:
            with as_usage_error(self._destination.folder):
                new = history.append(self._destination.folder, records, is_first=not self._history_size)
            self._history_size += len(new)
            self._history_digest.update(new)

    def is_checkpoint_due(self, is_last: bool = False, is_requested: bool = False) -> bool:
        """Returns whether a checkpoint is due or requested; if so, the previous one is written.

        Call it once after each chunk.

        Args:
            is_last: whether the run ends with the newest round.
            is_requested: whether a signal requests a checkpoint.

        Raises:
            UsageError: the previous checkpoint could not be written.
        """
        if not self.keeps_checkpoints:
            return False
        if self._pending.done() or is_last:
            self.wait()
        is_due = self._is_due(is_last) or (is_requested and self._round > self._saved_round)
        if is_due:
            self.wait()
        self._chunk_start = time.perf_counter()
        return is_due

    def write_checkpoint(self, stored: SimState, seconds: tuple[float, float]) -> None:
        """Starts writing a checkpoint of the newest round, if the run keeps them.

        Args:
            stored: see `client_memories.save`.
            seconds: of compiling and of running, over all parts.
        """
        if self._destination is None or not self.keeps_checkpoints:
            return
        on_host = {"state": stored, "best": self.best.variables if self.best else None}
        entries = {
            "config": to_json(self._config),
            "versions": provenance.versions(),
            "history": self._history_seal(),
            "best": self.best.as_json() if self.best else None,
            "seconds": list(seconds),
            "parts": self.start.parts,
        }
        arguments = (self._destination, self._round, on_host, entries, self._config.keep)
        self._pending = self._destination.pool.submit(_save, *arguments)
        self._saved_round, self._saved_at = self._round, time.perf_counter()

    def wait(self) -> None:
        """Waits until the current checkpoint is written."""
        self._pending.result()

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Writes summary.json, with digests of the files that it was computed from."""
        if self._destination:
            folder = self._destination.folder
            with as_usage_error(folder):
                seal = {"history": self._history_seal(), **_sealed_sources(self._destination)}
                config = (folder / "config.json").read_text(encoding="utf-8")
                seal["documents"] |= {"config.json": seals.text_digest(config)}  # of `--keep 0` there is no other seal
                run_folder.write_json(folder / "summary.json", seals.with_digest({**summary, "seal": seal}))

    def _history_seal(self) -> list[Any]:
        """Returns the digest of the lines so far, see `seals.history_fits`."""
        return [self._history_size, self._history_digest.hexdigest()]

    def _is_due(self, is_last: bool) -> bool:
        if is_last:
            return self._round > self._saved_round
        if self._config.checkpoint_every:
            return self._round % self._config.checkpoint_every == 0
        now = time.perf_counter()
        is_slow = now - self._chunk_start > SLOW  # worth waiting for the checkpoint before, if that is not written yet
        return is_slow or (self._pending.done() and now - self._saved_at > SECONDS)


def _save(destination: Destination, number: int, state: Any, entries: seals.SealEntries, keep: int) -> None:
    """Writes a checkpoint, after flushing the records that its seal vouches for."""
    with as_usage_error(destination.folder):
        files.flush([destination.folder / "history.jsonl"])
        checkpoint.save(destination.folder, number, state, entries | _sealed_sources(destination), keep)


def _sealed_sources(destination: Destination) -> dict[str, dict[str, str]]:
    """Returns the entries of a seal about what the run was computed from."""
    return {"sources": destination.sources(), "documents": dict(destination.documents)}


@contextlib.contextmanager
def open_run_folder(
    config: Config,
    state: SimState,
    documents: Mapping[str, Any],
    sources: Callable[[], dict[str, str]],
    log: Log,
    given: Mapping[str, str],
) -> Iterator[Recorder]:
    """Locks the folder of a new or resumed run, and yields its recorder; of several processes, only the first writes.

    Args:
        config: its `out` is the folder; None keeps records in memory only.
        state: of the simulation before its first round.
        documents: other arguments of `folder.write_settings`, by name.
        sources: () -> digests of data and partition, which are computed once.
        log: called with one line per problem with the folder.
        given: object that Python passed in place of a setting -> names of its functions.

    Raises:
        UsageError: the folder has files already, is in use, or cannot be written; or the run has other data or objects.
        MisfitError: the files of the folder are not as its run left them.
    """
    if config.out is None:
        yield Recorder(config, Start(state, []))
        return
    folder, is_first, writing = config.out, processes.is_first(), None
    with contextlib.ExitStack() as stack:
        with processes.together():
            if is_first:
                with as_usage_error(folder) if config.resume else files.writing(f"the run folder {folder}", "--out"):
                    folder.mkdir(parents=True, exist_ok=True)
                    stack.enter_context(files.held(folder))
            start, lines = Start(state, []), b""
            if config.resume:  # all processes read it, and then the first one changes it
                say = log if is_first else (lambda line: None)
                start, lines = _find_start(config, folder, state, sources(), given, say)
        with processes.together():
            if not is_first:
                destination, config = None, dataclasses.replace(config, out=None)
            else:
                pool = stack.enter_context(ThreadPoolExecutor(1, "checkpoints"))
                describe = as_usage_error(folder)(provenance.write_manifest)
                if not config.resume:
                    run_folder.refuse_taken(folder)
                    with files.writing(f"the run folder {folder}", "--out"):
                        run_folder.write_settings(folder, config, **documents)
                    writing = pool.submit(lambda: describe(folder, sources(), given))
                elif start.summary is None and len(start.records) < config.rounds:
                    with as_usage_error(folder):
                        _rewind(config, folder, len(start.records), lines, log)
                        run_folder.write_settings(folder, config, **documents)
                    describe(folder, sources(), given, len(start.records), log)
                destination = Destination(folder, pool, sources, provenance.document_digests(folder))
        yield Recorder(config, start, destination, lines)
        if writing:
            writing.result()


@contextlib.contextmanager
def as_usage_error(folder: Path) -> Iterator[None]:
    """Turns an OSError while a run writes to its folder into a UsageError."""
    try:
        yield
    except OSError as error:
        if not folder.exists():
            raise UsageError(f"run folder {folder} was removed during the run; start the run again") from None
        reason = files.reason(error)
        if isinstance(error, FileNotFoundError):
            missing = Path(os.fsdecode(error.filename)).name if error.filename else "a file"
            raise UsageError(f"{missing} of {folder} was removed during the run; --resume {folder} continues") from None
        raise UsageError(f"cannot write to the run folder {folder}: {reason}; fix it, then --resume {folder}") from None


def _find_start(
    config: Config, folder: Path, state: SimState, digests: Mapping[str, str], given: Mapping[str, str], log: Log
) -> tuple[Start, bytes]:
    """Returns the start at the newest intact checkpoint, and history.jsonl up to it. Changes no file.

    Raises:
        MisfitError: the files of the folder are not as its run left them.
        UsageError: the run has other data, another partition or other objects; or no checkpoint is intact.
    """
    findings = verification.check(folder, with_arrays=False)
    if misfits := [line for line in findings.misfits if line not in findings.unusable]:
        raise verification.MisfitError(folder, misfits)
    manifest, summary = (files.read_object_if_any(folder / name) for name in ("manifest.json", "summary.json"))
    if manifest:  # a run that was killed in its first seconds has none
        run_folder.refuse_other_sources(folder, manifest, digests, given)
    results = {name: value for name, value in summary.items() if name not in ("seal", seals.DIGEST)}
    path = folder / "history.jsonl"
    lines = path.read_bytes() if path.exists() else b""
    records = history.parse(lines[: summary["seal"]["history"][0]]) if summary else []
    is_finished = run_folder.is_finished(folder, config)

    def template(seal: seals.SealEntries) -> Any:
        stored = client_memories.saved_shapes(state, seal["leaves"], config.clients)
        return {"state": stored, "best": state.variables if seal["best"] else None}

    restored = checkpoint.restore(folder, template, log)
    if restored is None and is_finished:  # with `--keep 0`
        return Start(state, records, resumed_from=len(records), summary=results, has_state=False), lines
    parts = len(manifest.get("runs", [])) + 1
    if restored is None:
        return Start(state, [], parts=parts, resumed_from=0), b""
    stored, seal = restored
    lines = lines[: seal["history"][0]]
    start = Start(
        client_memories.restore(state, stored["state"]),
        history.parse(lines),
        _best_model(seal["best"], stored["best"]) if seal["best"] else None,
        tuple(seal["seconds"]),
        parts,
        seal["round"],
        results if is_finished and seal["round"] == len(records) else None,
    )
    return start, lines


def _best_model(entries: Mapping[str, Any], variables: Variables) -> BestModel:
    (name,) = (name for name in entries if name.startswith("val_"))
    return BestModel(entries["round"], name.removeprefix("val_"), entries[name], variables)


def _rewind(config: Config, folder: Path, number: int, lines: bytes, log: Log) -> None:
    """Brings a folder back to the round that a run continues from. A kill between two steps leaves it verifiable.

    Args:
        config: the settings with which it continues.
        folder: of the run.
        number: of the round; 0 to start again.
        lines: history.jsonl up to it.
        log: called with a line about other devices, and about a run that starts again.
    """
    path, before = folder / "history.jsonl", run_folder.read_config(folder).devices
    if before != config.devices:
        log(f"later rounds may differ by rounding: devices {before} -> {config.devices}")
    (folder / "summary.json").unlink(missing_ok=True)
    checkpoint.move_later(folder, number)
    if not number:
        kept = f"; its earlier history is now {run_folder.move_aside(path, 'earlier')}" if path.exists() else ""
        log(f"{folder} has no checkpoint to continue from: it starts again with round 1{kept}")
    elif path.stat().st_size > len(lines):
        with path.open("r+b") as file:
            file.truncate(len(lines))
