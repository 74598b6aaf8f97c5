"""JAX's persistent cache of compiled programs, the same for every way to start a run; and what compiling will take."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files

PATIENCE = 1.0
"""Seconds of compiling of which nothing is said, such as those of a program from the cache."""

FIRST_SECONDS = {"resnet": 75.0, "efficientnet": 75.0, "vit": 100.0}
"""Family of models -> seconds of a first compilation on two CPU cores, see docs/performance.md."""

_UNREADABLE = re.compile("Error reading persistent compilation cache entry for '(.+?)'")


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


def first_seconds(model: str) -> float:
    """Returns about how long the first compilation of a named model takes on two CPU cores.

    >>> first_seconds("resnet18_cifar"), first_seconds("mlp")
    (75.0, 5.0)
    """
    return next((seconds for family, seconds in FIRST_SECONDS.items() if model.startswith(family)), 5.0)


@contextlib.contextmanager
def announced(folder: Path, program: object, say: Callable[[str], None], guess: float | None = None) -> Iterator[None]:
    """Says that a program is being compiled, and about how long that took the last time.

    Args:
        folder: of the cache, which keeps the seconds.
        program: what identifies it; its `repr` is the same in every process.
        say: called with one line, from another thread, after `PATIENCE`.
        guess: seconds of a program that the cache does not know.
    """
    path, name = folder / "compile_seconds.json", hashlib.sha256(repr(program).encode()).hexdigest()[:16]
    known = {}
    with contextlib.suppress(OSError, UsageError):
        known = files.read_object(path)
    expected = known.get(name, guess)
    line = f"compiling, about {expected:.0f} s" if expected else "compiling"
    start, timer = time.perf_counter(), threading.Timer(PATIENCE, say, [line])
    timer.start()
    try:
        with replacing_damaged(say):
            yield
    finally:
        timer.cancel()
    if (seconds := time.perf_counter() - start) > PATIENCE:
        with contextlib.suppress(OSError):
            files.replace(path, json.dumps(known | {name: round(seconds, 1)}))


@contextlib.contextmanager
def replacing_damaged(say: Callable[[str], None]) -> Iterator[None]:
    """Removes entries of jax's cache that it cannot read, before it has compiled and keeps the program again.

    jax warns, and writes no entry where one exists: a damaged one would be compiled again in every process. The warning
    names the program and not the entry, so all entries of programs of that name go.

    Args:
        say: called with one line about the first of them.
    """
    said = []

    def show(message: Warning | str, *details: Any) -> None:
        match, folder = _UNREADABLE.match(str(message)), jax.config.values["jax_compilation_cache_dir"]
        if match is None or folder is None:
            shown(message, *details)
            return
        for path in Path(folder).glob(f"{glob.escape(match[1])}-*"):
            path.unlink(missing_ok=True)
        if not said:
            said.append(match[1])
            say(f"a compiled program in {folder} is damaged; it is compiled again and replaced")

    with warnings.catch_warnings():
        warnings.filterwarnings("always", _UNREADABLE.pattern)
        shown, warnings.showwarning = warnings.showwarning, show
        yield
