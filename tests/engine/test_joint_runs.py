"""Runs in one program equal the runs alone: every leaf of the state, and all metrics, after each of three rounds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds

from fedvg_jax.config import weighting_grammar
from fedvg_jax.engine import executors, federated_round, joint_runs
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.runs import simulation

QUADRATICS = worlds.uneven(cohort_size=5)
FEDERATIONS = {
    "network": (worlds.small(), worlds.TASK),
    "quadratics": (QUADRATICS._replace(scoring=schedules.table(np.arange(9), 3, 3)), worlds.STATISTIC),
}
"""Both with a running statistic; BatchNorm's compiles for twice as long."""
CHANGES = ({"lr": 0.3, "mu": 0.2}, {"lr": 0.1, "mu": 0.5, "dyn_alpha": 0.1}, {"lr": 0.2, "eps": 1e-2, "eta_g": 0.9})
"""Hyperparameters of each run."""
EXECUTORS = {
    "1 lane": executors.lanes(1),
    "4 lanes": executors.lanes(4),
    "vmapped": executors.vmapped(),
    "2 devices, 2 lanes": executors.sharded(2, 2),
}
NUM_ROUNDS = 3


def data_of(kind, run):
    """The world's data; each run scores other rows."""
    data = FEDERATIONS[kind][0].data()
    return data._replace(
        scoring=jnp.where(jnp.arange(data.scoring.shape[1])[None] < data.scoring.shape[1] - run, data.scoring, -1)
    )


def planned(kind, run, number, executor):
    """The schedule of a round: seeds differ, and a client of the second run drops out."""
    changes = {"probe_ratio": 0.5, "lanes_together": executor.lanes_together, "seed": run}
    schedule = FEDERATIONS[kind][0].schedule(number, executor.num_lanes, **changes)
    return schedule._replace(heard=schedule.heard & ((run != 1) | (np.arange(5) != 2)))


def world_round(kind, executor, algorithm, rule):
    world, task = FEDERATIONS[kind]
    weighting = worlds.weighting(rule, algorithm, task, world.batch_size, granularity="layerwise")
    optimiser, num_clients = worlds.with_momentum, len(world.train)
    return federated_round.make_round(task, algorithm, weighting, executor, optimiser, num_clients)


def start(kind, algorithm, changes):
    world, task = FEDERATIONS[kind]
    return worlds.state(world, algorithm, task, **changes)


def stacked(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@functools.cache
def alone(kind, algorithm, rule, dtype, num_rounds):
    """Results of each run alone, on one lane."""
    executor = executors.lanes(1)
    chunk = worlds.jit(federated_round.make_chunk(world_round(kind, executor, algorithm, rule)))
    results = []
    for run, changes in enumerate(CHANGES):
        rounds = schedules.stack([planned(kind, run, r, executor) for r in range(num_rounds)], num_rounds)
        state = start(kind, algorithm, changes)
        results.append(chunk(state, np.int32(num_rounds), rounds, data_of(kind, run), worlds.hyper(**changes)))
    return jax.tree.map(np.asarray, results)


def together(kind, executor, algorithm, rule, num_rounds, idle=False):
    """Results of the runs in one program, by run; if `idle`, the last run's clients take no step."""
    step = world_round(kind, joint_runs.pooled(executor), algorithm, rule)
    chunk = worlds.jit(federated_round.make_chunk(joint_runs.joint_round(step)))
    plans = [[planned(kind, run, r, executor) for run in range(len(CHANGES))] for r in range(num_rounds)]
    plans = [[*runs[:-1], joint_runs.idle_schedule(runs[-1])] if idle else runs for runs in plans]
    rounds = [joint_runs.join_schedules(runs, executor) for runs in plans]
    data = [data_of(kind, run) for run in range(len(CHANGES))]
    tables = stacked([d._replace(pool=()) for d in data])._replace(pool=data[0].pool)
    state = stacked([start(kind, algorithm, changes) for changes in CHANGES])
    hyper = stacked([worlds.hyper(**changes) for changes in CHANGES])
    rounds = schedules.stack(rounds, num_rounds, capacity=256)
    state, metrics = jax.tree.map(np.asarray, chunk(state, np.int32(num_rounds), rounds, tables, hyper))
    return [
        (jax.tree.map(lambda x: x[run], state), jax.tree.map(lambda x: x[:, run], metrics))  # noqa: B023
        for run in range(len(CHANGES))
    ]


@pytest.mark.parametrize("kind", [pytest.param("network", marks=pytest.mark.slow), "quadratics"])
def test_runs_in_one_program_equal_the_runs_alone(x64, kind):
    """Of a model with a running statistic and an algorithm with every part; runs differ in seed, rates and D_val."""
    algorithm = worlds.full_algorithm()
    expected = alone(kind, algorithm, "samples+fedvg", np.float64, NUM_ROUNDS)
    worlds.assert_close(together(kind, EXECUTORS["4 lanes"], algorithm, "samples+fedvg", NUM_ROUNDS), expected, 1e-9)


@pytest.mark.slow
def test_round_of_runs_in_single_precision_equals_those_alone():
    algorithm = worlds.full_algorithm()
    actual = together("network", EXECUTORS["4 lanes"], algorithm, "samples+fedvg", 1)
    worlds.assert_close(actual, alone("network", algorithm, "samples+fedvg", np.float32, 1), 1e-5)


@pytest.mark.slow
def test_run_whose_clients_take_no_step_changes_neither_its_model_nor_other_runs(x64):
    algorithm = worlds.full_algorithm()
    *others, (idle, _) = together("network", EXECUTORS["1 lane"], algorithm, "samples+fedvg", NUM_ROUNDS, idle=True)
    worlds.assert_close(others, alone("network", algorithm, "samples+fedvg", np.float64, NUM_ROUNDS)[:-1], 1e-9)
    before = start("network", algorithm, CHANGES[-1])
    worlds.assert_close(idle._replace(round=0), before._replace(round=0), 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXECUTORS if name != "4 lanes"])
def test_runs_on_every_executor_equal_the_runs_alone(x64, name):
    algorithm = worlds.full_algorithm()
    expected = alone("network", algorithm, "samples+fedvg", np.float64, NUM_ROUNDS)
    worlds.assert_close(together("network", EXECUTORS[name], algorithm, "samples+fedvg", NUM_ROUNDS), expected, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", simulation.ALGORITHMS)
def test_runs_of_every_algorithm_equal_the_runs_alone(x64, algorithm):
    algorithm = worlds.algorithm(algorithm)
    expected = alone("network", algorithm, "samples+fedvg", np.float64, NUM_ROUNDS)
    worlds.assert_close(
        together("network", EXECUTORS["4 lanes"], algorithm, "samples+fedvg", NUM_ROUNDS), expected, 1e-9
    )


@pytest.mark.slow
@pytest.mark.parametrize("rule", [*weighting_grammar.WEIGHTINGS, "permuted(fedvg)"])
def test_runs_under_every_weighting_equal_the_runs_alone(x64, rule):
    algorithm = worlds.algorithm("fedavg")
    expected = alone("network", algorithm, rule, np.float64, NUM_ROUNDS)
    worlds.assert_close(together("network", EXECUTORS["4 lanes"], algorithm, rule, NUM_ROUNDS), expected, 1e-9)
