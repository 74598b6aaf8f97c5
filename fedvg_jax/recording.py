"""The folder of a run that is on: every chunk's records at once, checkpoints in the background.

A checkpoint holds the state, the variables that were best on validation, and says how much of history.jsonl it goes
with: [bytes, CRC-32]. So a run that goes on has the history up to its checkpoint, and no other.
"""

from __future__ import annotations

import contextlib
import importlib
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax import checkpoint, files, history, provenance, resume
from fedvg_jax.config import Config, to_json
from fedvg_jax.history import Record
from fedvg_jax.types import SimState, UsageError, Variables

SECONDS = 60.0
"""Between checkpoints where `checkpoint_every` is 0."""

Tell = Callable[[str], None]


class Best(NamedTuple):
    """The model that was best so far on D_val, or on the half of it that `select` holds out."""

    round: int
    val_accuracy: float
    variables: Variables
    """on the host"""


class Start(NamedTuple):
    """Where a run begins: at its start, or at a checkpoint."""

    state: SimState
    records: list[Record]
    best: Best | None = None
    history: tuple[int, int] = (0, 0)
    """bytes and CRC-32 of the records"""
    seconds: tuple[float, float] = (0.0, 0.0)
    """of compiling and of running, in the parts before"""
    parts: int = 1
    resumed_from: int | None = None


class Recorder:
    """What the loop tells of its progress to; without a folder it only remembers."""

    def __init__(self, config: Config, start: Start, pool: ThreadPoolExecutor | None):
        self.folder, self.start = config.out, start
        self._config, self._pool, self._best, self._history = config, pool, start.best, start.history
        self._pending: Future | None = None
        self._saved, self._saved_at = len(start.records), time.perf_counter()
        if self.keeps_checkpoints:  # seconds to import, while the first rounds are on
            self._pool.submit(importlib.import_module, "orbax.checkpoint")

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether there are to be any."""
        return self.folder is not None and self._config.keep > 0

    def add(self, records: Sequence[Record]) -> None:
        """The records of a chunk go to history.jsonl."""
        if self.folder is not None:
            with told(self.folder):
                new = history.append(self.folder, records, is_first=not self._history[0])
            size, crc = self._history
            self._history = (size + len(new), zlib.crc32(new, crc))

    def checkpoint(self, state: SimState, last: Record, seconds: tuple[float, float], is_last: bool = False) -> None:
        """Notes the best model, and begins a checkpoint if one is due; raises what went wrong with the one before."""
        if not self.keeps_checkpoints:
            return
        accuracy = last.get("val_accuracy")
        if accuracy is not None and (self._best is None or accuracy > self._best.val_accuracy):
            self._best = Best(last["round"], accuracy, checkpoint.to_host(state.variables))
        if self._pending is not None and (self._pending.done() or is_last):
            self._pending.result()
        if self._is_due(last["round"], is_last):
            self.settle()
            host = {"state": checkpoint.to_host(state), "best": self._best and self._best.variables}
            self._saved, self._saved_at = last["round"], time.perf_counter()
            self._pending = self._pool.submit(self._save, last["round"], host, self._about(seconds))

    def settle(self) -> None:
        """Waits for the checkpoint that is being written."""
        if self._pending is not None:
            self._pending.result()

    def summarise(self, summary: dict[str, Any]) -> None:
        """The run in a few numbers goes to summary.json."""
        if self.folder is not None:
            with told(self.folder):
                history.write_json(self.folder / "summary.json", summary)

    def known_summary(self) -> dict[str, Any] | None:
        """That of a run which ended."""
        try:
            return files.read_object(self.folder / "summary.json")
        except UsageError:
            return None

    def _is_due(self, number: int, is_last: bool) -> bool:
        if is_last:
            return number > self._saved
        if self._config.checkpoint_every:
            return number % self._config.checkpoint_every == 0
        is_idle = self._pending is None or self._pending.done()
        return is_idle and time.perf_counter() - self._saved_at > SECONDS

    def _about(self, seconds: tuple[float, float]) -> checkpoint.About:
        best = self._best and {"round": self._best.round, "val_accuracy": self._best.val_accuracy}
        return {
            "config": to_json(self._config),
            "versions": provenance.versions(),
            "history": list(self._history),
            "best": best,
            "seconds": list(seconds),
            "parts": self.start.parts,
        }

    def _save(self, number: int, state: Any, about: checkpoint.About) -> None:
        with told(self.folder):
            files.flush([self.folder / "history.jsonl"])
            checkpoint.save(self.folder, number, state, about, self._config.keep)


@contextlib.contextmanager
def opened(
    config: Config, state: SimState, known: Mapping[str, Any], sources: Callable[[], dict[str, str]], tell: Tell
) -> Iterator[Recorder]:
    """Holds the run's folder, a new one or that of the run that goes on.

    Args:
        state: of the simulation before its first round.
        known: what else `history.begin` writes, by name.
        sources: digests of data and partition; called once.
        tell: hears, a line each, of what is not as it should be.

    Raises:
        UsageError: the folder is taken, in use, or cannot be written; or the run was made from other data.
    """
    if config.out is None:
        yield Recorder(config, Start(state, []), None)
        return
    with contextlib.ExitStack() as stack:
        with creating(config.out):
            config.out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(files.held(config.out))
        pool = stack.enter_context(ThreadPoolExecutor(1, "checkpoints"))
        if config.resume:
            start = _continued(config, state, known, sources(), tell)
            yield Recorder(config, start, pool)
        else:
            history.refuse_taken(config.out)
            with creating(config.out):
                history.begin(config.out, config, **known)
            writing = pool.submit(_write_manifest, config.out, sources, 0)
            yield Recorder(config, Start(state, []), pool)
            writing.result()


@contextlib.contextmanager
def creating(folder: Path) -> Iterator[None]:
    """What cannot be written at the start, in one line."""
    try:
        yield
    except OSError as error:
        said = files.reason(error)
        raise UsageError(f"cannot write the run folder {folder}: {said}; name another with --out") from None


@contextlib.contextmanager
def told(folder: Path) -> Iterator[None]:
    """What cannot be written later, in one line."""
    try:
        yield
    except OSError as error:
        if not folder.exists():
            raise UsageError(f"run folder {folder} was taken away while the run was on; start it again") from None
        said = files.reason(error)
        raise UsageError(
            f"cannot write to the run folder {folder}: {said}; all in it is whole: mend that, then --resume {folder}"
        ) from None


def _continued(config: Config, state: SimState, known: Mapping[str, Any], sources: dict[str, str], tell: Tell) -> Start:
    """From the newest checkpoint that can be trusted; the history ends there, too."""
    folder = config.out
    before = _manifest(folder)
    for name in before.keys() & sources.keys():
        if before[name] != sources[name]:
            raise UsageError(f"{folder} ran on another {name} (its manifest.json); --data-dir must hold the same files")
    lines = (folder / "history.jsonl").read_bytes() if (folder / "history.jsonl").exists() else b""

    others: list[str] = []

    def refuse(about: checkpoint.About) -> str:
        changed = resume.differences(resume.from_json(about["config"], checkpoint.SEAL), config)
        size, crc = about["history"]
        if changed:
            others.append(f"other settings: {', '.join(changed)}")
            return others[-1]
        if zlib.crc32(lines[:size]) != crc or len(lines) < size:
            return "history.jsonl is damaged, or ends before it"
        return ""

    def template(about: checkpoint.About) -> Any:
        return {"state": state, "best": state.variables if about["best"] else None}

    found = checkpoint.restore(folder, template, refuse, tell)
    if found is None and others:
        raise UsageError(f"{folder} has checkpoints of {others[0]}; its config.json was changed, mend that")
    if found is None:
        tell(f"{folder} has no checkpoint to go on from: it starts again with round 1")
        start = Start(state, [], parts=len(before.get("runs", [])) + 1, resumed_from=0)
    else:
        start = _restored(state, lines, *found)
    if len(start.records) < config.rounds:
        with told(folder):
            _cut(folder, start.history[0])
            history.begin(folder, config, **known)
            _write_manifest(folder, lambda: sources, len(start.records), tell)
    return start


def _restored(state: SimState, lines: bytes, found: Any, about: checkpoint.About) -> Start:
    best = about["best"] and Best(**about["best"], variables=found["best"])
    records = history.parse(lines[: about["history"][0]])
    now = checkpoint.like(state, found["state"])
    return Start(
        now, records, best, tuple(about["history"]), tuple(about["seconds"]), about["parts"] + 1, about["round"]
    )


def _cut(folder: Path, size: int) -> None:
    """Leaves nothing behind that is of rounds to come."""
    (folder / "summary.json").unlink(missing_ok=True)
    path = folder / "history.jsonl"
    if size and path.stat().st_size > size:
        with path.open("r+b") as file:
            file.truncate(size)
    elif not size:
        path.unlink(missing_ok=True)


def _manifest(folder: Path) -> dict[str, Any]:
    """What the run was made from; nothing where it was killed before it said so."""
    try:
        found = files.read_object(folder / "manifest.json")
    except UsageError:
        return {}
    runs = found.get("runs", [])
    return found if isinstance(runs, list) and all(isinstance(run, dict) for run in runs) else {}


def _write_manifest(folder: Path, sources: Callable[[], dict[str, str]], done: int, tell: Tell | None = None) -> None:
    """The sources, and code and machine of every part of the run."""
    parts = _manifest(folder).get("runs", [])
    now = {"from_round": done + 1, **provenance.code(), **provenance.machine()}
    with told(folder):
        history.write_json(folder / "manifest.json", {**sources(), "runs": [*parts, now]})
    before = parts[-1] if parts else now
    changed = [name for name in ("versions", "backend", "device") if before.get(name) != now[name]]
    if changed and tell:
        said = "; ".join(f"{name} {before.get(name)} -> {now[name]}" for name in changed)
        tell(f"numbers may differ by rounding from here on: {said}")
