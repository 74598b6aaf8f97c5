"""The time left of a sweep."""

import io

from rich.console import Console

from fedvg_jax.config import Config
from fedvg_jax.study import sweep_progress
from fedvg_jax.study.sweep_folder import Failure
from fedvg_jax.study.sweep_points import Point


def test_time_left_is_that_of_the_points_left_at_the_pace_of_those_that_ended_here_and_elsewhere(monkeypatch):
    """Eight points, of which one was done before; two end in 100 s, and so the other five in 250 s."""
    now, text = [0.0], io.StringIO()
    monkeypatch.setattr(sweep_progress.time, "perf_counter", lambda: now[0])
    points = [Point(f"seed={i}", {"seed": i}, Config(seed=i, rounds=10)) for i in range(8)]
    console = Console(file=text, width=200)
    with sweep_progress.sweep_progress(console, len(points), 1, lambda point: points[2:3]) as observers:
        observers.on_start(points[1])
        now[0] = 100.0
        observers.on_end(points[1], Failure("diverged", 3, "not finite"))
    assert text.getvalue() == "3/8  seed=1: diverged in round 3 (not finite), about 4 min left\n"
