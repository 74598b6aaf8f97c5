"""Several processes that run one simulation: which one this is, and the values that they exchange.

`jax.distributed` connects the processes. All of them execute the same programs on the same values, in the same order.
So every function here that exchanges values must be called by all processes; with one process it returns at once.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, TypeVar

import jax
import numpy as np

from fedvg_jax.host.errors import UsageError

T = TypeVar("T")

_MESSAGE_BYTES = 2**16
"""Bytes that each process contributes to `exchange`: all must send arrays of one shape."""

_LOST = re.compile(
    r"gloo|nccl|coordination.?service|socket closed|connection (closed|reset|refused)",
    re.IGNORECASE,
)
"""What the errors of a collective say when a process is gone."""


def count() -> int:
    """Returns the number of processes. Like `is_first`, it starts no back end where there is one process."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


def is_first() -> bool:
    """Returns whether this is process 0, which alone writes the run folder and prints."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def largest(values: Sequence[float]) -> list[float]:
    """Returns the largest value over the processes, in float32, position by position.

    >>> largest([0.5, 2])
    [0.5, 2]
    """
    if count() == 1:
        return list(values)
    return _gather(np.array(values, np.float32)).max(0).tolist()


def exchange(text: str) -> list[str]:
    """Returns the texts of all processes, each cut to 64 KiB.

    >>> exchange("ready")
    ['ready']
    """
    if count() == 1:
        return [text]
    padded = text.encode()[:_MESSAGE_BYTES].ljust(_MESSAGE_BYTES, b"\0")
    rows = _gather(np.frombuffer(padded, np.uint8))
    return [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in rows]


def place(arrays: Any, placement: Any) -> Any:
    """Returns the arrays on the devices of a sharding, which may belong to several processes.

    Args:
        arrays: equal in all processes.
        placement: a sharding, or None for the default device.
    """
    if placement is None or placement.is_fully_addressable:
        return jax.device_put(arrays, placement)

    def placed(leaf: Any) -> jax.Array:
        on_host = np.asarray(leaf)
        return jax.make_array_from_callback(on_host.shape, placement, lambda index: on_host[index])

    return jax.tree.map(placed, arrays)


def wait(arrays: T) -> T:
    """Returns arrays once they are computed. Python handles signals meanwhile, as it does not inside of jax."""
    computed = futures.Future()

    def block() -> None:
        try:
            computed.set_result(jax.block_until_ready(arrays))
        except BaseException as error:
            computed.set_exception(error)

    threading.Thread(target=block, daemon=True).start()
    # a signal does not wake this thread if another thread receives it
    while not futures.wait([computed], timeout=0.2).done:
        continue
    return computed.result()


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Ends a block with an error in every process if it fails in any.

    The block must exchange nothing itself, except where all processes fail or none.

    Raises:
        UsageError: another process failed.
    """
    try:
        yield
    except Exception as error:
        if not is_loss(error):
            exchange(" ".join(str(error).split())[:400] or type(error).__name__)
        raise
    for number, message in enumerate(exchange("")):
        if message:
            raise UsageError(f"process {number}: {message}")


def is_loss(error: BaseException) -> bool:
    """Returns whether an error says that another process is gone.

    >>> is_loss(ValueError("UNKNOWN: Gloo AllGather failed: Connection closed by peer")), is_loss(ValueError("lr 0"))
    (True, False)
    """
    is_of_jax = isinstance(error, (RuntimeError, ValueError)) and not isinstance(error, UsageError)
    return is_of_jax and bool(_LOST.search(str(error)))


def refuse_different(values: Mapping[str, str], remedy: str) -> None:
    """Raises UsageError if values differ between the processes; the message names the first of them and the remedy."""
    here = {name: [value[:100], zlib.crc32(value.encode())] for name, value in values.items()}
    first, *others = map(json.loads, exchange(json.dumps(here)))
    for number, other in enumerate(others, 1):
        for name, expected in first.items():
            got = other.get(name, [""])
            if got != expected:
                raise UsageError(
                    f"process {number} has {name} {got[0] or 'none'}, process 0 {expected[0] or 'none'}; {remedy}"
                )


def _gather(row: np.ndarray) -> np.ndarray:
    """Returns the rows of all processes, [processes, ...]."""
    from jax.experimental import multihost_utils

    # the library promotes dtypes
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return np.asarray(multihost_utils.process_allgather(row))
