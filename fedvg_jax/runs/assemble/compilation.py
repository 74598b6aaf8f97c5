"""JAX's persistent cache of compiled programs, the same for every way to start a run; and what compiling will take."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files

PATIENCE = 1.0
"""Seconds of compiling of which nothing is said, such as those of a program from the cache."""


def use_cache(folder: Path) -> bool:
    """Makes this process keep compiled programs in a sub-folder of the cache; returns False if it cannot be written.

    A folder that jax is already configured with stays, such as `$JAX_COMPILATION_CACHE_DIR`.

    Args:
        folder: of the cache, which `files.private_folder` has checked: its programs are executed.
    """
    if jax.config.values["jax_compilation_cache_dir"] is None:
        if not (folder.is_dir() and os.access(folder, os.W_OK)):
            return False
        jax.config.update("jax_compilation_cache_dir", str(folder / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return True


@contextlib.contextmanager
def announced(folder: Path, program: object, say: Callable[[str], None]) -> Iterator[None]:
    """Says that a program is being compiled, and about how long that took the last time.

    Args:
        folder: of the cache, which keeps the seconds.
        program: what identifies it; its `repr` is the same in every process.
        say: called with one line, from another thread, after `PATIENCE`.
    """
    path, name = folder / "compile_seconds.json", hashlib.sha256(repr(program).encode()).hexdigest()[:16]
    known = {}
    with contextlib.suppress(OSError, UsageError):
        known = files.read_object(path)
    line = f"compiling, about {known[name]:.0f} s" if name in known else "compiling"
    start, timer = time.perf_counter(), threading.Timer(PATIENCE, say, [line])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    if (seconds := time.perf_counter() - start) > PATIENCE:
        with contextlib.suppress(OSError):
            files.replace(path, json.dumps(known | {name: round(seconds, 1)}))
