"""The plan of a run counts the work that the run does."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from fedvg_jax import config, sim
from fedvg_jax.runs.assemble import simulation
from fedvg_jax.views import display, dry_run

FLAGS = "--rounds 3 --local-epochs 2 --alpha 1 --eval-every 2 --model linear --dry-run"
SETTINGS = config.Config(rounds=3, local_epochs=2, alpha=1.0, eval_every=2, model="linear")


def slowing_clock():
    """A clock under which every call takes longer than the one before, so that a larger sample does."""
    return (number**2 for number in itertools.count()).__next__


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Returns the prediction of a dry run and the folder it ran in."""
    folder, predictions, plan_table = tmp_path_factory.mktemp("plan"), [], display.plan_table
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setattr(display, "plan_table", lambda p: predictions.append(p) or plan_table(p))
        patched.setattr(dry_run.time, "perf_counter", slowing_clock())
        patched.setattr(dry_run, "REPEATS", 1)
        assert sim.main([*FLAGS.split(), "--cache-dir", str(folder / "cache")]) == 0
    return predictions[0], folder


def test_dry_run_writes_only_the_cache(planned):
    assert [path.name for path in planned[1].iterdir()] == ["cache"]


def test_counts_equal_those_of_the_schedules(planned):
    plan, folder = planned
    settings = replace(SETTINGS, cache_dir=folder / "cache")
    made = simulation.simulation(settings)
    parts, rounds = made.partition, [made.schedule(number) for number in range(3)]
    batches = [[-(-len(parts.train[c]) // 32) - (len(parts.train[c]) % 32 == 1) for c in s.clients] for s in rounds]
    assert plan.steps_per_round == pytest.approx(np.mean([2 * sum(b) for b in batches]))
    assert (plan.rounds, plan.evaluations) == (3, 2)


def test_run_takes_its_rounds_and_the_time_between_them(planned):
    plan, _ = planned
    assert 0 < plan.seconds_per_round * 3 <= plan.seconds
    assert plan.compile_seconds > 0
    pixels, model = 1797 * 64, 4 * (64 * 10 + 10)
    assert plan.memory_bytes > pixels + 10 * model, "the images, and the models of a cohort of ten"


@pytest.mark.quick
def test_slope_of_a_line_is_exact_and_samples_at_most_the_whole():
    assert dry_run.slope(lambda n: (n, 0.25 + 0.125 * n), 1000) == 0.125
    sizes = []
    assert dry_run.slope(lambda n: sizes.append(n) or (n, 1e-3 * n), 7) == pytest.approx(1e-3)
    assert sizes[-1] == 7
    assert dry_run.slope(lambda n: (n, 1.0), 1) == 0.0


def test_plan_counts_the_losses_that_a_selection_measures(monkeypatch):
    """Before every round, which is a chunk of its own."""
    monkeypatch.setattr(dry_run, "_measure_rates", lambda *_: dry_run.Rates(1e-3, 0, 0, 10.0, 0))
    settings = replace(SETTINGS, rounds=4, eval_every=4)
    uniform = dry_run.predict(simulation.simulation(settings))
    informed = dry_run.predict(simulation.simulation(replace(settings, selection="power_of_choice")))
    assert informed.seconds_per_round > uniform.seconds_per_round
    assert informed.seconds - 4 * informed.seconds_per_round == pytest.approx(4 * 10)
    assert uniform.seconds - 4 * uniform.seconds_per_round < 4 * 10


def test_plan_of_many_rounds_counts_only_the_first(monkeypatch):
    """4,294,967,295 rounds take as many times a round of the same distribution."""
    monkeypatch.setattr(dry_run.time, "perf_counter", slowing_clock())
    monkeypatch.setattr(dry_run, "REPEATS", 1)
    monkeypatch.setattr(dry_run, "COUNTED", 3)
    many = replace(SETTINGS, rounds=2**32 - 1, departures="cohorts")
    counted = []
    sim_of_many = simulation.simulation(many)
    sim_of_many = sim_of_many._replace(schedule=lambda r, f=sim_of_many.schedule: counted.append(r) or f(r))
    plan = dry_run.predict(sim_of_many)
    assert max(counted) == 2 and plan.evaluations == -(-(2**32 - 1) // 2)
    assert plan.seconds >= plan.seconds_per_round * (2**32 - 1)
