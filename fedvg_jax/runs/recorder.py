"""Writes the run folder: every chunk's records at once, checkpoints in the background.

A checkpoint holds the state and the variables that were best on validation. Its seal has the digests of the history up
to its round, of the data and of the partition. A resumed run continues from a checkpoint with exactly the records up to
its round; of a damaged history it keeps the intact lines.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.config import Config, to_json
from fedvg_jax.core import files
from fedvg_jax.core.types import SimState, UsageError, Variables
from fedvg_jax.runs import checkpoint, client_memories, history, provenance, resume, seals, stop_signals
from fedvg_jax.runs.history import Record
from fedvg_jax.runs.seals import HistorySeal

SECONDS = 60.0
"""Seconds between checkpoints where `checkpoint_every` is 0."""

SLOW = stop_signals.GRACE / 2
"""Seconds of a chunk after which it is saved where `checkpoint_every` is 0: a stop signal may not wait for another."""

Log = Callable[[str], None]
"""Takes a line for the user."""


class BestModel(NamedTuple):
    """The best model so far on D_val, or on the half of it that `select` holds out."""

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
    metric, sign, _ = history.primary_metric(record)
    value = record.get(f"val_{metric}")
    if value is None or (best is not None and sign * value <= sign * best.value):
        return best
    return BestModel(record["round"], metric, value, checkpoint.to_host(variables))


class Sources(NamedTuple):
    """Digests and texts that the seals of a run vouch for."""

    digests: Callable[[], dict[str, str]]
    """() -> digests of data and partition; computed once"""
    documents: dict[str, str]
    """texts of layers.json and partition.json"""
    given: Mapping[str, str] = {}
    """object that Python passed in place of a setting -> names of its functions; data and partition have digests"""

    def as_json(self) -> dict[str, Any]:
        """Returns the entries of a seal."""
        return {
            "sources": self.digests(),
            "documents": {name: seals.text_digest(text) for name, text in self.documents.items()},
        }


class Start(NamedTuple):
    """The state that a run continues from: the initial one, or a checkpoint."""

    state: SimState
    records: list[Record]
    best: BestModel | None = None
    history: HistorySeal = HistorySeal()
    """of the records"""
    seconds: tuple[float, float] = (0.0, 0.0)
    """of compiling and of running, in earlier parts"""
    parts: int = 1
    resumed_from: int | None = None
    is_repaired: bool = False
    """whether lines of the history were lost"""
    has_state: bool = True
    """False for a finished run without a checkpoint, whose final state is lost"""


class Destination(NamedTuple):
    """A run folder that belongs to this process."""

    folder: Path
    pool: ThreadPoolExecutor
    """writes checkpoints, one at a time"""
    sources: Sources


class Recorder:
    """Records a run's progress: to disk, or in memory when there is no run folder.

    Attributes:
        folder: the run folder, or None.
        start: the state that the run continues from.
        best: the best model so far, or None.
    """

    def __init__(self, config: Config, start: Start, destination: Destination | None):
        self.folder, self._config, self._destination = config.out, config, destination
        self._pending: Future | None = None
        self._importing: Future | None = None
        self.follow(start)

    def follow(self, start: Start) -> None:
        """Begins at another start."""
        self.start, self.best, self._history = start, start.best, start.history
        self._evaluated = [r["round"] for r in start.records if "test_loss" in r]
        self._round = self._saved_round = len(start.records)
        self._saved_at = self._chunk_start = time.perf_counter()

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether the run writes checkpoints."""
        return self._destination is not None and self._config.keep > 0

    @property
    def is_saved(self) -> bool:
        """Whether a checkpoint of the newest round is written, or none can be."""
        is_idle = self._pending is None or self._pending.done()
        return not self.keeps_checkpoints or (self._round == self._saved_round and is_idle)

    def add(self, records: Sequence[Record], state: SimState) -> None:
        """Appends the records of a chunk to history.jsonl, and keeps the model after it if it is the best."""
        self._round = records[-1]["round"]
        self.best = update_best(self.best, records[-1], state.variables)
        self._evaluated += [r["round"] for r in records if "test_loss" in r]
        if self._destination:
            with as_usage_error(self._destination.folder):
                new = history.append(self._destination.folder, records, is_first=not self._history.size)
            self._history = seals.extend(self._history, new)
            if self.keeps_checkpoints and self._importing is None:
                # takes seconds: beside the rounds after the first chunk, which it would delay
                self._importing = self._destination.pool.submit(importlib.import_module, "orbax.checkpoint")

    def is_checkpoint_due(self, number: int, is_last: bool = False, is_requested: bool = False) -> bool:
        """Returns whether a checkpoint is due or requested; if so, the previous one is written.

        Call it once after each chunk.

        Args:
            number: rounds done.
            is_last: whether the run ends with this round.
            is_requested: whether a signal requests a checkpoint.

        Raises:
            UsageError: the previous checkpoint could not be written.
        """
        if not self.keeps_checkpoints:
            return False
        if self._pending is not None and (self._pending.done() or is_last):
            self._pending.result()
        is_due = self._is_due(number, is_last) or (is_requested and number > self._saved_round)
        if is_due:
            self.wait()
        self._chunk_start = time.perf_counter()
        return is_due

    def write_checkpoint(self, stored: SimState, last: Record, seconds: tuple[float, float]) -> None:
        """Starts writing a checkpoint, if the run keeps them.

        Args:
            stored: see `client_memories.save`; of the round of `last`.
            last: the newest record.
            seconds: of compiling and of running, over all parts.
        """
        if self._destination is None or not self.keeps_checkpoints:
            return
        on_host = {"state": stored, "best": self.best.variables if self.best else None}
        self._saved_round, self._saved_at = last["round"], time.perf_counter()
        arguments = (self._destination, last["round"], on_host, self._seal_entries(seconds), self._config.keep)
        self._pending = self._destination.pool.submit(_save, *arguments)

    def wait(self) -> None:
        """Waits until the current checkpoint is written."""
        if self._pending is not None:
            self._pending.result()

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Writes summary.json, with digests of the files that it was computed from."""
        if self._destination:
            folder, _, sources = self._destination
            with as_usage_error(folder):
                seal = {**self._history.as_json(), **sources.as_json()}
                config = (folder / "config.json").read_text(encoding="utf-8")
                seal["documents"] |= {"config.json": seals.text_digest(config)}  # of `--keep 0` there is no other seal
                history.write_json(folder / "summary.json", seals.with_digest({**summary, "seal": seal}))

    def _is_due(self, number: int, is_last: bool) -> bool:
        if is_last:
            return number > self._saved_round
        if self._config.checkpoint_every:
            return number % self._config.checkpoint_every == 0
        is_idle = self._pending is None or self._pending.done()
        now = time.perf_counter()
        return is_idle and (now - self._saved_at > SECONDS or now - self._chunk_start > SLOW)

    def _seal_entries(self, seconds: tuple[float, float]) -> checkpoint.SealEntries:
        return {
            "config": to_json(self._config),
            "versions": provenance.versions(),
            **self._history.as_json(),
            "evaluated": list(self._evaluated),
            "best": self.best.as_json() if self.best else None,
            "seconds": list(seconds),
            "parts": self.start.parts,
        }

    def write_missing_documents(self) -> None:
        """Writes layers.json and partition.json if they are missing."""
        if self._destination:
            folder, _, sources = self._destination
            for name, text in sources.documents.items():
                if not (folder / name).exists():
                    with as_usage_error(folder):
                        files.replace(folder / name, text)


def _save(destination: Destination, number: int, state: Any, entries: checkpoint.SealEntries, keep: int) -> None:
    """Writes a checkpoint, after flushing the records that its seal vouches for."""
    folder, _, sources = destination
    with as_usage_error(folder):
        files.flush([folder / "history.jsonl"])
        checkpoint.save(folder, number, state, entries | sources.as_json(), keep)


def read_summary(folder: Path) -> dict[str, Any] | None:
    """Returns the content of summary.json; None if it is missing, damaged or edited."""
    summary = read_object(folder / "summary.json")
    if not summary or not seals.has_own_digest(summary):
        return None
    return {name: value for name, value in summary.items() if name not in ("seal", seals.DIGEST)}


@contextlib.contextmanager
def open_run_folder(
    config: Config,
    state: SimState,
    documents: Mapping[str, Any],
    sources: Callable[[], dict[str, str]],
    log: Log,
    given: Mapping[str, str] | None = None,
) -> Iterator[Recorder]:
    """Locks the folder of a new or resumed run, and yields its recorder.

    Args:
        config: its `out` is the folder; None keeps records in memory only.
        state: of the simulation before its first round.
        documents: other arguments of `history.write_settings`, by name.
        sources: () -> digests of data and partition; called once.
        log: called with one line per problem with the folder.
        given: see `Sources`.

    Raises:
        UsageError: the folder has files already, is in use, or cannot be written; or the run has other data or objects.
    """
    if config.out is None:
        yield Recorder(config, Start(state, []), None)
        return
    run_sources = Sources(functools.cache(sources), history.document_texts(**documents), given or {})
    with contextlib.ExitStack() as stack:
        with files.writing(f"the run folder {config.out}", "--out"):
            config.out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(files.held(config.out))
        pool = stack.enter_context(ThreadPoolExecutor(1, "checkpoints"))
        if config.resume:
            start = _resumed_start(config, state, documents, run_sources, log)
            yield Recorder(config, start, Destination(config.out, pool, run_sources))
        else:
            history.refuse_taken(config.out)
            with files.writing(f"the run folder {config.out}", "--out"):
                history.write_settings(config.out, config, **documents)
            writing = pool.submit(_write_manifest, config.out, run_sources, 0)
            yield Recorder(config, Start(state, []), Destination(config.out, pool, run_sources))
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
            raise UsageError(
                f"{missing} of run folder {folder} was removed during the run; continue with --resume {folder}"
            ) from None
        raise UsageError(
            f"cannot write to the run folder {folder}: {reason}; its files are intact: fix this, then --resume {folder}"
        ) from None


def _resumed_start(
    config: Config, state: SimState, documents: Mapping[str, Any], run_sources: Sources, log: Log
) -> Start:
    """Returns the start at the newest intact checkpoint, and removes later records from the folder.

    Raises:
        UsageError: the run has other data, another partition, other settings or other objects.
    """
    folder, digests = config.out, run_sources.digests()
    assert folder is not None, "a run without a folder cannot be resumed"
    manifest = read_object(folder / "manifest.json") or {}
    _refuse_other_objects(folder, manifest, run_sources.given)
    if other := _other_sources(manifest, digests):
        raise UsageError(f"{folder} ran {other[0]} (its manifest.json); {other[1]}")
    lines = _history_text(folder)
    restored = _restore_checkpoint(config, folder, state, digests, lines, log)
    if restored is None and (records := _finished_records(config, folder)):
        return Start(state, records, resumed_from=len(records), has_state=False)
    with as_usage_error(folder):
        if restored is None:
            start = _restarted(folder, state, manifest, log)
        else:
            start = _restored(folder, state, lines, *restored, log)
        if len(start.records) < config.rounds:
            _truncate(folder, start.history.size)
            history.write_settings(folder, config, **documents)
            _write_manifest(folder, run_sources, len(start.records), log)
    return start


def _restore_checkpoint(
    config: Config, folder: Path, state: SimState, digests: Mapping[str, str], lines: bytes, log: Log
) -> tuple[Any, checkpoint.SealEntries] | None:
    """Returns the newest intact checkpoint of this run's data and settings with its seal, or None.

    Raises:
        UsageError: all checkpoints are of other data, another partition or other settings.
    """
    misfits: list[str] = []

    def refuse(seal: checkpoint.SealEntries) -> str:
        if other := _other_sources(seal.get("sources", {}), digests):
            misfits.append(f"{folder} ran {other[0]} (its checkpoints); {other[1]}")
            return f"it ran {other[0]}"
        changed = resume.differences(history.config_from_json(seal["config"], checkpoint.SEAL), config)
        if changed:
            reason = f"other settings: {', '.join(changed)}"
            misfits.append(f"{folder} has checkpoints of {reason}; its config.json was changed: restore it")
            return reason
        is_repairable = "lines" in seal
        is_usable = is_repairable or seals.history_fits(seal, lines)
        return "" if is_usable else "history.jsonl is damaged, or ends before it"

    def template(seal: checkpoint.SealEntries) -> Any:
        stored = client_memories.saved_shapes(state, seal["leaves"], config.clients)
        return {"state": stored, "best": state.variables if seal["best"] else None}

    restored = checkpoint.restore(folder, template, refuse, log)
    if restored is None and misfits:
        raise UsageError(misfits[0])
    if restored is None:
        return None
    leaves, seal = restored
    return leaves | {"state": client_memories.restore(state, leaves["state"], config, seal["round"])}, seal


def _finished_records(config: Config, folder: Path) -> list[Record]:
    """Returns the records of a run that has finished its `config.rounds` without any checkpoint; else none.

    A run that diverged in its last round has not finished.

    `--keep 0` leaves such a folder. Its results are reported again, and its model is lost.
    """
    summary = read_object(folder / "summary.json") or {}
    is_finished = summary.get("rounds") == config.rounds and summary.get("stopped_by") is None
    if not is_finished or checkpoint.checkpoint_folders(folder):
        return []
    records = history.read(folder)
    return records if len(records) == config.rounds else []


def _other_sources(stored: Mapping[str, Any], digests: Mapping[str, str]) -> tuple[str, str] | None:
    """Returns what the run used instead of these sources, and what to do; None if they are equal.

    Earlier versions stored none.
    """
    for name, digest in digests.items():
        if stored.get(name, digest) == digest:
            continue
        if name == "hyperparameters":
            ran, given = map(_shortest_numbers, (stored[name], digest))
            return f"with {ran or 'no given hyperparameters'}, not {given or 'none'}", "pass the same"
        return f"on {'other data' if name == 'data' else f'another {name}'}", "give the files it ran on"
    return None


def _refuse_other_objects(folder: Path, manifest: Mapping[str, Any], given: Mapping[str, str]) -> None:
    """Raises UsageError unless task, algorithm and weighting come from Python as they did when the run started.

    Functions are not compared: their names say little. Data and partitions are compared by their digests. Earlier
    versions stored none.
    """
    stored = manifest.get("given")
    if not isinstance(stored, dict):
        return
    ran, passed = ([name for name in ("algorithm", "task", "weighting") if name in all_] for all_ in (stored, given))
    if ran != passed:
        raise UsageError(
            f"{folder} ran with {_own(ran)}, this run has {_own(passed)}; pass the same objects to fedvg_jax.run"
        )


def _own(names: Sequence[str]) -> str:
    """Returns objects from Python as a text.

    >>> _own(["algorithm", "task", "weighting"]), _own([])
    ('its own algorithm, task and weighting', "the config's algorithm, task and weighting")
    """
    *first, last = names or ("",)
    listed = f"{', '.join(first)} and {last}" if first else last
    return f"its own {listed}" if names else "the config's algorithm, task and weighting"


def _shortest_numbers(text: str) -> str:
    """Returns the text with each float32 number at its shortest, as the user wrote it.

    >>> _shortest_numbers("T=0.10000000149011612, b1=0.5")
    'T=0.1, b1=0.5'
    """
    return re.sub(r"\d+\.\d{8,}(e[+-]?\d+)?", lambda number: str(np.float32(number[0])), text)


def _history_text(folder: Path) -> bytes:
    """Returns the bytes of history.jsonl; none where it cannot be read."""
    try:
        return files.read_regular(folder / "history.jsonl")
    except OSError:
        return b""


def _restarted(folder: Path, state: SimState, manifest: Mapping[str, Any], log: Log) -> Start:
    """Returns a start at round 1; earlier records are kept under another name."""
    kept = ""
    if _history_text(folder) or (folder / "history.jsonl").is_dir():
        kept = f"; its earlier history is now {history.move_aside(folder, 'earlier')}"
    log(f"{folder} has no checkpoint to continue from: it starts again with round 1{kept}")
    parts = manifest.get("runs", [])
    return Start(state, [], parts=len(parts) + 1 if isinstance(parts, list) else 1, resumed_from=0)


def _restored(
    folder: Path, state: SimState, lines: bytes, stored: Any, seal: checkpoint.SealEntries, log: Log
) -> Start:
    """Returns a start at a checkpoint. Of a history that differs from the sealed one, the intact lines are kept."""
    text = lines[: seal["history"][0]] if seals.history_fits(seal, lines) else history.repaired_prefix(seal, lines)
    is_damaged = text is None
    if text is None:
        text = _repair(folder, lines, seal, log)
    best = _best_model(seal["best"], stored["best"]) if seal["best"] else None
    return Start(
        stored["state"],
        history.parse(text),
        best,
        seals.extend(HistorySeal(), text),
        tuple(seal["seconds"]),
        seal["parts"] + 1,
        seal["round"],
        is_damaged,
    )


def _best_model(entries: Mapping[str, Any], variables: Variables) -> BestModel:
    (name,) = (name for name in entries if name.startswith("val_"))
    return BestModel(entries["round"], name.removeprefix("val_"), entries[name], variables)


def _repair(folder: Path, lines: bytes, seal: checkpoint.SealEntries, log: Log) -> bytes:
    """Writes the history from its intact lines, and logs the rounds that are lost; the damaged file is kept."""
    intact, count = seals.intact_lines(seal, lines), seal["round"]
    lost = [number for number in range(1, count + 1) if number not in intact]
    text = history.text_with_lost_records(intact, seal.get("evaluated", []), count)
    path = folder / "history.jsonl"
    kept = f"kept as {history.move_aside(folder, 'damaged')}" if path.exists() else "missing"
    files.replace(path, text.decode())
    log(
        f"history.jsonl was damaged (it is {kept}): the records of {history.round_ranges(lost) or 'no round'} are lost,"
        f" those of {len(intact)} rounds and the checkpoint of round {count} are intact"
    )
    return text


def _truncate(folder: Path, size: int) -> None:
    """Removes records of rounds that will be computed again, and the summary."""
    (folder / "summary.json").unlink(missing_ok=True)
    path = folder / "history.jsonl"
    if size and path.stat().st_size > size:
        with path.open("r+b") as file:
            file.truncate(size)


def read_object(path: Path) -> dict[str, Any] | None:
    """Returns a JSON object of the run folder; None if it is missing or damaged."""
    try:
        return files.read_object(path)
    except UsageError:
        return None


def _write_manifest(folder: Path, run_sources: Sources, num_done: int, log: Log | None = None) -> None:
    """Writes manifest.json: digests of the sources, and code and machine of every part of the run."""
    runs = (read_object(folder / "manifest.json") or {}).get("runs", [])
    parts = [part for part in runs if isinstance(part, dict)] if isinstance(runs, list) else []
    this_part = {"from_round": num_done + 1, **provenance.code(), **provenance.machine()}
    digests = run_sources.digests()
    given = {name: digests.get(name, text) for name, text in sorted(run_sources.given.items())}
    documents = run_sources.as_json()["documents"]
    entries = {**digests, "given": given, "documents": documents, "runs": [*parts, this_part]}
    with as_usage_error(folder):
        history.write_json(folder / "manifest.json", seals.with_digest(entries))
    last = parts[-1] if parts else this_part
    stored = {"instructions": this_part["instructions"], **last}  # those of an earlier version have no instructions
    names = ("versions", "instructions", "backend", "device")
    changed = [name for name in names if stored.get(name) != this_part[name]]
    if changed and log:
        listed = "; ".join(f"{name} {stored.get(name)} -> {this_part[name]}" for name in changed)
        log(f"later rounds may differ by rounding: {listed}")
