"""Selections against independent NumPy, their contract, and runs with them."""

import dataclasses

import numpy as np
import pytest

import fedvg_jax as fv
from fedvg_jax.engine import schedule

CONFIG = fv.Config(rounds=4, clients=8, join_ratio=0.25, local_epochs=1, eval_every=2, alpha=1.0)
BY_SIZE = dataclasses.replace(CONFIG, selection="size")
SIZES = np.array([1, 2, 3, 10])


def population(round, sizes, count, seed=0):
    return fv.Population(round, schedule.selection_stream(seed, round), np.asarray(sizes), count)


def cohorts(history):
    return [record["clients"] for record in history.records]


def without_times(records):
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


def successive_sampling(sizes, count):
    """Probability of every ordered draw: n_i / N, then n_j / (N - n_i), and so on."""

    def extend(draw, probability):
        if len(draw) == count:
            yield draw, probability
            return
        left = [i for i in range(len(sizes)) if i not in draw]
        for i in left:
            yield from extend((*draw, i), probability * sizes[i] / sum(sizes[j] for j in left))

    return dict(extend((), 1.0))


def test_by_size_draws_with_the_probabilities_of_successive_sampling():
    expected, trials = successive_sampling(SIZES, 2), 20_000
    chosen = [tuple(fv.selection.by_size(population(r, SIZES, 2)).tolist()) for r in range(trials)]
    for draw, probability in expected.items():
        deviation = np.sqrt(probability * (1 - probability) / trials)
        assert abs(chosen.count(draw) / trials - probability) < 4.5 * deviation


def test_by_size_takes_clients_without_rows_last():
    draws = [set(fv.selection.by_size(population(r, [0, 5, 0, 1], 3)).tolist()) for r in range(50)]
    assert all({1, 3} < draw for draw in draws)


def test_a_run_selects_by_size_from_the_stream_of_its_seed_and_round():
    sim = fv.simulation(dataclasses.replace(BY_SIZE, seed=3))
    sizes = [len(rows) for rows in sim.partition.train]
    for number in range(3):
        expected = fv.selection.by_size(population(number, sizes, 2, seed=3))
        assert sim.schedule(number).clients.tolist() == expected.tolist()


def test_a_resumed_run_selects_as_an_uninterrupted_one(tmp_path):
    fv.run(dataclasses.replace(BY_SIZE, rounds=2, out=tmp_path / "run"))
    resumed = fv.run(dataclasses.replace(BY_SIZE, out=tmp_path / "run", resume=str(tmp_path / "run")))
    assert without_times(resumed.records) == without_times(fv.run(BY_SIZE).records)


def test_a_function_of_ones_own_selects():
    history = fv.run(CONFIG, selection=lambda population: (np.arange(2) + 2 * population.round) % 8)
    assert cohorts(history) == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("ids", [[0, 0], [0], [0, 8], [0.0, 1.0]])
def test_a_wrong_cohort_is_refused(ids):
    with pytest.raises(fv.UsageError, match="must return 2 different clients from 0 to 7; got"):
        fv.run(CONFIG, selection=lambda population: np.array(ids))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cohorts": "official"}, "use cohorts seeded"),
    ],
)
def test_settings_that_a_selection_cannot_work_with_are_refused(changes, message):
    with pytest.raises(fv.UsageError, match=message):
        fv.simulation(dataclasses.replace(BY_SIZE, **changes))


def test_a_selection_must_be_a_function_of_a_population():
    with pytest.raises(fv.UsageError, match=r"selection .*population"):
        fv.run(CONFIG, selection="size")  # pyright: ignore[reportArgumentType]
