"""When a run ends before its last round: a target is reached, D_val improves no more, or it diverged.

`stop_at` and `patience` are functions of the records alone, so a resumed run ends where an uninterrupted one does.
`val_*` are measured on the rows that `best_on` names.

Signals during a run: some end it after a checkpoint, others request a checkpoint only.

SIGINT (Ctrl-C), SIGTERM (a scheduler) and SIGHUP (a lost terminal) end the run: the loop finishes its chunk of rounds,
saves, and returns. SIGUSR1 (a scheduler's early warning) and SIGQUIT save a checkpoint, and the run continues. Before
and after the rounds, signals have their usual effect.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from fedvg_jax.config import Config
from fedvg_jax.config.options import stop_target
from fedvg_jax.runs.record.history import Record, primary_metric, quality

ABSENCES = {"diverged": "diverged", "dropped": "dropped out", "untrained": "took no step"}
"""entry of a record -> words for its clients"""

EXPLOSION = 1000.0
"""A larger cross-entropy has exploded: it gives the right class a probability of e^-1000. On digits, runs of Scaffold
that learn stay below 10, and those that explode pass 10^16 on their way to infinity, or to a model that is constant."""


def loss_limit(records: Iterable[Record], is_own_task: bool) -> float:
    """Returns the largest training loss that has not exploded: `EXPLOSION`.

    The loss of a caller's own task may have any unit: there it is so many times that of the first round, if that is
    over 1.

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


def divergence(records: Sequence[Record], limit: float = math.inf) -> str:
    """Returns the error message for the first round in which a client or the loss diverged, "" if none did.

    Args:
        records: of the last rounds.
        limit: see `loss_limit`.
    """
    record = until_first(records, limit)[-1] if records else {}
    if "diverged" not in record:
        problem = _explosion(record, limit)
        return f"round {record['round']}: {problem}; use a smaller --lr, or --nonfinite skip" if problem else ""
    what = "diverged (model, loss, score, weight or probe not finite)"
    advice = "use a smaller --lr, or --nonfinite skip to leave them out"
    return f"round {record['round']}: clients {record['diverged']} {what}; {advice}"


def no_client_warning(records: Sequence[Record]) -> str:
    """Returns the warning for the first round that averaged no client, "" if there is none."""
    record = next((r for r in records if r["weights"] and not any(r["weights"])), None)
    if record is None:
        return ""
    counts = [f"{len(record[name])} {what}" for name, what in ABSENCES.items() if name in record]
    return (
        f"round {record['round']} averaged no client ({', '.join(counts)} of {len(record['clients'])}), so no client"
        " moved the global model"
    )


# --- targets


def stop_reason(config: Config, records: Sequence[Record]) -> str:
    """Returns why a run ends after these records; "" where it goes on.

    >>> records = [{"round": 5 * i, "val_loss": loss, "test_loss": loss} for i, loss in enumerate([4, 2, 3, 2], 1)]
    >>> stop_reason(Config(stop_at="val_loss 2.5"), records), stop_reason(Config(patience=3), records)
    ('val_loss 2 reached 2.5 in round 10', '')
    >>> stop_reason(Config(patience=2), records)
    'val_loss did not improve in 2 evaluations after round 10'
    """
    if not (config.stop_at or config.patience):
        return ""
    evaluated = [record for record in records if "test_loss" in record]
    return _reached(config, evaluated) or _exhausted(config.patience, evaluated)


def is_over(config: Config, records: Sequence[Record]) -> bool:
    """Returns whether a run ends after these records: it has all rounds, or a reason to stop."""
    return len(records) >= config.rounds or bool(stop_reason(config, records))


def _reached(config: Config, evaluated: Sequence[Record]) -> str:
    wanted = stop_target(config)
    if wanted is None:
        return ""
    name, sign, target = wanted
    for record in evaluated:
        if record.get(name) is not None and sign * record[name] >= sign * target:
            return f"{name} {record[name]:.6g} reached {target:g} in round {record['round']}"
    return ""


def _exhausted(patience: int, evaluated: Sequence[Record]) -> str:
    if not patience or not evaluated:
        return ""
    best, best_round, waited = -math.inf, evaluated[0]["round"], 0
    for record in evaluated:
        if (value := quality(record)) > best:
            best, best_round, waited = value, record["round"], 0
        elif (waited := waited + (record is not evaluated[0])) == patience:
            return f"val_{primary_metric(record)} did not improve in {patience} evaluations after round {best_round}"
    return ""


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAVING = (signal.SIGUSR1, signal.SIGQUIT)
ALWAYS_CAUGHT = (signal.SIGINT, signal.SIGTERM)
"""Other signals keep a handler that is not the default: nohup ignores SIGHUP, and a caller may use SIGUSR1."""


class Requests(NamedTuple):
    """Names of signals that were received and not yet answered."""

    stop: list[str]
    save: list[str]


def exit_code(name: str) -> int:
    """Returns 128 + the signal's number, as shells do: 129 for SIGHUP, 130 for SIGINT, 143 for SIGTERM."""
    return 128 + signal.Signals[name]


@contextlib.contextmanager
def catch_signals() -> Iterator[Requests]:
    """Collects signals in place of their usual effect, which a second SIGINT or SIGTERM has again.

    Python calls a handler when the main thread returns from the device, so at the end of a chunk of rounds. No-op
    outside the main thread, where Python cannot install handlers.
    """
    requests = Requests([], [])
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return
    default = (signal.SIG_DFL, signal.default_int_handler)
    handlers = {number: signal.getsignal(number) or signal.SIG_DFL for number in (*STOPPING, *SAVING)}
    usual = {number: handler for number, handler in handlers.items() if number in ALWAYS_CAUGHT or handler in default}

    def receive(number: int, frame=None) -> None:
        name = signal.Signals(number).name
        if number in SAVING:
            requests.save.append(name)
            return
        requests.stop.append(name)
        for again in ALWAYS_CAUGHT:  # no second SIGHUP: shells and the kernel send it more than once
            signal.signal(again, usual[again])

    for number in usual:
        signal.signal(number, receive)
    try:
        yield requests
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def agree(requests: Requests, largest: Callable[[Sequence[float]], list[float]]) -> Requests:
    """Returns the requests of all processes of a run, so that all stop or save after the same round.

    Args:
        requests: of this process; those that are returned are removed, except to stop.
        largest: numbers -> the largest over all processes, position by position.
    """
    own = Requests(list(requests.stop), list(requests.save))
    del requests.save[: len(own.save)]
    numbers = largest([signal.Signals[names[0]] if names else 0 for names in own])
    others = [[signal.Signals(int(number)).name] if number else [] for number in numbers]
    return Requests(own.stop or others[0], own.save or others[1])
