"""When a run ends before its last round: it diverged, or a signal asks for it.

SIGINT (Ctrl-C), SIGTERM (a scheduler) and SIGHUP (a lost terminal) end the run: the loop finishes its chunk of rounds,
saves, and returns. A second SIGINT has its usual effect; others have none, because schedulers, shells and the kernel
send SIGTERM and SIGHUP more than once. Before and after the rounds, all have their usual effect.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedvg_jax.host.errors import UsageError
from fedvg_jax.runs.record.history import Record

EXPLOSION = 1000.0
"""A larger cross-entropy has exploded: it gives the right class a probability of e^-1000. On digits, runs of Scaffold
that learn stay below 10, and those that explode pass 10^16 on their way to infinity, or to a model that is constant."""


def divergence(record: Record, limit: float = math.inf) -> str:
    """Returns how a client or the loss diverged in a round; "" if none did.

    Args:
        record: of the round.
        limit: a larger training loss has exploded.

    >>> divergence({"train_loss": 2e3}, EXPLOSION), divergence({"train_loss": 2e3})
    ('the training loss 2e+03 is over 1000', '')
    """
    if "diverged" in record:
        return f"clients {record['diverged']} diverged (model, loss, score, weight or probe not finite)"
    if (record.get("train_loss") or 0.0) > limit:
        return f"the training loss {record['train_loss']:.3g} is over {limit:g}"
    is_finite = any(record.get(name, 0.0) is not None for name in ("val_loss", "test_loss"))
    return "" if is_finite else "the loss of the global model is not finite"


def until_first(records: Sequence[Record], limit: float = math.inf) -> tuple[list[Record], str]:
    """Returns the records up to the first round that diverged, and that one; and how it diverged, "" if none did.

    Args:
        records: of consecutive rounds.
        limit: as in `divergence`.
    """
    for number, record in enumerate(records, 1):
        if problem := divergence(record, limit):
            return list(records[:number]), problem
    return list(records), ""


def refuse_wrong_weights(records: Sequence[Mapping[str, Any]]) -> None:
    """Raises UsageError for the first round with weights that are negative, or do not sum to 1 in every tensor."""
    for record in records:
        if "invalid_weights" in record:
            total, least = record["invalid_weights"]
            raise UsageError(
                f"round {record['round']}: weights sum to {total:.6g}, the least is {least:.3g}; expected numbers >= 0"
                " with sum 1 in every tensor, which negative measurements, such as losses, do not give"
            )


def no_client_warning(records: Sequence[Record]) -> str:
    """Returns the warning for the first round that averaged no client, "" if there is none."""
    for record in records:
        if record["weights"] and not any(record["weights"]):
            return (
                f"round {record['round']} averaged no client, so the global model did not move: all"
                f" {len(record['clients'])} diverged, dropped out or took no step"
            )
    return ""


# --- signals

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ALWAYS_CAUGHT = (signal.SIGINT, signal.SIGTERM)
"""SIGHUP keeps a handler that is not the default, such as nohup's."""


def exit_code(name: str) -> int:
    """Returns 128 + the signal's number, as shells do: 129 for SIGHUP, 130 for SIGINT, 143 for SIGTERM."""
    return 128 + signal.Signals[name]


@contextlib.contextmanager
def catch_signals(
    report: Callable[[str], None] = lambda name: None,
    log: Callable[[str], None] = lambda line: None,
) -> Iterator[list[str]]:
    """Collects the names of signals in place of their usual effect, which a second SIGINT has again.

    No-op outside the main thread, where Python cannot install handlers.

    Args:
        report: called at the end with the first name, if there is one.
        log: called with one line at the first signal of each kind.
    """
    received: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    usual = {}
    for number in STOPPING:
        handler = signal.getsignal(number) or signal.SIG_DFL
        if number in ALWAYS_CAUGHT or handler == signal.SIG_DFL:
            usual[number] = handler

    def receive(number: int, frame=None) -> None:
        name, line = signal.Signals(number).name, "stopping after this round"
        is_first = name not in received
        received.append(name)  # before the line, amid which another signal may come
        if number == signal.SIGINT:
            signal.signal(number, usual[signal.SIGINT])
            line += "; again to stop now"
        if is_first:
            # the signal came while another line was being written
            with contextlib.suppress(RuntimeError):
                log(f"{name}: {line}")

    for number in usual:
        signal.signal(number, receive)
    try:
        yield received
    finally:
        if received:
            report(received[0])
        for number, handler in usual.items():
            signal.signal(number, handler)


def agree(received: Sequence[str], largest: Callable[[Sequence[float]], list[float]]) -> str | None:
    """Returns a signal that asks a process of a run to stop, so that all stop after the same round; None without one.

    Args:
        received: by this process.
        largest: numbers -> the largest over all processes, position by position.
    """
    (number,) = largest([signal.Signals[received[0]] if received else 0])
    return signal.Signals(int(number)).name if number else None
