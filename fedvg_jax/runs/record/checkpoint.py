"""Checkpoints of a run, by Orbax: arrays by path, and `about` with digests of them and of the history.

Orbax renames a folder into place when it is complete. It does not check the bytes of arrays, so what is read is
compared with the digests: a crash or a bad disk can cost rounds, but no wrong value is restored.

A run removes its old checkpoints itself. `orbax.checkpoint.CheckpointManager` takes every folder with a number as its
name for a step, so it would remove a user's copy, count it among those to keep, and refuse to write a step a second
time. The laws are `test_files_of_a_user_beside_checkpoints_stay_and_change_no_run` in `tests/runs/test_resume.py` and
`test_saving_keeps_the_newest_checkpoints_only` in `tests/runs/record/test_checkpoint.py`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from fedvg_jax.core import tree
from fedvg_jax.core.types import Tree, UsageError, Variables
from fedvg_jax.host import files, processes
from fedvg_jax.runs.record import stored

Digest = list[int]
"""Size in bytes and CRC-32 of a history."""


def to_host(state: Tree) -> Tree:
    """Returns a copy in host memory, which no later round overwrites; typed keys become their key data."""
    return jax.tree.map(np.array, jax.device_get(jax.tree.map(untyped, state)))


def save(run: Path, number: int, state: Tree, history: Digest, keep: int) -> None:
    """Writes the checkpoint of a round, then removes all but the newest `keep`.

    Arrays are stored by path, such as "state.variables.params.fc1.kernel", except empty ones, which Orbax refuses.

    Args:
        run: the run's folder.
        number: rounds done.
        state: on the host.
        history: digest of the history up to the round.
        keep: how many checkpoints to keep.

    Raises:
        OSError: it cannot be written. Older checkpoints are not touched.
    """
    target = stored.checkpoint_path(run, number)
    target.parent.mkdir(exist_ok=True)  # not the run folder, which may have been removed
    leaves = _leaves_by_path(state)
    described = {key: _describe(leaf) for key, leaf in leaves.items()}
    about = {"round": number, "history": history, "leaves": described}
    with _orbax() as (ocp, checkpointer):
        parts = {
            stored.STATE: ocp.args.PyTreeSave({k: x for k, x in leaves.items() if x.size}),
            stored.ABOUT: ocp.args.JsonSave(about),
        }
        checkpointer.save(target.absolute(), args=ocp.args.Composite(**parts), force=True)
    stored.remove_checkpoints(run, kept=stored.checkpoints(run)[-keep:])


def _read(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a checkpoint by path; raises any error where they are not as they were written."""
    written = stored.about(path)["leaves"]
    leaves = {
        key: np.zeros(shape, dtype) for key, (shape, dtype, _) in written.items() if 0 in shape
    }
    with _orbax() as (ocp, checkpointer):
        of_leaf = ocp.RestoreArgs(restore_type=np.ndarray)
        wanted = dict.fromkeys(written.keys() - leaves.keys(), of_leaf)
        parts = {stored.STATE: ocp.args.PyTreeRestore(restore_args=wanted)}
        restored = checkpointer.restore(path.absolute(), args=ocp.args.Composite(**parts))
    leaves |= restored[stored.STATE]
    if damaged := [key for key, of_leaf in written.items() if _describe(leaves[key]) != of_leaf]:
        raise ValueError(f"{damaged[0]} is damaged")
    return leaves


@contextlib.contextmanager
def _orbax() -> Iterator[tuple[Any, Any]]:
    """Yields Orbax, and its checkpointer for arrays on the host, which waits for no other process.

    Any error is an OSError of one line: where the disk is full, or bytes are damaged, tensorstore raises errors of many
    lines, Orbax logs at length, and what fails later raises in an event loop that is closed.
    """
    import orbax.checkpoint as ocp

    this = jax.process_index()
    options = ocp.options.MultiprocessingOptions(
        primary_host=this, active_processes={this}, barrier_sync_key_prefix=f"process{this}"
    )
    handler = ocp.CompositeCheckpointHandler(
        composite_options=ocp.CompositeOptions(multiprocessing_options=options)
    )
    log, hook = logging.getLogger("absl"), sys.unraisablehook
    log.disabled, sys.unraisablehook = True, lambda unraisable: None
    try:
        with ocp.Checkpointer(handler, multiprocessing_options=options) as checkpointer:
            yield ocp, checkpointer
    except Exception as error:
        time.sleep(0.2)  # for what fails later
        raise OSError(files.reason(error)) from error
    finally:
        log.disabled, sys.unraisablehook = False, hook


def restore(
    run: Path, template: Callable[[Mapping[str, np.ndarray]], Tree], log: Callable[[str], None]
) -> tuple[Tree, Digest] | None:
    """Returns the newest intact checkpoint, on the host.

    Args:
        run: the run's folder.
        template: the leaves by path -> pytree of arrays or shapes that the checkpoint must have.
        log: called with one line about every newer checkpoint that is skipped.

    Returns:
        (state in the structure of the template, digest of the history), or None without a checkpoint.

    Raises:
        UsageError: no checkpoint is intact and of these shapes.
    """
    skipped = []
    for path in reversed(stored.checkpoints(run)):
        try:
            leaves = _read(path)
            return _in_structure(template(leaves), leaves), stored.about(path)["history"]
        except Exception as error:  # damaged bytes may raise anything
            skipped.append(f"checkpoint of round {int(path.name)} skipped: {files.reason(error)}")
            log(skipped[-1])
    if skipped:
        raise UsageError(
            f"{run} has no usable checkpoint ({skipped[0]}); nothing was changed; start a new run"
        )
    return None


def best_variables(run: Path | str, template: Variables | None = None) -> Variables:
    """Returns the model that was best on validation, from the newest intact checkpoint of a run folder.

    Args:
        run: the run folder, or one of its checkpoints, such as RUN/checkpoints/000040.
        template: variables of the same structure; only a model without nested dicts of parameters needs it.

    Returns:
        The variables on the host, as nested dicts or in the structure of `template`.

    Raises:
        UsageError: no checkpoint holds such a model, or its shapes differ from the template's.

    >>> best_variables("nowhere")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: nowhere holds no model best on validation (no checkpoint in nowhere/checkpoints); ...
    """
    choose = functools.partial(_with_prefix, "best.")
    return _read_model(run, "model best on validation", choose, template)


def final_variables(run: Path | str, template: Variables | None = None) -> Variables:
    """Returns the global model of the newest intact checkpoint of a run folder: the final one of a finished run.

    Args:
        run: the run folder, or one of its checkpoints, such as RUN/checkpoints/000040.
        template: variables of the same structure; only a model without nested dicts of parameters needs it.

    Returns:
        The variables on the host, as nested dicts or in the structure of `template`.

    Raises:
        UsageError: there is no intact checkpoint, or its shapes differ from the template's.
    """
    choose = functools.partial(_with_prefix, "state.variables.")
    return _read_model(run, "global model", choose, template)


def client_variables(run: Path | str, client: int) -> Variables:
    """Returns a client's model, see `History.client_variables`."""
    return _read_model(run, f"model of client {client}", functools.partial(_of_client, client))


def _of_client(client: int, leaves: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a client's local tensors among all leaves, and the global model's tensors in place of others."""
    tensors = _with_prefix("state.clients.local.", leaves)
    if not tensors:
        raise ValueError("clients keep no model")
    owners = leaves.get("state.client_ids", np.arange(len(next(iter(tensors.values())))))
    rows_of_client = np.flatnonzero(owners == client)
    if not len(rows_of_client):
        raise ValueError(f"there is no client {client}, or it has not taken part")
    of_client = {key: rows[rows_of_client[0]] for key, rows in tensors.items()}
    return _with_prefix("state.variables.", leaves) | of_client


def _with_prefix(prefix: str, leaves: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the leaves with paths that start with a prefix, by the rest of their paths."""
    return {
        key.removeprefix(prefix): leaf for key, leaf in leaves.items() if key.startswith(prefix)
    }


def _read_model(
    folder: Path | str,
    what: str,
    choose: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]],
    template: Variables | None = None,
) -> Variables:
    """Returns the variables that `choose` takes of the newest checkpoint that has them intact.

    Args:
        folder: of a run, or of a checkpoint.
        what: for the message where there are none.
        choose: all leaves by path -> the leaves of the model, by path.
        template: see `final_variables`.
    """
    run, reasons = files.user_path(folder), []
    for path in [run] if (run / stored.STATE).is_dir() else reversed(stored.checkpoints(run)):
        try:
            leaves = choose(_read(path))
            if not leaves:
                raise ValueError("it has none")
            return _nested(leaves) if template is None else _in_structure(template, leaves)
        except Exception as error:  # damaged bytes may raise anything
            reasons.append(f"checkpoint {path.name}: {files.reason(error)}")
    listed = "; ".join(reasons) or f"no checkpoint in {run / stored.CHECKPOINTS}"
    raise UsageError(
        f"{run} holds no {what} ({listed}); use the settings of its model, and of a run with --train or --lora the file"
        " of --export; --keep 1 or more, and an evaluation, leave models"
    )


def _nested(leaves: Mapping[str, np.ndarray]) -> Variables:
    """Returns nested variables: {"params.fc1.kernel": x} -> Variables({"fc1": {"kernel": x}}, {})."""
    fields = traverse_util.unflatten_dict(leaves, sep=".")
    return Variables(fields.get("params", {}), fields.get("stats", {}))


def _in_structure(template: Tree, leaves: Mapping[str, np.ndarray]) -> Any:
    """Returns the leaves as a pytree like the template; ValueError with the first of another shape or dtype."""
    by_path = _leaves_by_path(template)
    expected = {path: _shape(leaf) for path, leaf in by_path.items()}
    shapes = {path: _shape(leaf) for path, leaf in leaves.items()}
    for path in sorted(expected.keys() | shapes.keys()):
        stored_shape, shape = shapes.get(path), expected.get(path)
        if stored_shape != shape:
            raise ValueError(f"other shapes: {path} is {stored_shape}, not {shape}")
    return jax.tree.structure(template).unflatten([leaves[path] for path in by_path])


def place_like(template: Tree, state: Tree) -> Tree:
    """Returns `state`, which is on the host, on the devices of `template` with its key types; its NumPy arrays stay."""

    def placed(expected, value):
        if isinstance(expected, np.ndarray):
            return value
        return typed_like(expected, processes.place(value, expected.sharding))

    return jax.tree.map(placed, template, state)


def untyped(leaf: Any) -> Any:
    """Returns an array without the type of random keys: their key data."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def typed_like(expected: Any, leaf: Any) -> Any:
    """Returns key data as keys where `expected` has keys; other arrays as they are."""
    if not _is_key(expected):
        return leaf
    return jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(expected))


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _shape(leaf: Any) -> tuple[tuple[int, ...], str]:
    leaf = jax.eval_shape(untyped, leaf) if _is_key(leaf) else leaf
    return leaf.shape, str(leaf.dtype)


def _leaves_by_path(state: Tree) -> dict[str, Any]:
    """Returns leaves by path, such as "state.variables.params.fc1.kernel"."""
    by_path = {path.replace("/", "."): leaf for path, leaf in tree.by_path(state).items()}
    assert len(by_path) == len(jax.tree.leaves(state)), "two leaves have the same path"
    return by_path


def _describe(leaf: np.ndarray) -> list:
    """Returns [shape, dtype, CRC-32 of the bytes]."""
    flat = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
    return [list(leaf.shape), str(leaf.dtype), zlib.crc32(flat.data)]
