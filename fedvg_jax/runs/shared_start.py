"""The start of a run that several processes share: process 0 reads and writes the run folder, the others follow it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedvg_jax import config as configs
from fedvg_jax.config import Config
from fedvg_jax.core import processes
from fedvg_jax.core.types import SimState, Tree, UsageError
from fedvg_jax.runs import client_memories, memory_copies
from fedvg_jax.runs.record import checkpoint, provenance
from fedvg_jax.runs.record import recorder as recording
from fedvg_jax.runs.simulation import Simulation

OWN = ("out", "export", "profile", "resume", "config", "data_dir", "cache_dir", "trust_cache", "force")
"""Settings that may differ between the processes of a run."""

_JAX_SETTINGS = re.compile("prng|threefry|random|gumbel|x64|dtype|precision|promotion|f16|softmax|optimi|linearize")
"""In the names of those settings of jax that may change values."""

_VARIABLES = ("XLA_FLAGS", "NVIDIA_TF32_OVERRIDE")
"""Environment variables that may change values."""


def choose_folder(config: Config, choose: Callable[[Config], Config]) -> Config:
    """Returns the settings with the run folder that process 0 chooses.

    Args:
        config: settings of this process.
        choose: settings -> settings with `out` and `resume` as they are used; called by process 0 only.

    Raises:
        UsageError: the processes have different environments or settings, or none can be chosen.
    """
    if processes.count() == 1:
        return choose(config)
    settings = {f"setting {name}": repr(value) for name, value in configs.flatten(config).items() if name not in OWN}
    refuse_different(environment(), "start all in the same environment")
    refuse_different(settings, "start all with the same command")
    with processes.together():
        chosen = choose(config) if processes.is_first() else config
    out, resume = json.loads(processes.text_from_first(json.dumps([chosen.out and str(chosen.out), chosen.resume])))
    return dataclasses.replace(config, out=out and Path(out), resume=resume)


def refuse_different_data(sim: Simulation) -> None:
    """Raises UsageError if the processes read different data or drew different partitions."""
    if processes.count() > 1:
        rows = [client_rows for part in sim.partition for client_rows in part]
        digests = (_digest(np.ascontiguousarray(a).view(np.uint8)) for a in (sim.arrays.x, sim.arrays.y, *rows))
        places = {"pool": sim.host_pool, "memories": sim.host_memories}
        values = {name: "host" if on_host else "device" for name, on_host in places.items()}
        values["data"] = _digest(" ".join(digests).encode())
        refuse_different(values, "give all the same files, --pool and --memories")


@contextlib.contextmanager
def open_run_folder(
    config: Config,
    state: SimState,
    documents: Mapping[str, Any],
    sources: Callable[[], dict[str, str]],
    log: recording.Log,
    given: Mapping[str, str],
) -> Iterator[recording.Recorder]:
    """Yields the recorder of a run: as `recorder.open_run_folder` in process 0, in memory only in the others.

    All begin at the start that process 0 finds.
    """
    with contextlib.ExitStack() as stack:
        settings = config if processes.is_first() else dataclasses.replace(config, out=None)
        is_sent = processes.count() > 1 and bool(config.resume)
        # memories that process 0 restores stay on its host until each process gets its rows
        template = client_memories.host_template(state) if is_sent else state
        with processes.together():
            opening = recording.open_run_folder(settings, template, documents, sources, log, given)
            recorder = stack.enter_context(opening)
        if is_sent:
            recorder.follow(_start_of_first(recorder.start, state))
        yield recorder


def _start_of_first(start: recording.Start, state: SimState) -> recording.Start:
    """Returns the start that process 0 restored.

    Args:
        start: of this process.
        state: before the first round.
    """
    best = start.best and start.best._replace(variables=())
    plain = {**start._asdict(), "state": None, "best": best}
    fields = json.loads(processes.text_from_first(json.dumps(plain)))
    on_devices = dict.fromkeys(() if client_memories.is_on_host(state) else client_memories.MEMORIES, ())
    count = int(processes.text_from_first(str(client_memories.count_rows(start.state))))
    shapes = client_memories.with_count(state, count)._replace(**on_devices)
    best_shapes = [state.variables] if fields["best"] else []
    own = (start.state._replace(**on_devices), *([start.best.variables] if start.best else []))
    arrays = processes.from_first(own if processes.is_first() else (shapes, *best_shapes))
    best = recording.BestModel(*fields["best"][:3], variables=arrays[1]) if fields["best"] else None
    restored = checkpoint.place_like(state._replace(**on_devices), arrays[0])
    is_restored = fields["has_state"] and bool(fields["records"])
    memories = {
        name: _memories_of_first(getattr(state, name), getattr(start.state, name), arrays[0], is_restored)
        for name in on_devices
    }
    return recording.Start(
        **fields
        | {
            "state": restored._replace(**memories),
            "best": best,
            "seconds": tuple(fields["seconds"]),
        }
    )


def _memories_of_first(fresh: Tree, stored: Tree, restored: SimState, is_restored: bool) -> Tree:
    """Returns one field of clients' memories as process 0 restored it; before the first round, as it is.

    Args:
        fresh: before the first round, on the devices.
        stored: on the host of process 0; not read in others.
        restored: the other fields of the state.
        is_restored: whether process 0 restored a checkpoint.
    """
    if not is_restored or not jax.tree.leaves(fresh):
        return fresh
    num_rows = jax.tree.leaves(fresh)[0].shape[0]
    return memory_copies.from_first(fresh, stored, client_memories.num_used(restored, num_rows))


def environment() -> dict[str, str]:
    """Returns what changes values beside the settings of a run: versions, code, settings of jax and of XLA."""
    package = Path(configs.__file__).parents[1]
    code = b"".join(path.read_bytes() for path in sorted(package.rglob("*.py")))
    jax_settings = {
        name: getattr(jax.config, name, value)  # a context manager may have set another
        for name, value in sorted(jax.config.values.items())
        if _JAX_SETTINGS.search(name)
    }
    flags = {name: [flag for flag in os.environ.get(name, "").split() if "dump" not in flag] for name in _VARIABLES}
    return {
        **{f"version of {name}": version for name, version in provenance.versions().items()},
        "version of jaxlib": importlib.metadata.version("jaxlib"),
        "code of fedvg_jax": _digest(code),
        **{name: str(value) for name, value in jax_settings.items()},
        **{name: " ".join(sorted(words)) for name, words in flags.items()},
    }


def refuse_different(values: Mapping[str, str], remedy: str) -> None:
    """Raises UsageError if values differ between the processes; the message names the first of them and the remedy."""
    if len(set(processes.exchange(_digest(repr(values).encode())))) == 1:
        return
    for name, value in values.items():
        texts = processes.exchange(f"{value[:400]}\n{_digest(value.encode())}")
        for number, text in enumerate(texts):
            if text != texts[0]:
                other, first = (whole.partition("\n")[0] or "none" for whole in (text, texts[0]))
                raise UsageError(f"process {number} has {name} {other}, process 0 {first}; {remedy}")


def _digest(content: Any) -> str:
    return f"{zlib.crc32(content):08x}"
