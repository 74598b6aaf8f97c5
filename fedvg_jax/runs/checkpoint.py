"""Checkpoints of a run: written by Orbax, sealed last, verified before they are trusted.

RUN/checkpoints/000040/state      the arrays
RUN/checkpoints/000040/seal.json  size and CRC-32 of every file; shape, dtype and CRC-32 of every leaf; config, versions

The seal appears, by one rename, once all it vouches for is on the disk: a checkpoint without it is half-written. Bytes
that changed since are found before anything reads them, so a crash or a bad disk can cost rounds, but never the truth.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedvg_jax.core import files, tree
from fedvg_jax.core.types import Tree, UsageError, Variables
from fedvg_jax.runs.seals import FOLDER, FORMAT, SEAL, About, listed, name, sealed, unsealed

PLAIN = re.compile(r"[\w/. -]*")
"""Paths that Orbax and tensorstore take as they are; `**`, `[b]`, a backslash and `gs:` mean something to them."""


def to_host(state: Tree) -> Tree:
    """A copy in the host's memory, which no later round writes over; typed keys as their data."""
    return jax.tree.map(np.array, jax.device_get(jax.tree.map(_untyped, state)))


def save(run: Path, number: int, state: Tree, about: Mapping[str, Any], keep: int) -> None:
    """Writes the checkpoint of a round, then removes all but the newest `keep`.

    Args:
        run: the run's folder.
        number: rounds done.
        state: on the host.
        about: kept beside it; plain JSON.

    Raises:
        OSError: it cannot be written; nothing older was touched.
    """
    target = run.absolute() / FOLDER / name(number)
    target.parent.mkdir(exist_ok=True)  # but not the run's own folder, should that be gone
    _remove(target)
    target.mkdir()
    leaves = _named(state)
    _write(target / "state", leaves)
    written = sorted(path for path in (target / "state").rglob("*"))
    files.flush([*written, target / "state", target, target.parent, run])
    seal = {
        "round": number,
        "format": FORMAT,
        **about,
        "files": {str(path.relative_to(target)): files.seal(path) for path in written if path.is_file()},
        "leaves": {key: _describe(leaf) for key, leaf in leaves.items()},
    }
    files.replace(target / SEAL, sealed(seal))
    _prune(run, number, keep)


def restore(
    run: Path, template: Callable[[About], Tree], refuse: Callable[[About], str], tell: Callable[[str], None]
) -> tuple[Tree, About] | None:
    """The newest checkpoint that can be trusted, on the host.

    Args:
        template: what the checkpoint says of itself -> a tree of the arrays expected.
        refuse: the same -> why it is not wanted, or "".
        tell: hears in one line why a newer one was passed over.

    Returns:
        (state like the template, what the checkpoint says of itself); None where there is none.
    """
    for path in reversed(listed(run)):
        try:
            about = unsealed(path)
            if why := refuse(about):
                raise ValueError(why)
            return _read(path, about, template(about)), about
        except Exception as error:  # damaged bytes raise what they lead to
            why = files.reason(error)
            tell(f"checkpoint of round {int(path.name)} passed over: {why}")
    return None


def best_variables(run: Path, template: Variables | None = None) -> Variables:
    """The model that was best on validation, from the newest checkpoint of a run folder that can be trusted.

    Args:
        template: variables of the same structure, for a model whose parameters are not nested dicts.

    Returns:
        The variables on the host, as nested dicts or in the structure of `template`.

    Raises:
        UsageError: no checkpoint holds such a model, or it is not of the template's shapes.

    >>> best_variables("nowhere")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: nowhere holds no model best on validation (no checkpoint in nowhere/checkpoints); ...
    """
    run, whys = Path(run), []
    for path in reversed(listed(run)):
        try:
            about = unsealed(path)
            if about["best"] is None:
                raise ValueError("no round was evaluated yet")
            leaves = {key.removeprefix("best."): leaf for key, leaf in _leaves(path, about).items() if _is_best(key)}
            return _nested(leaves) if template is None else _in_structure(template, leaves)
        except Exception as error:  # damaged bytes raise what they lead to
            whys.append(f"round {int(path.name)}: {files.reason(error)}")
    said = "; ".join(whys) or f"no checkpoint in {run / FOLDER}"
    raise UsageError(f"{run} holds no model best on validation ({said}); --keep 1 or more and an evaluation leave one")


def _is_best(key: str) -> bool:
    return key.startswith("best.")


def _nested(leaves: Mapping[str, np.ndarray]) -> Variables:
    """{"params.fc1.kernel": x} -> Variables({"fc1": {"kernel": x}}, {})"""
    found: dict[str, Any] = {"params": {}, "stats": {}}
    for key, leaf in leaves.items():
        *above, last = key.split(".")
        functools.reduce(lambda node, part: node.setdefault(part, {}), above, found)[last] = leaf
    return Variables(**found)


def _in_structure(template: Variables, leaves: Mapping[str, np.ndarray]) -> Variables:
    expected = {key: tuple(leaf.shape) for key, leaf in _named(template).items()}
    found = {key: leaf.shape for key, leaf in leaves.items()}
    if expected != found:
        raise ValueError(f"its shapes are {found}, the template's {expected}")
    return jax.tree.structure(template).unflatten([leaves[key] for key in expected])


def like(template: Tree, state: Tree) -> Tree:
    """`state` on the device, its typed keys typed again, as in `template`."""

    def placed(expected, value):
        if _is_key(expected):
            return jax.random.wrap_key_data(jax.numpy.asarray(value), impl=jax.random.key_impl(expected))
        return jax.device_put(value, expected.sharding)

    return jax.tree.map(placed, template, state)


def _write(folder: Path, leaves: Mapping[str, np.ndarray]) -> None:
    """Orbax keeps no array without entries; the template knows those."""
    import orbax.checkpoint as ocp

    held = {key: leaf for key, leaf in leaves.items() if leaf.size}
    with _quiet(), _plain(folder) as plain, ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(plain, args=ocp.args.PyTreeSave(held))


@contextlib.contextmanager
def _plain(folder: Path) -> Iterator[Path]:
    """A path of the same folder in plain characters: through a link to its parent where its own has others."""
    if PLAIN.fullmatch(str(folder)):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="fedvg-") as scratch:
        link = Path(scratch, "link")
        link.symlink_to(folder.parent, target_is_directory=True)
        yield link / folder.name


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A full disk as an OSError and nothing else: Orbax logs it too, at length; tensorstore tells of it in a ValueError
    of many lines, and its writes that fail later come back to a loop that is closed."""
    log, hook = logging.getLogger("absl"), sys.unraisablehook
    log.disabled, sys.unraisablehook = True, lambda unraisable: None
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        time.sleep(0.2)  # the late ones
        number = re.search(r"os_error_code='(\d+)'", str(error))
        raise (OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error))) from error
    finally:
        log.disabled, sys.unraisablehook = False, hook


def _read(path: Path, about: About, template: Tree) -> Tree:
    """The arrays of a checkpoint, in the structure of `template`."""
    expected = {key: _shape(leaf) for key, leaf in _named(template).items()}
    found = _shapes(about)
    if expected != found:
        other = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
        raise ValueError(f"other shapes: {other[0]} is {found.get(other[0])}, not {expected.get(other[0])}")
    leaves = _leaves(path, about)
    return jax.tree.structure(template).unflatten([leaves[key] for key in expected])


def _shapes(about: About) -> dict[str, tuple[tuple[int, ...], str]]:
    return {key: (tuple(leaf[0]), leaf[1]) for key, leaf in about["leaves"].items()}


def _leaves(path: Path, about: About) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint by name; its files and leaves are those that were sealed."""
    import orbax.checkpoint as ocp

    if damage := files.damaged(path, about["files"]):
        raise ValueError(f"{damage[0]} is damaged")
    found = _shapes(about)
    held = {key: ocp.RestoreArgs(restore_type=np.ndarray) for key, (shape, _) in found.items() if 0 not in shape}
    with _plain(path.absolute() / "state") as plain, ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        leaves = checkpointer.restore(plain, args=ocp.args.PyTreeRestore(restore_args=held))
    leaves |= {key: np.zeros(*found[key]) for key in found.keys() - held.keys()}
    for key, leaf in leaves.items():
        if _describe(leaf) != about["leaves"][key]:
            raise ValueError(f"{key} is damaged")
    return leaves


def _named(state: Tree) -> dict[str, Any]:
    """Leaves by path, "state.variables.params.fc1.kernel"."""
    leaves = jax.tree.leaves(state)
    named = dict(zip((path.replace("/", ".") for path in tree.paths(state)), leaves, strict=True))
    assert len(named) == len(leaves), "two leaves have the same path"
    return named


def _shape(leaf) -> tuple[tuple[int, ...], str]:
    leaf = jax.eval_shape(_untyped, leaf) if _is_key(leaf) else leaf
    return leaf.shape, str(leaf.dtype)


def _describe(leaf: np.ndarray) -> list:
    """[shape, dtype, CRC-32 of the bytes]"""
    return [list(leaf.shape), str(leaf.dtype), zlib.crc32(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8))]


def _untyped(leaf):
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _is_key(leaf) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _prune(run: Path, number: int, keep: int) -> None:
    """Of those up to this one, keeps the newest that are sealed; a later one was passed over, and soon replaced."""
    known = [path for path in listed(run) if int(path.name) <= number]
    kept = [path for path in known if (path / SEAL).is_file()][-keep:]
    for path in known:
        if path not in kept:
            _remove(path)


def _remove(path: Path) -> None:
    """The seal first, so that what is left of it at any instant is known to be half-written."""
    if path.exists():
        (path / SEAL).unlink(missing_ok=True)
        shutil.rmtree(path)
