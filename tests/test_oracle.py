"""The engine against the NumPy oracle, for every algorithm, weighting and way of scoring."""

import itertools
from dataclasses import replace

import jax
import numpy as np
import oracle
import pytest
import worlds

from fedvg_jax import build, config, executors, groups, local, norms, round
from fedvg_jax import schedule as schedules

ROUNDS = 3
LANES = 2
SETTINGS = replace(config.Config(), batch_size=4)
WORLD = worlds.small()

ALGORITHMS = {**build.ALGORITHMS, "busybody": worlds.busybody}
NORMS = list(norms.BY_NAME)
SCORING = [  # every granularity with every mode, and each of both with every norm
    config.FedVG(NORMS[(i + j) % len(NORMS)], granularity, mode=mode)
    for (i, granularity), (j, mode) in itertools.product(enumerate(groups.BY_NAME), enumerate(config.SCORING_MODES))
]
CASES = [
    *((algorithm, name, SCORING[0]) for algorithm in ALGORITHMS for name in config.WEIGHTINGS),
    *(("fedavg", "fedvg", scoring) for scoring in SCORING[1:]),
    ("fedavg", "samples+fedvg", SCORING[-1]),
]


def name_of(part):
    return part if isinstance(part, str) else f"{part.norm}-{part.granularity}-{part.mode}"


def compiled(algorithm, weighting, scoring):
    rule = build.make_weighting(replace(SETTINGS, weighting=weighting, fedvg=scoring), worlds.TASK)
    executor = executors.lanes(LANES)
    return jax.jit(round.make_round(worlds.TASK, ALGORITHMS[algorithm](), rule, executor, local.sgd, len(WORLD.train)))


def assert_rounds_agree(algorithm, weighting, scoring, num_rounds, tolerance):
    """Both from the same state, each going on from its own."""
    step, data, hyper = compiled(algorithm, weighting, scoring), WORLD.data(), worlds.hyper()
    state = worlds.state(WORLD, ALGORITHMS[algorithm]())
    settings = oracle.Scoring(scoring.norm, scoring.granularity, scoring.mode, float(hyper["eps"]))
    expected = oracle.init(oracle.ALGORITHMS[algorithm], *map(worlds.by_path, state.variables), len(WORLD.train))
    for number in range(num_rounds):
        schedule = WORLD.schedule(number, LANES)
        state, told = step(state, schedule, data, hyper)
        expected, expected_told = oracle.round_step(
            expected, schedule, WORLD.pool, WORLD.scoring, {name: float(value) for name, value in hyper.items()},
            oracle.ALGORITHMS[algorithm], weighting, settings,
        )  # fmt: skip
        worlds.assert_close(tuple(map(worlds.by_path, state.variables)), (expected.params, expected.stats), tolerance)
        worlds.assert_close(told._asdict(), expected_told._asdict(), tolerance)


@pytest.mark.parametrize(("algorithm", "weighting", "scoring"), CASES, ids=name_of)
def test_three_rounds_equal_the_oracle(x64, algorithm, weighting, scoring):
    assert_rounds_agree(algorithm, weighting, scoring, ROUNDS, 1e-9)


def test_a_round_in_single_precision_equals_the_oracle():
    assert_rounds_agree("fedavg", "samples+fedvg", config.FedVG(), 1, 1e-5)


@pytest.mark.parametrize("train", [True, False])
def test_the_oracle_s_gradients_are_the_slopes_of_its_loss(train):
    """(loss(p + h d) - loss(p - h d)) / 2h = slope + O(h^2), and rounding leaves 1e-16 / h."""
    params, stats = map(worlds.by_path, worlds.variables())
    batch, h = tuple(part[:7] for part in WORLD.pool), 1e-5
    rng = np.random.default_rng(0)
    direction = {path: rng.normal(size=p.shape) for path, p in params.items()}

    def loss(distance):
        moved = {path: params[path] + distance * direction[path] for path in params}
        return oracle.loss_and_gradients(moved, stats, batch, train)[0]

    gradients = oracle.loss_and_gradients(params, stats, batch, train)[1]
    slope = sum((gradients[path] * direction[path]).sum() for path in params)
    np.testing.assert_allclose((loss(h) - loss(-h)) / (2 * h), slope, rtol=0, atol=1e-8)


def test_the_world_has_the_corners_it_is_there_for():
    rng = np.random.default_rng(0)
    steps = [len(schedules.minibatches(rows, WORLD.local_epochs, WORLD.batch_size, rng)) for rows in WORLD.train]
    assert steps == [6, 0, 2, 0, 2, 4, 2]  # 2 epochs of ceil(n / 4), less the last batch if it is a single row
    assert (WORLD.scoring >= 0).sum(1).tolist() == [4, 4, 2, 0]
