"""The engine against the NumPy oracle, for every algorithm, weighting and way of scoring."""

import contextlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import worlds

from fedvg_jax import config
from fedvg_jax.core import groups, norms
from fedvg_jax.engine import executors, federated_round, local_training
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.runs import simulation
from fedvg_jax.weightings import basic, signals
from fedvg_jax.weightings.fedvg import fedvg

WORLD = worlds.small()
ALGORITHMS = [*simulation.ALGORITHMS, "full_algorithm"]
HEARD = np.array([True, False, True, True, False])


def scoring(norm="l1", granularity="modelwise", mode="train"):
    return oracle.Scoring(norm, granularity, mode)


NATIVE = [("native", scoring())]
BY_TENSOR = [*NATIVE, ("fedvg", scoring(granularity="layerwise")), ("samples+fedvg", scoring(granularity="blockwise"))]
USES_WEIGHTS = ("elastic", "fednova", "full_algorithm")
"""The algorithms whose server uses weights; each tensor needs its own. The others use the weighted mean alone."""
WITH_FEDAVG = [
    *(("fedvg", scoring(*parts)) for parts in itertools.product(norms.BY_NAME, groups.BY_NAME, config.SCORING_MODES)),
    ("uniform", scoring()),
    ("uniform+samples", scoring()),
    ("fedvg+uniform", scoring("l2", "layerwise", "eval")),
]


def make(algorithm):
    return worlds.full_algorithm() if algorithm == "full_algorithm" else worlds.algorithm(algorithm)


def menu(rules, algorithm):
    """All `rules` in one program; what they measure of a client is measured once."""

    def every_norm(x):
        return {name: norm(x) for name, norm in norms.BY_NAME.items()}

    def is_one(node):
        return isinstance(node, dict) and node.keys() == norms.BY_NAME.keys()

    by_mode = {
        mode: once(signals.validation_norms(worlds.TASK, every_norm, mode == "train", 1))
        for mode in {scoring.mode for _, scoring in rules}
    }

    def of(name, scoring):
        def signal(*report):
            measured_norms = by_mode[scoring.mode](*report)
            return jax.tree.map(lambda measured: measured[scoring.norm], measured_norms, is_leaf=is_one)

        by_norm = fedvg(signal, groups.BY_NAME[scoring.granularity], worlds.TASK.block_of)
        return {"samples": basic.samples(), "uniform": basic.uniform(), "fedvg": by_norm}[name]

    def rule_of(names, scoring):
        parts = [of(name, scoring) for name in names.replace("native", algorithm.native_weighting).split("+")]
        return parts[0] if len(parts) == 1 else basic.mix(*parts)

    return worlds.any_of([rule_of(*rule) for rule in rules])


def once(signal):
    """`signal`, traced once however often it is asked of one report."""
    last = []

    def measured(*report):
        if not (last and all(a is b for a, b in zip(last[0], report, strict=True))):
            last[:] = report, signal(*report)
        return last[1]

    return measured


@contextlib.contextmanager
def naming(what):
    try:
        yield
    except AssertionError as error:
        error.add_note(str(what))
        raise


def assert_rounds_agree(algorithm, step, number, rule, plan, tolerance):
    """Both from the same state, each going on from its own."""
    data, hyper = WORLD.data(), worlds.hyper()
    state, plain = worlds.state(WORLD, make(algorithm)), {name: float(value) for name, value in hyper.items()}
    mine = oracle.ALGORITHMS[algorithm]
    expected = oracle.init(mine, plain, *map(worlds.by_path, state.variables), len(WORLD.train))
    for schedule in plan:
        state, metrics = step(state, schedule, data, hyper | {"rule": jnp.int32(number)})
        metrics = metrics._replace(scores=metrics.detail.get(str(number), metrics.scores), detail={})
        expected, expected_metrics = oracle.round_step(
            expected, schedule, WORLD.pool, WORLD.scoring, plain, mine, *rule
        )
        worlds.assert_close(tuple(map(worlds.by_path, state.variables)), (expected.params, expected.stats), tolerance)
        worlds.assert_close(metrics._asdict(), expected_metrics._asdict(), tolerance)


def schedule_of(number, num_lanes=1):
    """Probes of 9, 0, 4, 0, 1, 7 and 2 rows: two batches, one, or none, as a single row is skipped."""
    return WORLD.schedule(number, num_lanes, probe_ratio=0.9)


def round_step(algorithm, rule, num_lanes=1):
    arguments = worlds.TASK, make(algorithm), rule, executors.lanes(num_lanes), local_training.sgd, len(WORLD.train)
    return worlds.jit(federated_round.make_round(*arguments))


def assert_three_rounds_agree(algorithm, rules):
    """In the second, two clients drop out."""
    num_lanes = 2 if algorithm == "full_algorithm" else 1
    step = round_step(algorithm, menu(rules, make(algorithm)), num_lanes)
    plan = [schedule_of(number, num_lanes) for number in range(3)]
    plan[1] = plan[1]._replace(heard=HEARD)
    for number, rule in enumerate(rules):
        with naming(rule):
            assert_rounds_agree(algorithm, step, number, rule, plan, 1e-9)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_three_rounds_equal_the_oracle_for_every_algorithm(x64, algorithm):
    assert_three_rounds_agree(algorithm, BY_TENSOR if algorithm in USES_WEIGHTS else NATIVE)


def test_three_rounds_equal_the_oracle_for_every_fedvg_score(x64):
    assert_three_rounds_agree("fedavg", WITH_FEDAVG)


def test_a_round_in_single_precision_equals_the_oracle():
    step = round_step("fedavg", menu([("samples+fedvg", scoring())], make("fedavg")))
    assert_rounds_agree("fedavg", step, 0, ("samples+fedvg", scoring()), [schedule_of(0)], 1e-5)


@pytest.mark.parametrize("train", [True, False])
def test_the_oracle_s_gradients_equal_finite_differences(train):
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


def test_the_world_has_its_special_cases():
    rng = np.random.default_rng(0)
    steps = [len(schedules.minibatches(rows, WORLD.local_epochs, WORLD.batch_size, rng)) for rows in WORLD.train]
    assert steps == [6, 0, 2, 0, 2, 4, 2]  # 2 epochs of ceil(n / 4), less the last batch if it is a single row
    assert (WORLD.scoring >= 0).sum(1).tolist() == [4, 4, 2, 0]
    probes = {int(c): int(n) for s in map(schedule_of, range(3)) for c, n in zip(s.clients, s.probe_steps, strict=True)}
    assert probes == {0: 2, 1: 0, 2: 1, 3: 0, 4: 0, 5: 2, 6: 1}


def test_feddyn_clips_some_gradients_of_this_world_and_not_others():
    params, stats = map(worlds.by_path, worlds.variables())
    lengths = [
        np.sqrt(sum((g * g).sum() for g in oracle.loss_and_gradients(params, stats, batch, True)[1].values()))
        for batch in oracle.batches(WORLD.pool, schedule_of(0).rows)
    ]
    assert min(lengths) < float(worlds.hyper()["clip"]) < max(lengths)
