"""The time left of a sweep."""

import pytest

from fedvg_jax.config import Config
from fedvg_jax.study import sweep_progress
from fedvg_jax.study.sweep_points import Point


@pytest.fixture
def clock(monkeypatch):
    """(clock, function that sets its seconds): eight points of ten rounds, none of them done."""
    now = [0.0]
    monkeypatch.setattr(sweep_progress.time, "perf_counter", lambda: now[0])
    points = [Point(f"seed={i}", {"seed": i}, Config(seed=i, rounds=10)) for i in range(8)]
    return sweep_progress.Clock(points, 0), points, lambda seconds: now.__setitem__(0, seconds)


def test_time_left_is_that_of_the_rounds_left_at_the_pace_of_those_done(clock):
    counter, points, set_time = clock
    assert counter.left() == "time left unknown"
    set_time(10.0)
    counter.count(points[0], 5)
    assert counter.left() == "about 2 min left"  # 75 rounds of 2 s
    set_time(20.0)
    counter.count(points[0], 10)
    counter.end_point(points[0])
    assert counter.left() == "about 2 min left"  # 70 rounds of 2 s


def test_points_of_another_process_speed_up_the_sweep(clock):
    """Two processes that each take 10 s for a point finish the other six in 30 s."""
    counter, points, set_time = clock
    set_time(10.0)
    counter.count(points[0], 10)
    counter.end_point(points[0])
    counter.end_others([points[1]])
    assert counter.points_done == 2 and counter.left() == "about 30 s left"


def test_rounds_of_earlier_processes_are_neither_left_nor_computed(clock):
    """At 10 s a round, one round of the first point and 70 of seven others take 710 s."""
    counter, points, set_time = clock
    counter.start_point(points[0], 8)
    counter.count(points[0], 8)
    assert counter.left() == "time left unknown"
    set_time(10.0)
    counter.count(points[0], 9)
    assert counter.left() == "about 12 min left"


def test_rounds_that_a_point_did_not_need_are_not_left(clock):
    counter, points, set_time = clock
    set_time(5.0)
    counter.count(points[0], 5)
    counter.end_point(points[0])  # it diverged
    assert counter.left() == "about 70 s left"
