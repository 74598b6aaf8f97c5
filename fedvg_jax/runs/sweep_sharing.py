"""Computes points of a sweep side by side in programs that they share, or one after another where that is faster."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from fedvg_jax.config.sweep_points import Point
from fedvg_jax.core import hardware as hw
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs import joint_points, loop, simulation, tracked
from fedvg_jax.runs.history import History, Record
from fedvg_jax.runs.sweep_work import (
    Work,
    claim,
    compute_alone,
    log_of,
    on_host,
    reason_of,
    record_failure,
    simulation_of,
    store_result,
)


class Sharing(NamedTuple):
    """How points of one program share it (`--vectorize`)."""

    num_places: int
    """most points side by side; 1 computes them one after another"""
    is_measured: bool = False
    """whether a program is shared only where that is faster, by `joint_points.pays`"""


def sharing(vectorize: str, chosen: hw.Choices | None = None) -> Sharing:
    """Returns how points share programs.

    Args:
        vectorize: "off", "auto" or a number of points; see `sweep_points.check_vectorize`.
        chosen: defaults to the choices for this machine.

    Raises:
        UsageError: for a number of points, where several processes share a run.

    >>> [sharing(value, hw.ACCELERATOR).num_places for value in ("off", "auto", "4")]
    [1, 8, 4]
    """
    is_one_process = chosen is not None or hw.current().num_processes == 1
    if vectorize == "auto":
        return Sharing((chosen or hw.choices()).runs_together if is_one_process else 1, is_measured=True)
    if vectorize != "off" and not is_one_process:
        raise UsageError(f"vectorize {vectorize} in several processes that share a run; use --vectorize off")
    return Sharing(1 if vectorize == "off" else int(vectorize))


class _Candidate(NamedTuple):
    """A point that this process has claimed."""

    point: Point
    sim: simulation.Simulation
    stack: contextlib.ExitStack
    """ends the claim, and closes the run folder"""


class _Dropped(NamedTuple):
    """A point whose joint program failed."""

    point: Point
    reason: str
    """in one line; the error itself would keep arrays on the device"""


def compute_together(work: Work, group: Sequence[Point], share: Sharing) -> list[Point]:
    """Computes points of one program side by side until a signal; returns those that other processes hold.

    Points whose arrays have other shapes than those of the first one follow in a program of their own. Where sharing
    does not pay, the points are computed one after another.

    Raises:
        UsageError: the program needs more memory than there is, and the settings request sharing.
    """
    busy: list[Point] = []
    while group and not work.stops:
        alone, group = _compute_shared(work, group, share, busy)
        if alone and not work.stops:
            busy += compute_alone(work, alone)
    return busy


def _compute_shared(
    work: Work, group: Sequence[Point], share: Sharing, busy: list[Point]
) -> tuple[list[Point], list[Point]]:
    """Computes points in one joint program until all have ended, a signal stops them, or the program fails.

    If the program fails, its points fail where the settings request sharing. Where they do not, they are computed one
    after another.

    Args:
        work: of this process.
        group: points of one program.
        share: how they share it.
        busy: gains points that other processes hold.

    Returns:
        The points to compute one after another, and those that are left for another joint program.
    """
    deferred: list[Point] = []
    dropped: list[_Dropped] = []
    unseen = iter(group)
    num_waves = -(-len(group) // share.num_places)
    num_places = -(-len(group) // num_waves)  # so that the last wave has few empty places
    with contextlib.ExitStack() as claims:
        candidates = _candidates(work, unseen, claims, busy, deferred)
        first = list(itertools.islice(candidates, num_places))
        try:
            joint = _joint_program(work, first, share)
        except UsageError:
            raise
        except Exception as error:
            for point in (candidate.point for candidate in first):
                work.observers.on_start(point)
                store_result(work, point, record_failure(work, point, error, 0))
            return [], [*unseen, *deferred]
        if joint:
            drop = dropped.append if share.is_measured else None
            waiting = (member for c in candidates if (member := _open(work, c, drop)))
            members = [member for candidate in first if (member := _open(work, candidate, drop))]
            members += itertools.islice(waiting, num_places - len(members))
            with hw.single_lapack_thread():
                observers = work.observers
                joint_points.compute(joint, members, waiting, observers.exit_message, work.stops.append, observers.log)
    if joint is None:
        return [*(candidate.point for candidate in first), *unseen], deferred
    if dropped:
        _log_error(work, len(dropped), dropped[0].reason)
        return [*(point for point, _ in dropped), *unseen], deferred
    return [], [*unseen, *deferred]


def _joint_program(work: Work, candidates: Sequence[_Candidate], share: Sharing) -> joint_points.Joint | None:
    """Returns the joint program of these runs; None if there is a single run, or if sharing does not pay.

    Raises:
        UsageError: the program needs more memory than there is, and the settings request sharing.
        Exception: the program cannot be compiled, and the settings request sharing.
    """
    sims = [candidate.sim for candidate in candidates]
    if len(sims) < 2:
        return None
    try:
        joint = joint_points.compile_joint(sims)
        return joint if not share.is_measured or joint_points.pays(joint, sims) else None
    except Exception as error:
        if not share.is_measured:
            raise
        if not isinstance(error, UsageError):
            _log_error(work, len(sims), reason_of(error))
        return None


def _log_error(work: Work, num_points: int, reason: str) -> None:
    work.observers.log(f"{num_points} points side by side: {reason}; they are computed one after another")


def _candidates(
    work: Work, points: Iterator[Point], claims: contextlib.ExitStack, busy: list[Point], deferred: list[Point]
) -> Iterator[_Candidate]:
    """Yields the points that this process can claim, that no process has tried, and that fit the first one.

    Args:
        work: of this process.
        points: in order.
        claims: closes what is left open.
        busy: gains points that other processes hold.
        deferred: gains points that do not fit.
    """
    first = None
    for point in points:
        stack = claims.enter_context(contextlib.ExitStack())
        if not stack.enter_context(claim(work.folder(point))):
            busy.append(point)
        elif not work.is_tried(point):
            try:
                sim = simulation_of(work, point)
            except Exception as error:
                work.observers.on_start(point)
                store_result(work, point, record_failure(work, point, error, 0))
            else:
                first = first or sim
                if joint_points.fits(first, sim):
                    # one copy of the pool on the devices serves all
                    yield _Candidate(point, sim._replace(data=sim.data._replace(pool=first.data.pool)), stack)
                    continue
                deferred.append(point)
        stack.close()


def _open(work: Work, candidate: _Candidate, drop: Callable[[_Dropped], None] | None) -> joint_points.Member | None:
    """Opens the run folder of a point; None if all its rounds are done, or the folder cannot be used.

    Args:
        work: of this process.
        candidate: the point.
        drop: takes the point if the joint program fails; None if the point then fails, too.
    """
    point, sim, stack = candidate
    seconds, records, opened = [0.0, 0.0], [], stack.enter_context(contextlib.ExitStack())
    work.observers.on_start(point)
    log = log_of(work, point)
    tracking = work.observers.track(sim.config, log, sim.given)

    def end(result: History | Exception) -> None:
        is_dropped = drop is not None and isinstance(result, joint_points.ProgramError)
        result = result.error if isinstance(result, joint_points.ProgramError) else result
        tracked.close(tracking, result)
        try:
            opened.close()
        except Exception as error:  # of the last write to the run folder
            result, is_dropped = error, False
        if drop is not None and is_dropped and isinstance(result, Exception):
            drop(_Dropped(point, reason_of(result)))
        elif isinstance(result, Exception):
            store_result(work, point, record_failure(work, point, result, len(records)))
        else:
            store_result(work, point, result if work.out else on_host(result))
        stack.close()

    def on_records(new: list[Record]) -> None:
        work.observers.on_records(point, new)
        tracking.add(new)

    on_resume = functools.partial(work.observers.on_resume, point)
    observers = loop.Observers((), on_records, log, None, lambda name: None, on_resume)
    try:
        recorder = opened.enter_context(loop.open_recorder(sim, log))
        tracking.open()
        finished = loop.finished_before(sim, recorder, observers)
    except Exception as error:
        end(error)
        return None
    if finished:
        end(finished)
        return None
    earlier = recorder.start.seconds
    records.extend(recorder.start.records)

    def read_clock() -> tuple[float, float]:
        return earlier[0] + seconds[0], earlier[1] + seconds[1]

    run = loop.Run(sim, recorder, observers, read_clock, records, [])
    return joint_points.Member(run, recorder.start.state, end, seconds, [])
