"""Selections against independent NumPy, their contract, and runs with them."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
from support.small_sweeps import assert_equal_runs

import fedvg_jax as fv
from fedvg_jax.core.types import Population
from fedvg_jax.engine import schedule

CONFIG = fv.Config(
    rounds=4, clients=8, join_ratio=0.25, local_epochs=1, eval_every=2, alpha=1.0, model="linear"
)
POWER = dataclasses.replace(CONFIG, selection="power_of_choice:5")
SIZES = np.array([1, 2, 3, 10])


@functools.cache
def run(config):
    return fv.run(config)


def by_size(round, sizes, count):
    """Returns the clients that the selection by size chooses."""
    rng = schedule.selection_stream(0, round)
    population = Population(round, rng, np.asarray(sizes), count, lambda ids: np.zeros(len(ids)))
    return fv.selection.by_size().choose(population).tolist()


def test_by_size_draws_with_the_probabilities_of_successive_sampling():
    """n_i / N, then n_j / (N - n_i)."""
    trials, total = 20_000, SIZES.sum()
    chosen = [by_size(number, SIZES, 2) for number in range(trials)]
    for i, j in itertools.permutations(range(len(SIZES)), 2):
        probability = SIZES[i] / total * SIZES[j] / (total - SIZES[i])
        deviation = np.sqrt(probability * (1 - probability) / trials)
        assert abs(chosen.count([i, j]) / trials - probability) < 4.5 * deviation


def test_by_size_takes_clients_without_rows_last():
    for number in range(50):
        assert {1, 3} < {*by_size(number, [0, 5, 0, 1], 3)}


def test_a_run_selects_by_the_losses_of_each_rounds_model():
    history = run(POWER)
    sim = fv.simulation(POWER)
    state = sim.state
    sizes = [len(rows) for rows in sim.partition.train]
    predict = jax.jit(sim.task.predict)
    labels = np.asarray(sim.data.pool.y)
    for record in history.records:
        logits = np.asarray(predict(*state.variables, sim.data.pool), np.float64)
        losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]
        means = [-losses[rows].mean() for rows in sim.partition.train]
        round = record["round"] - 1
        candidates = by_size(round, sizes, 5)
        assert record["clients"] == sorted(candidates, key=means.__getitem__)[:2]
        state, _ = sim.step(state, round)
    jax.tree.map(np.testing.assert_array_equal, state.variables, history.variables)


def test_a_resumed_run_selects_as_an_uninterrupted_one(tmp_path):
    fv.run(dataclasses.replace(POWER, rounds=2, out=tmp_path))
    resumed = fv.run(dataclasses.replace(POWER, resume=str(tmp_path)))
    assert_equal_runs(resumed, run(POWER))


def test_candidates_receive_the_model_and_send_a_loss():
    record = run(POWER).records[0]
    sim = fv.simulation(POWER)
    model = sum(leaf.nbytes for leaf in jax.tree.leaves(sim.state.variables))
    assert (record["bytes_down"], record["bytes_up"]) == (5 * model, 2 * model + 5 * 4)


def test_a_function_of_ones_own_selects():
    in_turn = fv.Selection(lambda population: (np.arange(2) + 2 * population.round) % 8)
    records = fv.run(CONFIG, selection=in_turn).records
    assert [record["clients"] for record in records] == [[0, 1], [2, 3], [4, 5], [6, 7]]
