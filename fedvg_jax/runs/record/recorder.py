"""Writes what a run records to its folder: every chunk's records at once, checkpoints in the background.

A checkpoint holds the state, the variables that were best on validation, and the seconds so far. With it is the digest
of the history up to its round.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.core.types import SimState, Variables
from fedvg_jax.host import files
from fedvg_jax.runs.experiment import Records
from fedvg_jax.runs.record import checkpoint, folder as run_folder, history, stored
from fedvg_jax.runs.record.checkpoint import Digest
from fedvg_jax.runs.record.history import Record

SECONDS = 60.0
"""Seconds between checkpoints where `checkpoint_every` is 0."""


class BestModel(NamedTuple):
    """The best model so far on D_val."""

    quality: float
    """see `history.quality`"""
    variables: Variables
    """on the host"""


def update_best(best: BestModel | None, record: Record, variables: Variables) -> BestModel | None:
    """Returns the best model after a round by the task's primary metric; of equal ones the first."""
    quality = history.quality(record)
    if quality == -np.inf or (best is not None and quality <= best.quality):
        return best
    return BestModel(quality, checkpoint.to_host(variables))


class Start(NamedTuple):
    """The state that a run continues from: the initial one, or a checkpoint."""

    state: SimState
    records: list[Record]
    best: BestModel | None = None
    seconds: tuple[float, float] = (0.0, 0.0)
    """of compiling and of running, in earlier segments"""
    resumed_from: int | None = None
    is_finished: bool = False
    """whether the run has no rounds left to compute"""
    history: Digest | None = None
    """digest of history.jsonl up to the checkpoint; None without one"""


class Recorder:
    """Records a run's progress: to disk, or in memory when there is no run folder.

    Attributes:
        folder: the run folder, or None.
        start: the state that the run continues from.
        best: the best model so far, or None.
    """

    def __init__(
        self,
        records: Records,
        start: Start,
        pool: ThreadPoolExecutor | None = None,
        pending: Future | None = None,
    ):
        """Makes a recorder.

        Args:
            records: what the run records, and its folder.
            start: of the run.
            pool: a thread that writes checkpoints, one at a time; None where this process does not write the folder.
            pending: what the thread is writing.
        """
        self.folder, self._records, self._pool = records.folder, records, pool
        self._history: Digest = start.history or [0, 0]
        self._pending = pending or Future()  # the newest checkpoint
        if pending is None:
            self._pending.set_result(None)
        self.start, self.best = start, start.best
        self._round = self._saved_round = len(start.records)
        self._saved_at = time.perf_counter()

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether the run writes checkpoints."""
        return self._pool is not None and self._records.keep > 0

    def add(self, records: Sequence[Record], state: SimState) -> None:
        """Appends the records of a chunk to history.jsonl, and keeps the model after it if it is the best."""
        self._round = records[-1]["round"]
        self.best = update_best(self.best, records[-1], state.variables)
        if self._pool and self.folder:
            with files.writing(f"the run folder {self.folder}", f"--resume {self.folder}", "then"):
                new = history.append(self.folder, records)
            size, crc = self._history
            self._history = [size + len(new), zlib.crc32(new, crc)]

    def is_checkpoint_due(self, is_last: bool = False) -> bool:
        """Returns whether a checkpoint is due; if so, the previous one is written.

        Call it once after each chunk.

        Args:
            is_last: whether the run ends with the newest round.

        Raises:
            UsageError: the previous checkpoint could not be written.
        """
        if not self.keeps_checkpoints:
            return False
        every, is_idle = self._records.checkpoint_every, self._pending.done()
        if is_last:
            is_due = self._round > self._saved_round
        elif every:
            is_due = self._round % every == 0
        else:
            is_due = is_idle and time.perf_counter() - self._saved_at > SECONDS
        if is_idle or is_due or is_last:
            self.wait()
        return is_due

    def write_checkpoint(self, state: SimState, seconds: tuple[float, float]) -> None:
        """Starts writing a checkpoint of the newest round, if the run keeps them.

        Args:
            state: see `client_states.save`.
            seconds: of compiling and of running, over all parts.
        """
        if not self.keeps_checkpoints or self._pool is None or self.folder is None:
            return
        best = self.best.variables if self.best else None
        content = {"state": state, "best": best, "seconds": np.array(seconds)}
        self._pending = self._pool.submit(
            _save, self.folder, self._round, content, self._history, self._records.keep
        )
        self._saved_round, self._saved_at = self._round, time.perf_counter()

    def wait(self) -> None:
        """Waits until the current checkpoint is written."""
        self._pending.result()

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Writes summary.json, which makes a run a finished one."""
        if self._pool and self.folder:
            self.wait()
            with files.writing(f"the run folder {self.folder}", f"--resume {self.folder}", "then"):
                run_folder.write_json(self.folder / stored.SUMMARY, summary)


def _save(folder: Path, number: int, content: Any, digest: Digest, keep: int) -> None:
    """Writes a checkpoint, after flushing the records that it has a digest of."""
    with files.writing(f"the run folder {folder}", f"--resume {folder}", "then"):
        files.flush([folder / stored.HISTORY])
        checkpoint.save(folder, number, content, digest, keep)
