"""The folder of a run that is on: every chunk's records at once, checkpoints in the background.

A checkpoint holds the state and the variables that were best on validation. Its seal says which lines of history.jsonl
it goes with, and from which data and partition the run was made. So a run that goes on has the history up to its
checkpoint, and no other; of a damaged history it keeps the intact lines.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config import Config, to_json
from fedvg_jax.core import files
from fedvg_jax.core.types import SimState, UsageError, Variables
from fedvg_jax.runs import checkpoint, history, provenance, resume, seals
from fedvg_jax.runs.history import Record
from fedvg_jax.runs.seals import HistorySeal

SECONDS = 60.0
"""Between checkpoints where `checkpoint_every` is 0."""

GO_ON = "go on with --resume"

Tell = Callable[[str], None]


class Best(NamedTuple):
    """The model that was best so far on D_val, or on the half of it that `select` holds out."""

    round: int
    metric: str
    """of the validation set: accuracy, or loss for a task without one"""
    value: float
    variables: Variables
    """on the host"""

    def as_json(self) -> dict[str, Any]:
        """The entries of a seal, {"round": 4, "val_accuracy": 0.9}."""
        return {"round": self.round, f"val_{self.metric}": self.value}


def better(best: Best | None, record: Record, variables: Variables) -> Best | None:
    """The best model after a round: by the task's primary metric, and of equal ones the first."""
    if "test_loss" not in record:
        return best
    metric, sign, _ = history.judged(record)
    value = record.get(f"val_{metric}")
    if value is None or (best is not None and sign * value <= sign * best.value):
        return best
    return Best(record["round"], metric, value, checkpoint.to_host(variables))


class Sources(NamedTuple):
    """What a run is made from."""

    digests: Callable[[], dict[str, str]]
    """of data and partition; computed once"""
    documents: dict[str, str]
    """texts of layers.json and partition.json"""

    def as_json(self) -> dict[str, Any]:
        """The entries of a seal."""
        return {
            "sources": self.digests(),
            "documents": {name: seals.text_digest(text) for name, text in self.documents.items()},
        }


class Start(NamedTuple):
    """Where a run begins: at its start, or at a checkpoint."""

    state: SimState
    records: list[Record]
    best: Best | None = None
    history: HistorySeal = HistorySeal()
    """of the records"""
    seconds: tuple[float, float] = (0.0, 0.0)
    """of compiling and of running, in the parts before"""
    parts: int = 1
    resumed_from: int | None = None
    is_repaired: bool = False
    """whether lines of the history were lost"""


class Recorder:
    """Records a run's progress: to disk, or in memory when there is no run folder."""

    def __init__(self, config: Config, start: Start, pool: ThreadPoolExecutor | None, sources: Sources | None):
        self.folder, self.start, self.best = config.out, start, start.best
        self._config, self._pool, self._sources, self._history = config, pool, sources, start.history
        self._evaluated = [r["round"] for r in start.records if "test_loss" in r]
        self._pending: Future | None = None
        self._saved, self._saved_at = len(start.records), time.perf_counter()
        if self.keeps_checkpoints:  # seconds to import, while the first rounds are on
            self._pool.submit(importlib.import_module, "orbax.checkpoint")

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether there are to be any."""
        return self.folder is not None and self._config.keep > 0

    def add(self, records: Sequence[Record], state: SimState) -> None:
        """The records of a chunk go to history.jsonl; keeps the model after it if it is the best."""
        self.best = better(self.best, records[-1], state.variables)
        self._evaluated += [r["round"] for r in records if "test_loss" in r]
        if self.folder is not None:
            with told(self.folder):
                new = history.append(self.folder, records, is_first=not self._history.size)
            self._history = seals.extend(self._history, new)

    def checkpoint(
        self,
        state: SimState,
        last: Record,
        seconds: tuple[float, float],
        is_last: bool = False,
        is_asked: bool = False,
    ) -> None:
        """Begins a checkpoint if one is due or asked for; raises what went wrong with the one before."""
        if not self.keeps_checkpoints:
            return
        if self._pending is not None and (self._pending.done() or is_last):
            self._pending.result()
        if self._is_due(last["round"], is_last) or (is_asked and last["round"] > self._saved):
            self.settle()
            host = {"state": checkpoint.to_host(state), "best": self.best and self.best.variables}
            self._saved, self._saved_at = last["round"], time.perf_counter()
            self._pending = self._pool.submit(self._save, last["round"], host, self._about(seconds))

    def settle(self) -> None:
        """Waits for the checkpoint that is being written."""
        if self._pending is not None:
            self._pending.result()

    def summarise(self, summary: dict[str, Any]) -> None:
        """The run in a few numbers goes to summary.json, with digests of what they were computed from."""
        if self.folder is not None:
            sources = self._sources.as_json()
            with told(self.folder):
                text = {**summary, "seal": {**self._history.as_json(), **sources}}
                history.write_json(self.folder / "summary.json", seals.with_digest(text))

    def known_summary(self) -> dict[str, Any] | None:
        """That of a run which ended; None where there is none to be read, or where it is not as it was written."""
        found = read_object(self.folder / "summary.json")
        if not found or not seals.has_own_digest(found):
            return None
        return {name: value for name, value in found.items() if name not in ("seal", seals.OWN)}

    def write_missing(self) -> None:
        """Writes layers.json and partition.json where they are gone."""
        for name, text in self._sources.documents.items():
            if not (self.folder / name).exists():
                with told(self.folder):
                    files.replace(self.folder / name, text)

    def _is_due(self, number: int, is_last: bool) -> bool:
        if is_last:
            return number > self._saved
        if self._config.checkpoint_every:
            return number % self._config.checkpoint_every == 0
        is_idle = self._pending is None or self._pending.done()
        return is_idle and time.perf_counter() - self._saved_at > SECONDS

    def _about(self, seconds: tuple[float, float]) -> checkpoint.About:
        return {
            "config": to_json(self._config),
            "versions": provenance.versions(),
            **self._history.as_json(),
            "evaluated": list(self._evaluated),
            "best": self.best and self.best.as_json(),
            "seconds": list(seconds),
            "parts": self.start.parts,
        }

    def _save(self, number: int, state: Any, about: checkpoint.About) -> None:
        with told(self.folder):
            files.flush([self.folder / "history.jsonl"])
            checkpoint.save(self.folder, number, state, about | self._sources.as_json(), self._config.keep)


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
        yield Recorder(config, Start(state, []), None, None)
        return
    made_from = Sources(functools.cache(sources), history.documents(**known))
    with contextlib.ExitStack() as stack:
        with creating(config.out):
            config.out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(files.held(config.out))
        pool = stack.enter_context(ThreadPoolExecutor(1, "checkpoints"))
        if config.resume:
            start = _continued(config, state, known, made_from, tell)
            yield Recorder(config, start, pool, made_from)
        else:
            history.refuse_taken(config.out)
            with creating(config.out):
                history.begin(config.out, config, **known)
            writing = pool.submit(_write_manifest, config.out, made_from, 0)
            yield Recorder(config, Start(state, []), pool, made_from)
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
        if isinstance(error, FileNotFoundError):
            gone = Path(os.fsdecode(error.filename)).name if error.filename else "a file in it"
            raise UsageError(
                f"{gone} of run folder {folder} was taken away while the run was on; {GO_ON} {folder}"
            ) from None
        raise UsageError(
            f"cannot write to the run folder {folder}: {said}; all in it is whole: mend that, then --resume {folder}"
        ) from None


def _continued(config: Config, state: SimState, known: Mapping[str, Any], made_from: Sources, tell: Tell) -> Start:
    """From the newest checkpoint that can be trusted; the history ends there, too."""
    folder, digests = config.out, made_from.digests()
    manifest = read_object(folder / "manifest.json") or {}
    if other := _other_sources(manifest, digests):
        raise UsageError(f"{folder} ran on another {other} (its manifest.json); give the files it ran on")
    lines = _history_text(folder)
    others: list[str] = []

    def refuse(about: checkpoint.About) -> str:
        if other := _other_sources(about.get("sources", {}), digests):
            others.append(f"{folder} ran on another {other} (its checkpoints); give the files it ran on")
            return f"another {other}"
        changed = resume.differences(resume.from_json(about["config"], checkpoint.SEAL), config)
        if changed:
            why = f"other settings: {', '.join(changed)}"
            others.append(f"{folder} has checkpoints of {why}; its config.json was changed, mend that")
            return why
        is_repairable = "lines" in about
        return (
            "" if is_repairable or seals.history_fits(about, lines) else "history.jsonl is damaged, or ends before it"
        )

    def template(about: checkpoint.About) -> Any:
        return {"state": state, "best": state.variables if about["best"] else None}

    found = checkpoint.restore(folder, template, refuse, tell)
    if found is None and others:
        raise UsageError(others[0])
    with told(folder):
        if found is None:
            start = _restarted(folder, state, manifest, tell)
        else:
            start = _restored(folder, state, lines, *found, tell)
        if len(start.records) < config.rounds:
            _cut(folder, start.history.size)
            history.begin(folder, config, **known)
            _write_manifest(folder, made_from, len(start.records), tell)
    return start


def _other_sources(before: Mapping[str, Any], digests: Mapping[str, str]) -> str:
    """Returns the name of the first digest that differs from the run's; digests that the run lacks are not compared."""
    return next((name for name in digests if name in before and before[name] != digests[name]), "")


def _history_text(folder: Path) -> bytes:
    """The bytes of history.jsonl; none where it cannot be read."""
    try:
        return files.read_regular(folder / "history.jsonl")
    except OSError:
        return b""


def _restarted(folder: Path, state: SimState, manifest: Mapping[str, Any], tell: Tell) -> Start:
    """At round 1; records of rounds done before are kept under another name."""
    kept = ""
    if _history_text(folder) or (folder / "history.jsonl").is_dir():
        kept = f"; its history so far is {history.move_aside(folder, 'earlier')}"
    tell(f"{folder} has no checkpoint to go on from: it starts again with round 1{kept}")
    parts = manifest.get("runs", [])
    return Start(state, [], parts=len(parts) + 1 if isinstance(parts, list) else 1, resumed_from=0)


def _restored(folder: Path, state: SimState, lines: bytes, found: Any, about: checkpoint.About, tell: Tell) -> Start:
    """At a checkpoint. Where the history is not what the checkpoint goes with, its intact lines are kept."""
    text = lines[: about["history"][0]] if seals.history_fits(about, lines) else history.repaired_prefix(about, lines)
    is_damaged = text is None
    if text is None:
        text = _repaired(folder, lines, about, tell)
    best = about["best"] and _best(about["best"], found["best"])
    return Start(
        checkpoint.like(state, found["state"]),
        history.parse(text),
        best,
        seals.extend(HistorySeal(), text),
        tuple(about["seconds"]),
        about["parts"] + 1,
        about["round"],
        is_damaged,
    )


def _best(entries: Mapping[str, Any], variables: Variables) -> Best:
    (name,) = (name for name in entries if name.startswith("val_"))
    return Best(entries["round"], name.removeprefix("val_"), entries[name], variables)


def _repaired(folder: Path, lines: bytes, about: checkpoint.About, tell: Tell) -> bytes:
    """Writes the history from its intact lines, and says which rounds are lost; the damaged file is kept."""
    intact, count = seals.intact_lines(about, lines), about["round"]
    lost = [number for number in range(1, count + 1) if number not in intact]
    text = history.restored(intact, about.get("evaluated", []), count)
    path = folder / "history.jsonl"
    kept = f"kept as {history.move_aside(folder, 'damaged')}" if path.exists() else "gone"
    files.replace(path, text.decode())
    tell(
        f"history.jsonl was damaged (it is {kept}): the records of {history.round_ranges(lost) or 'no round'} are lost,"
        f" those of {len(intact)} rounds and the checkpoint of round {count} are whole"
    )
    return text


def _cut(folder: Path, size: int) -> None:
    """Leaves nothing behind that is of rounds to come."""
    (folder / "summary.json").unlink(missing_ok=True)
    path = folder / "history.jsonl"
    if size and path.stat().st_size > size:
        with path.open("r+b") as file:
            file.truncate(size)


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object of the run folder; None where there is none that can be read."""
    try:
        return files.read_object(path)
    except UsageError:
        return None


def _write_manifest(folder: Path, made_from: Sources, done: int, tell: Tell | None = None) -> None:
    """The sources, and code and machine of every part of the run."""
    before = (read_object(folder / "manifest.json") or {}).get("runs", [])
    parts = [part for part in before if isinstance(part, dict)] if isinstance(before, list) else []
    now = {"from_round": done + 1, **provenance.code(), **provenance.machine()}
    entries = {**made_from.digests(), "documents": made_from.as_json()["documents"], "runs": [*parts, now]}
    with told(folder):
        history.write_json(folder / "manifest.json", seals.with_digest(entries))
    last = parts[-1] if parts else now
    changed = [name for name in ("versions", "backend", "device") if last.get(name) != now[name]]
    if changed and tell:
        said = "; ".join(f"{name} {last.get(name)} -> {now[name]}" for name in changed)
        tell(f"numbers may differ by rounding from here on: {said}")
