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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedvg_jax.host.errors import UsageError
from fedvg_jax.runs.record.history import Record

EXPLOSION = 1000.0
"""A larger cross-entropy has exploded: it gives the right class a probability of e^-1000. On digits, runs of Scaffold
that learn stay below 10, and those that explode pass 10^16 on their way to infinity, or to a model that is constant."""


def loss_limit(records: Iterable[Record], is_own_task: bool) -> float:
    """Returns the largest training loss that has not exploded: `EXPLOSION`.

    The loss of a caller's own task may have any unit: there it is so many times the first round's loss, if that is over
    1.

    Args:
        records: of a run, from its first round on.
        is_own_task: whether the task is the caller's.

    >>> records = [{"train_loss": 2.5}, {"train_loss": 9.0}]
    >>> loss_limit(records, False), loss_limit(records, True), loss_limit([{"train_loss": 1e-6}], True)
    (1000.0, 2500.0, 1000.0)
    """
    losses = (record["train_loss"] for record in records)
    first = next((abs(loss) for loss in losses if loss is not None), math.inf)
    return EXPLOSION * max(1.0, first) if is_own_task else EXPLOSION


def until_first(records: Sequence[Record], limit: float = math.inf) -> list[Record]:
    """Returns the records up to the first round in which a client or the loss diverged, and that one.

    Args:
        records: of consecutive rounds.
        limit: see `loss_limit`.

    >>> until_first([{"round": 1}, {"round": 2, "diverged": [0]}, {"round": 3}])
    [{'round': 1}, {'round': 2, 'diverged': [0]}]
    """
    is_last = ("diverged" in record or bool(_explosion(record, limit)) for record in records)
    first = next((i for i, found in enumerate(is_last) if found), len(records))
    return list(records[: first + 1])


def _explosion(record: Record, limit: float) -> str:
    """Returns how the loss of a round diverged; "" if it did not."""
    if record.get("train_loss") is not None and record["train_loss"] > limit:
        return f"the training loss {record['train_loss']:.3g} is over {limit:.4g}"
    is_evaluated = "test_loss" in record
    is_finite = is_evaluated and any(record[name] is not None for name in ("val_loss", "test_loss"))
    return "the loss of the global model is not finite" if is_evaluated and not is_finite else ""


def divergence(
    records: Sequence[Record], limit: float = math.inf, has_own_weighting: bool = False
) -> str:
    """Returns the error message for the first round in which a client or the loss diverged, "" if none did.

    Args:
        records: of the last rounds.
        limit: see `loss_limit`.
        has_own_weighting: whether the weighting is the caller's.
    """
    record = until_first(records, limit)[-1] if records else {}
    if "diverged" not in record:
        problem = _explosion(record, limit)
        return (
            f"round {record['round']}: {problem}; use a smaller --lr, or --nonfinite skip"
            if problem
            else ""
        )
    if has_own_weighting and record["diverged"] == record.get("unweighed"):
        problem = (
            f"weighting= gives clients {record['diverged']} a signal or weight that is not finite"
        )
        return f"round {record['round']}: {problem}; correct it, or use --nonfinite skip to leave them out"
    what = "diverged (model, loss, score, weight or probe not finite)"
    advice = "use a smaller --lr, or --nonfinite skip to leave them out"
    return f"round {record['round']}: clients {record['diverged']} {what}; {advice}"


def refuse_wrong_weights(records: Sequence[Mapping[str, Any]]) -> None:
    """Raises UsageError for the first round with wrong weights.

    Args:
        records: of rounds, with `invalid_weights` where the weights of a tensor are negative or do not sum to 1.

    >>> refuse_wrong_weights([{"round": 2, "invalid_weights": [1.5, 0.0]}])
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: round 2: weights sum to 1.5, the least is 0; expected numbers >= 0 with sum 1 in every \
tensor, which negative measurements, such as losses, do not give
    """
    for record in records:
        if "invalid_weights" in record:
            total, least = record["invalid_weights"]
            raise UsageError(
                f"round {record['round']}: weights sum to {total:.6g}, the least is {least:.3g}; expected numbers >= 0"
                " with sum 1 in every tensor, which negative measurements, such as losses, do not give"
            )


def no_client_warning(records: Sequence[Record]) -> str:
    """Returns the warning for the first round that averaged no client, "" if there is none."""
    record = next((r for r in records if r["weights"] and not any(r["weights"])), None)
    if record is None:
        return ""
    return (
        f"round {record['round']} averaged no client, so the global model did not move: all {len(record['clients'])}"
        " diverged, dropped out or took no step"
    )


def zero_scores_warning(records: Sequence[Record]) -> str:
    """Returns the warning for the first round in which the weighting measured 0 for all clients, "" if there is none.

    >>> zero_scores_warning([{"round": 1, "clients": [2, 5], "scores": [0.0, 0.0], "weights": [0.5, 0.5]}])
    'round 1: the weighting measured 0 for all 2 clients, so their weights are uniform'
    """
    for record in records:
        weighed = [
            pair for pair in zip(record["weights"], record["scores"], strict=True) if pair[0]
        ]
        if len(weighed) > 1 and all(score == 0 for _, score in weighed) and len(set(weighed)) == 1:
            measured = f"the weighting measured 0 for all {len(weighed)} clients"
            return f"round {record['round']}: {measured}, so their weights are uniform"
    return ""


WARNINGS = (no_client_warning, zero_scores_warning)
"""Each is given once in a run."""


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
    default = (signal.SIG_DFL, signal.default_int_handler)
    handlers = {number: signal.getsignal(number) or signal.SIG_DFL for number in STOPPING}
    usual = {
        number: handler
        for number, handler in handlers.items()
        if number in ALWAYS_CAUGHT or handler in default
    }

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
