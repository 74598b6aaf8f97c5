"""The start of a run that several processes share: all have equal settings, data and environments."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from fedvg_jax import config as configs
from fedvg_jax.config import Config
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import processes
from fedvg_jax.runs.assemble.simulation import Simulation
from fedvg_jax.runs.record import provenance

OWN = ("out", "export", "profile", "resume", "data_dir", "cache_dir", "force")
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
    out, resume = processes.json_from_first([chosen.out and str(chosen.out), chosen.resume])
    return dataclasses.replace(config, out=out and Path(out), resume=resume)


def refuse_different_data(sim: Simulation, sources: Callable[[], dict[str, str]]) -> None:
    """Raises UsageError if the processes have different `provenance.sources`, such as data and partition."""
    if processes.count() > 1:
        places = {"rows": sim.host_rows, "memories": sim.memories.is_on_host}
        values = {name: "host" if on_host else "device" for name, on_host in places.items()}
        refuse_different(values | sources(), "give all the same files and --placement")


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
