"""JAX's persistent cache of compiled programs, the same for every way to start a run."""

from __future__ import annotations

import os
from pathlib import Path

import jax


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
