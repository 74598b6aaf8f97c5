"""The start of a run with a folder: a new run, one that continues after its newest checkpoint, or a finished one.

A resumed run continues from a checkpoint with exactly the records up to its round; rounds after it are computed again.
A folder with another history is refused, and not changed.

The processes that share a run must have equal settings and data.
"""

from __future__ import annotations

import contextlib
import functools
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from fedvg_jax.core.types import SimState, UsageError
from fedvg_jax.host import files, processes
from fedvg_jax.runs.assemble.simulation import Simulation
from fedvg_jax.runs.placement import client_states
from fedvg_jax.runs.record import checkpoint, folder as run_folder, history, provenance, stored
from fedvg_jax.runs.record.recorder import BestModel, Recorder, Start

Log = Callable[[str], None]
"""Takes a line for the user."""

Sources = Callable[[], dict[str, str]]
"""() -> digests of data and partition, which are computed once"""


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
    records, is_first = sim.experiment.records, processes.is_first()
    folder, sources = records.folder, functools.cache(functools.partial(sources_of, sim))
    if processes.count() > 1:
        places = {"rows": sim.host_rows, "client states": sim.state_placement.is_on_host}
        values = {name: "host" if on_host else "device" for name, on_host in places.items()}
        processes.refuse_different(values | sources(), "give all the same files and --placement")
    if folder is None:
        yield Recorder(records, Start(sim.state, []))
        return
    with contextlib.ExitStack() as stack:
        with processes.together():
            if is_first:
                with files.writing(f"the run folder {folder}", "--out"):
                    folder.mkdir(parents=True, exist_ok=True)
                    stack.enter_context(files.held(folder))
            log = log if is_first else lambda line: None
            start = find_start(sim, folder, sources, log)
        with processes.together():  # all have read the folder, and now the first process changes it
            if not is_first:
                recorder = Recorder(records._replace(folder=None), start)
            elif start.is_finished:
                recorder = Recorder(records, start)
            else:
                pool = stack.enter_context(ThreadPoolExecutor(1, "checkpoints"))
                with files.writing(f"the run folder {folder}", "--out"):
                    (rewind if records.is_resumed else refuse_taken)(folder, start, log)
                    layers = sim.experiment.method.layer_names(sim.task)
                    run_folder.write_settings(
                        folder, sim.config, layers, sim.statistics, sim.scaled_by
                    )
                # in the background, because digests of data take long
                pending = pool.submit(
                    _write_manifest, sim, folder, sources, len(start.records), log
                )
                recorder = Recorder(records, start, pool, pending)
        checkpoint_of = {"checkpoint": str(start.resumed_from)}
        processes.refuse_different(checkpoint_of, f"let all see the same files of {folder}")
        yield recorder


def sources_of(sim: Simulation) -> dict[str, str]:
    """Returns the `provenance.sources` of a simulation."""
    placement = sim.state_placement
    fresh = checkpoint.to_host(placement.fresh) if placement.has_custom_model else ()
    base, hyper = checkpoint.to_host(sim.base), sim.custom_hyper
    return provenance.sources(sim.arrays, sim.partition, sim.data.pool, hyper, fresh, base)


# --- where it starts


def find_start(sim: Simulation, folder: Path, sources: Sources, log: Log) -> Start:
    """Returns where a run starts. Changes no file.

    Raises:
        UsageError: the run has other data or objects, its history was changed, or no checkpoint is intact.
    """
    state, custom = sim.state, sim.experiment.custom
    if not sim.experiment.records.is_resumed:
        return Start(state, [])
    manifest = files.read_object_if_any(folder / "manifest.json")
    if manifest:  # a run that was killed in its first seconds has none
        run_folder.refuse_other_sources(folder, manifest, sources(), custom, sim.code)
    elif stored.checkpoints(folder):
        raise UsageError(
            f"{folder} has lost its manifest.json; restore the file, or start a new run"
        )
    if run_folder.is_finished(folder, sim.config):
        records = history.read(folder)
        return Start(state, records, resumed_from=len(records), is_finished=True)
    return after_checkpoint(folder, sim.experiment.cohorts.num_clients, state, log) or Start(
        state, [], resumed_from=0
    )


def after_checkpoint(folder: Path, num_clients: int, state: SimState, log: Log) -> Start | None:
    """Returns the start after the newest intact checkpoint; None without a complete one."""

    def template(leaves: Mapping[str, np.ndarray]) -> Any:
        best = state.variables if any(path.startswith("best.") for path in leaves) else None
        saved = client_states.saved_shapes(state, leaves, num_clients)
        return {"state": saved, "best": best, "seconds": np.zeros(2)}

    restored = checkpoint.restore(folder, template, log)
    if restored is None:
        return None
    content, (size, crc) = restored
    path = folder / stored.HISTORY
    lines = path.read_bytes()[:size] if path.exists() else b""
    if (len(lines), zlib.crc32(lines)) != (size, crc):
        raise UsageError(
            f"{path} was changed; nothing was written; restore the file, or start a new run"
        )
    records = history.parse(lines)
    return Start(
        client_states.restore(state, content["state"]),
        records,
        BestModel(max(map(history.quality, records)), content["best"]) if content["best"] else None,
        tuple(content["seconds"].tolist()),
        len(records),
        history=[size, crc],
    )


# --- what is written before the first round


def refuse_taken(folder: Path, start: Start, log: Log) -> None:
    """Raises UsageError if there is a run in the folder of a new one."""
    run_folder.refuse_taken(folder)


def rewind(folder: Path, start: Start, log: Log) -> None:
    """Brings a folder back to the round that a run continues from. A kill between two steps leaves it as if written."""
    path, number = folder / stored.HISTORY, len(start.records)
    (folder / stored.SUMMARY).unlink(missing_ok=True)
    earlier = [path for path in stored.checkpoints(folder) if int(path.name) <= number]
    # later ones have digests of a longer history
    stored.remove_checkpoints(folder, kept=earlier)
    if start.history:
        os.truncate(path, start.history[0])
    else:
        log(f"{folder} has no checkpoint to continue from: it starts again with round 1")
        path.unlink(missing_ok=True)


def _write_manifest(
    sim: Simulation, folder: Path, sources: Sources, num_done: int, log: Log
) -> None:
    with files.writing(f"the run folder {folder}", "--out"):
        objects = sim.experiment.custom, sim.code
        if provenance.write_manifest(folder, sources(), *objects, num_done, sim.config.devices):
            log("later rounds may differ by rounding: versions or devices differ (manifest.json)")
