"""The folder of a run while it computes: where the run starts, and what is written after every chunk.

A resumed run continues from a checkpoint with exactly the records up to its round; rounds after it are computed again.
A folder with another history is refused, and not changed. Every chunk's records are written at once, and checkpoints
in the background: the state, the variables that were best on validation, the seconds so far, and the digest of the
history up to the round.

The processes that share a run must have equal settings and data.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.core.types import SimState, UsageError, Variables
from fedvg_jax.host import files, processes
from fedvg_jax.runs.assemble.simulation import Simulation
from fedvg_jax.runs.experiment import Folder
from fedvg_jax.runs.placement.client_states import Placement, saved_shapes
from fedvg_jax.runs.record import checkpoint, folder as run_folder, history, provenance, stored
from fedvg_jax.runs.record.checkpoint import Digest
from fedvg_jax.runs.record.history import Record

SECONDS = 60.0
"""Seconds between checkpoints where `checkpoint_every` is 0."""

Log = Callable[[str], None]
"""Takes a line for the user."""

Sources = Callable[[], dict[str, str]]
"""() -> digests of data and partition, which are computed once"""


class Start(NamedTuple):
    """The state that a run continues from: the initial one, or a checkpoint."""

    state: SimState
    records: list[Record]
    best: Variables | None = None
    """the model that was best on D_val, on the host"""
    seconds: tuple[float, float] = (0.0, 0.0)
    """of compiling and of running, in earlier segments"""
    is_finished: bool = False
    """whether the run has no rounds left to compute"""
    history: Digest = [0, 0]  # noqa: RUF012
    """digest of history.jsonl up to the checkpoint"""


class Recorder:
    """Records a run's progress: to disk, or in memory when there is no run folder.

    Attributes:
        start: the state that the run continues from.
        best: the model that was best on D_val so far, on the host, or None.
    """

    def __init__(self, folder: Folder, start: Start, pool: ThreadPoolExecutor | None = None):
        """Makes a recorder.

        Args:
            folder: of the run.
            start: of the run.
            pool: a thread that writes the folder, one file at a time; None where this process does not write it.
        """
        self.start, self.best, self._history = start, start.best, start.history
        self._pool, self._folder = pool, folder.path if pool else None
        self._every, self._num_kept = folder.checkpoint_every, folder.num_kept
        self._best_quality = max(map(history.quality, start.records), default=-math.inf)
        self._round = self._saved_round = len(start.records)
        self._saved_at = time.perf_counter()
        self._pending: Future = Future()
        self._pending.set_result(None)

    def start_clock(self, compile_seconds: float) -> None:
        """Starts to count the seconds of running, after `compile_seconds` of compiling."""
        self._compiling = self.start.seconds[0] + compile_seconds
        self._running_since = time.perf_counter()  # a clock that cannot be set

    def seconds(self) -> tuple[float, float]:
        """Returns the seconds of compiling and of running, over all segments of the run."""
        return self._compiling, self.start.seconds[1] + time.perf_counter() - self._running_since

    def submit(self, write: Callable[..., None], *arguments: Any) -> None:
        """Writes in the background, in the process that writes the folder."""
        assert self._pool
        self._pending = self._pool.submit(write, *arguments)

    def add(self, records: Sequence[Record], state: SimState) -> None:
        """Appends the records of a chunk to history.jsonl, and keeps the model after it if it is the best.

        It is the best by the task's primary metric; of equal ones the first.
        """
        self._round, quality = records[-1]["round"], history.quality(records[-1])
        if quality > self._best_quality:
            self.best, self._best_quality = checkpoint.to_host(state.variables), quality
        if self._folder:
            with _writing_on(self._folder):
                new = history.append(self._folder, records)
            size, crc = self._history
            self._history = [size + len(new), zlib.crc32(new, crc)]

    def is_checkpoint_due(self, is_last: bool) -> bool:
        """Returns whether a checkpoint is due; if so, the previous one is written.

        Call it once after each chunk.

        Args:
            is_last: whether the run ends with the newest round.

        Raises:
            UsageError: the previous checkpoint could not be written.
        """
        if self._folder is None or self._num_kept == 0:
            return False
        is_idle = self._pending.done()
        if is_last:
            is_due = self._round > self._saved_round
        elif self._every:
            is_due = self._round % self._every == 0
        else:
            is_due = is_idle and time.perf_counter() - self._saved_at > SECONDS
        if is_idle or is_due or is_last:
            self.wait()
        return is_due

    def write_checkpoint(self, state: SimState) -> None:
        """Starts writing a checkpoint of the newest round, in the process that writes the folder.

        Args:
            state: see `Placement.save`.
        """
        if self._folder is None:
            return
        content = {"state": state, "best": self.best, "seconds": np.array(self.seconds())}
        self.submit(_save, self._folder, self._round, content, self._history, self._num_kept)
        self._saved_round, self._saved_at = self._round, time.perf_counter()

    def wait(self) -> None:
        """Waits until the current checkpoint is written."""
        self._pending.result()

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Writes summary.json, which makes a run a finished one."""
        if self._folder:
            self.wait()
            with _writing_on(self._folder):
                run_folder.write_json(self._folder / stored.SUMMARY, summary)


def _writing_on(folder: Path) -> contextlib.AbstractContextManager:
    """Makes errors of writing a UsageError, which says how the run continues."""
    return files.writing(f"the run folder {folder}", f"--resume {folder}, or another --out", "then")


def _save(folder: Path, number: int, content: Any, digest: Digest, keep: int) -> None:
    """Writes a checkpoint, after flushing the records that it has a digest of."""
    with _writing_on(folder):
        files.flush([folder / stored.HISTORY])
        checkpoint.save(folder, number, content, digest, keep)


# --- where a run starts -----------------------------------------------------------------------------------------------
@contextlib.contextmanager
def open_run_folder(sim: Simulation, log: Log) -> Iterator[Recorder]:
    """Locks the folder of a run, and yields its recorder; of several processes, only the first writes.

    Args:
        sim: of the run; without a folder, its records stay in memory.
        log: called with one line per problem with the folder.

    Raises:
        UsageError: the folder has files already, is in use, cannot be written, or is not as its run left it; or the run
            has other data or objects; or the processes have different ones.
    """
    is_first, folder = processes.is_first(), sim.experiment.folder.path
    sources = functools.cache(functools.partial(provenance.sources, sim))
    if processes.count() > 1:
        places = {"rows": sim.host_rows, "client states": sim.state_placement.is_on_host}
        values = {name: "host" if on_host else "device" for name, on_host in places.items()}
        processes.refuse_different(values | sources(), "give all the same files and --placement")
    if folder is None:
        yield Recorder(sim.experiment.folder, Start(sim.state, []))
        return
    with contextlib.ExitStack() as stack:
        with processes.together():
            if is_first:
                with _writing_on(folder):
                    folder.mkdir(parents=True, exist_ok=True)
                    stack.enter_context(files.held(folder))
            start = find_start(sim, folder, sources, log if is_first else lambda line: None)
        with processes.together():  # all have read the folder, and now the first process changes it
            pool = None
            if is_first and not start.is_finished:
                pool = stack.enter_context(ThreadPoolExecutor(1, "checkpoints"))
            recorder = Recorder(sim.experiment.folder, start, pool)
            if pool:
                _prepare_folder(sim, folder, start, log)
                # in the background, because digests of data take long
                recorder.submit(_write_manifest, sim, folder, sources, len(start.records), log)
        processes.refuse_different(
            {"checkpoint": str(len(start.records))}, f"let all see the same files of {folder}"
        )
        yield recorder


def find_start(sim: Simulation, folder: Path, sources: Sources, log: Log) -> Start:
    """Returns where a run starts. Changes no file.

    Raises:
        UsageError: the run has other data or objects, its history was changed, or no checkpoint is intact.
    """
    if not sim.experiment.folder.is_resumed:
        return Start(sim.state, [])
    manifest = files.read_object_if_any(folder / "manifest.json")
    if manifest:  # a run that was killed in its first seconds has none
        custom = sim.experiment.custom
        run_folder.refuse_other_sources(folder, manifest, sources(), custom, sim.code)
    elif stored.checkpoints(folder):
        raise UsageError(
            f"{folder} has lost its manifest.json; restore the file, or start a new run"
        )
    if run_folder.is_finished(folder, sim.experiment.rounds):
        return Start(sim.state, history.read(folder), is_finished=True)
    return after_checkpoint(folder, sim.state, sim.state_placement, log)


def after_checkpoint(folder: Path, state: SimState, placement: Placement, log: Log) -> Start:
    """Returns the start after the newest intact checkpoint; without a complete one, the start of a new run."""

    def template(leaves: Mapping[str, np.ndarray]) -> Any:
        best = state.variables if any(path.startswith("best.") for path in leaves) else None
        saved = saved_shapes(state, leaves)
        return {"state": saved, "best": best, "seconds": np.zeros(2)}

    restored = checkpoint.restore(folder, template, log)
    if restored is None:
        return Start(state, [])
    content, (size, crc) = restored
    path = folder / stored.HISTORY
    lines = path.read_bytes()[:size] if path.exists() else b""
    if (len(lines), zlib.crc32(lines)) != (size, crc):
        raise UsageError(
            f"{path} was changed; nothing was written; restore the file, or start a new run"
        )
    records = history.parse(lines)
    return Start(
        placement.restore(state, content["state"]),
        records,
        content["best"],
        tuple(content["seconds"].tolist()),
        history=[size, crc],
    )


# --- what is written before the first round ---------------------------------------------------------------------------
def _prepare_folder(sim: Simulation, folder: Path, start: Start, log: Log) -> None:
    """Writes the settings to a new folder, or brings a resumed run's folder back to the round that it starts from."""
    with _writing_on(folder):
        experiment = sim.experiment
        if experiment.folder.is_resumed:
            _rewind(folder, start, log)
        else:
            run_folder.refuse_taken(folder)
        described = sim.weighting.layers, experiment.statistics, sim.scaled_by
        run_folder.write_settings(folder, experiment.settings, *described)


def _rewind(folder: Path, start: Start, log: Log) -> None:
    """Brings a folder back to the round that a run continues from. A kill between two steps leaves it as if written."""
    path, number = folder / stored.HISTORY, len(start.records)
    (folder / stored.SUMMARY).unlink(missing_ok=True)
    earlier = [path for path in stored.checkpoints(folder) if int(path.name) <= number]
    # later ones have digests of a longer history
    stored.remove_checkpoints(folder, kept=earlier)
    if number:
        os.truncate(path, start.history[0])
    else:
        log(f"{folder} has no checkpoint to continue from: it starts again with round 1")
        path.unlink(missing_ok=True)


def _write_manifest(
    sim: Simulation, folder: Path, sources: Sources, num_done: int, log: Log
) -> None:
    with _writing_on(folder):
        objects, devices = (sim.experiment.custom, sim.code), sim.experiment.devices
        if provenance.write_manifest(folder, sources(), *objects, num_done, devices):
            log("later rounds may differ by rounding: versions or devices differ (manifest.json)")
