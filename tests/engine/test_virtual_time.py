"""Virtual time: durations of clients, synchronous servers that do not wait for all, timelines of buffered servers."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from support import worlds
from support.small_sweeps import assert_equal_runs

import fedvg_jax as fv
from fedvg_jax.engine import schedule, virtual_time
from fedvg_jax.engine.virtual_time import timeline

SMALL = fv.Config(clients=12, rounds=4, local_epochs=1, alpha=1.0, model="linear", eval_every=4)
CLOCKED = dataclasses.replace(
    SMALL, clock={"step": 0.1, "fixed": 5.0, "speeds": "lognormal:1", "upload": 1e5}
)


def test_a_clock_changes_no_result_and_its_rounds_last_as_long_as_their_slowest_client():
    plain = fv.run(SMALL)
    clocked = fv.run(CLOCKED)
    worlds.assert_close(clocked.variables, plain.variables, 0)
    sim = fv.simulation(CLOCKED)
    ends = [record["virtual_seconds"] for record in clocked.records]
    down = sim.traffic.down
    up = sim.traffic.up
    for number, seconds in enumerate(np.diff([0.0, *ends])):
        planned = sim.schedule(number)
        of_client = sim.experiment.cohorts.clock.seconds(
            planned.clients, planned.num_steps, down, up, number, SMALL.seed
        )
        np.testing.assert_allclose(seconds, of_client.max(), rtol=1e-6)


def test_an_infinite_deadline_and_no_overselection_wait_for_all():
    assert_equal_runs(fv.run(CLOCKED), fv.run(dataclasses.replace(CLOCKED, deadline=1e9)))


@given(st.lists(st.integers(0, 5), min_size=4, max_size=9), st.integers(1, 4), st.data())
@settings(max_examples=50, deadline=None)
def test_overselection_is_sorting(seconds, size, data):
    responds = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(seconds), max_size=len(seconds)))
    )
    got = virtual_time.wait(np.array(seconds, float), responds, size)
    present = sorted(np.flatnonzero(responds).tolist(), key=lambda k: (seconds[k], k))
    expected = present[:size]
    assert [k for k in got.taken.tolist() if responds[k]] == sorted(expected)
    assert sorted(got.late.tolist()) == sorted(present[size:])
    assert got.seconds == max((seconds[k] for k in expected), default=0.0)


def test_the_server_averages_the_first_to_arrive_and_counts_the_bytes_of_all_it_asked():
    run = fv.run(dataclasses.replace(CLOCKED, overselect=1.5))
    sim = fv.simulation(CLOCKED)
    for record in run.records:
        asked = {*record["clients"], *record["late"]}
        assert (len(record["clients"]), len(record["late"]), len(asked)) == (6, 3, 9)
        assert record["bytes_down"] == 9 * sim.traffic.down
        assert record["bytes_up"] == 9 * sim.traffic.up
    waiting = fv.run(CLOCKED).records[-1]["virtual_seconds"]
    assert run.records[-1]["virtual_seconds"] < waiting


def test_a_clock_from_python_allows_overselection_which_needs_one():
    """A run without one is refused, see `messages/virtual_time.py`."""
    selective = dataclasses.replace(SMALL, overselect=1.5, rounds=1)
    run = fv.run(selective, clock=fv.Clock(step_seconds=np.arange(1.0, 13.0)))
    assert len(run.records[0]["late"]) == 3


def test_clients_that_miss_the_deadline_have_no_weight_and_no_round_lasts_longer():
    run = fv.run(dataclasses.replace(CLOCKED, deadline=8.0, dropout=0.2))
    ends = np.array([0.0, *(record["virtual_seconds"] for record in run.records)])
    assert (np.diff(ends) > 0).all() and (np.diff(ends) <= 8.0 + 1e-9).all()
    assert any(record.get("late") for record in run.records)
    for record in run.records:
        left_out = [*record.get("late", ()), *record.get("dropped", ())]
        without_weight = np.array(record["clients"])[np.array(record["weights"]) == 0]
        assert sorted(left_out) == sorted(without_weight)


def test_a_resumed_run_continues_its_virtual_time(tmp_path):
    selective = dataclasses.replace(CLOCKED, overselect=1.5, keep=1, eval_every=2)
    whole = fv.run(selective)
    fv.run(dataclasses.replace(selective, rounds=2, out=tmp_path))
    resumed = fv.run(dataclasses.replace(selective, resume=str(tmp_path)))
    assert_equal_runs(resumed, whole)


@pytest.mark.parametrize(
    "options",
    [
        {"local_epochs": (1, 4), "batch_size": 3},
        {"local_epochs": (2, 2), "batch_size": 2, "keep_single": True},
        {"local_epochs": (3, 3), "batch_size": 4, "single_batches": True},
        {"local_epochs": (1, 1), "batch_size": 2, "probe_ratio": 0.4, "probe_apart": True},
    ],
    ids=str,
)
def test_steps_that_the_clock_counts_are_those_of_the_schedule(options):
    rows = np.split(np.arange(60), np.cumsum([0, 1, 7, 13, 4, 20]))
    planned = schedule.make(3, rows, seed=1, cohort_size=6, num_lanes=1, **options)
    sizes = np.array([len(each) for each in rows])
    counted = schedule.num_local_steps(3, planned.clients.tolist(), sizes, seed=1, **options)
    assert counted.tolist() == planned.num_steps.tolist()


def test_halfnormal_and_lognormal_factors_have_the_median_one():
    for kind, parameters in (("halfnormal", ()), ("lognormal", (1.0,))):
        drawn = virtual_time.factors(kind, parameters, 20_001, 0)
        assert abs(np.median(drawn) - 1) < 0.03 and drawn.std() > 0.5


def test_a_table_has_the_durations_of_clients(tmp_path):
    table = tmp_path / "clock.csv"
    table.write_text("client,step_seconds,upload,download\n1,0.5,100,\n0,0.25,,200\n")
    config = fv.Config(clients=2, join_ratio=1.0, alpha=10.0, clock={"file": table})
    made = fv.simulation(config).experiment.cohorts.clock
    assert made.seconds([0, 1], [4, 4], 400, 100, 0, 0).tolist() == [3.0, 3.0]


# --- the timeline of a buffered server


APPFL = (
    [1.183976, 0.926249, 1.947283, 1.1606, 0.635277, 1.485617, 3.734003],
    [
        (1.1606, [4, 1, 3], [0, 0, 0]),
        (1.485617, [0, 4, 5], [1, 1, 1]),
        (1.947283, [1, 4, 2], [2, 1, 2]),
        (2.541108, [3, 0, 4], [2, 2, 1]),
        (3.176385, [1, 5, 4], [2, 2, 0]),
    ],
)
"""Durations, and updates (virtual seconds, clients, staleness) of a buffer of 3 with all clients in flight, of APPFL
1.12.0's `vsim.AsyncSimDriver`."""


def test_the_timeline_is_that_of_another_simulator():
    durations, updates = APPFL
    made = timeline(durations, concurrency=7, buffer=3, updates=len(updates))
    for number, (seconds, clients, staleness) in enumerate(updates):
        assert made.virtual_seconds[number] == pytest.approx(seconds, abs=1e-9)
        assert made.clients[number].tolist() == clients
        assert made.staleness[number].tolist() == staleness


@pytest.mark.parametrize(("concurrency", "buffer"), [(20, 10), (50, 10), (50, 1)])
@pytest.mark.parametrize("kind", ["lognormal", "halfnormal"])
def test_mean_staleness_obeys_littles_law(concurrency, buffer, kind):
    """In the steady state (M - 1) / B clients have started before and arrive after an update, for any speeds."""
    durations = virtual_time.factors(kind, (1.0,), 100, 0)
    made = timeline(durations, concurrency=concurrency, buffer=buffer, updates=4000)
    staleness = made.staleness[500:].mean(1)
    error = staleness.std() / np.sqrt(len(staleness) / (2 * concurrency / buffer))
    assert abs(staleness.mean() - (concurrency - 1) / buffer) < 4 * error


def test_no_client_trains_twice_at_a_time_and_time_never_runs_backwards():
    durations = virtual_time.factors("lognormal", (1.0,), 30, 1)
    made = timeline(durations, concurrency=8, buffer=3, updates=500, seed=2)
    assert (np.diff(made.virtual_seconds) >= 0).all()
    trainings = set(zip(made.clients.ravel().tolist(), made.training.ravel().tolist(), strict=True))
    assert len(trainings) == made.clients.size, "every training arrives once"
