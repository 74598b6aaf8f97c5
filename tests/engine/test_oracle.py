"""The engine against the NumPy oracle, for every algorithm, weighting and way of scoring."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from support import oracle, worlds
from support.cases import naming
from support.oracle import Scoring

import fedvg_jax as fv
from fedvg_jax import config
from fedvg_jax.core import groups, norms
from fedvg_jax.core.types import Batch
from fedvg_jax.data.readers import text
from fedvg_jax.engine import executors
from fedvg_jax.models import plain as gru, task as tasks
from fedvg_jax.weightings import basic, signals
from fedvg_jax.weightings.fedvg import NormParts, inverse_norms

WORLD = worlds.small()
ALGORITHMS = [*config.ALGORITHMS, "full_algorithm"]


BY_TENSOR = [
    ("fedvg", Scoring(granularity="layerwise")),
    ("samples+fedvg", Scoring(granularity="blockwise")),
]

USES_WEIGHTS = ("elastic", "fednova", "full_algorithm")
"""The algorithms whose server uses weights; each tensor needs its own. The others use the weighted mean alone."""
MODES = config.SETTINGS["fedvg.mode"].names
WITH_FEDAVG = [
    *(("fedvg", Scoring(norm, "layerwise")) for norm in norms.BY_NAME if norm != "l1"),
    *(
        ("fedvg", Scoring("l1", granularity, mode))
        for granularity in groups.BY_NAME
        for mode in MODES
    ),
    ("uniform", Scoring()),
    ("uniform+samples", Scoring()),
    ("fedvg+uniform", Scoring("l2", "layerwise", "eval")),
]
"""A granularity takes the norms of the tensors as numbers, whichever norm or mode they are of."""


def make(algorithm):
    return worlds.full_algorithm() if algorithm == "full_algorithm" else worlds.algorithm(algorithm)


def menu(rules):
    """All `rules` in one program; a client's gradients are computed once."""
    gradients = {}
    for mode in MODES:
        gradients[mode] = once(signals.validation_gradient(worlds.TASK, mode == "train", 1))

    def of(name, scoring):
        signal = signals.normed(gradients[scoring.mode], norms.BY_NAME[scoring.norm])
        parts = NormParts(signal, groups.BY_NAME[scoring.granularity], worlds.TASK.block_of)
        known = {"samples": basic.samples(), "uniform": basic.uniform()}
        return known.get(name) or inverse_norms(parts)

    def rule_of(names, scoring):
        parts = [of(name, scoring) for name in names.split("+")]
        return parts[0] if len(parts) == 1 else basic.mix(*parts)

    return worlds.any_of([rule_of(*rule) for rule in rules])


def once(signal):
    """Returns `signal` with the result for the last report cached, so that it is traced once."""
    last = []

    def measured(*client):
        if not (last and all(a is b for a, b in zip(last[0], client, strict=True))):
            last[:] = client, signal(*client)
        return last[1]

    return measured


def assert_rounds_agree(name, step, rules, plan):
    """Rounds of an algorithm and of the oracle's agree under each of the rules of `step`.

    Both start from the same state, and each goes on from its own.
    """
    data = WORLD.data()
    start = worlds.state(WORLD, make(name))
    for number, rule in enumerate(rules):
        hyper = worlds.hyper() | {"rule": jnp.int32(number)}
        state = start
        of_oracle = worlds.rounds_of_oracle(WORLD, plan, oracle.ALGORITHMS[name], *rule)
        for schedule, (expected, expected_metrics) in zip(plan, of_oracle, strict=True):
            with naming(rule):
                state, metrics = step(state, schedule, data, hyper)
                params, stats = map(worlds.by_path, state.variables)
                worlds.assert_close((params, stats), (expected.params, expected.stats), 1e-9)
                scores = metrics.detail[str(number)]
                actual = metrics.weights, scores, metrics.train_loss, metrics.finite
                worlds.assert_close(actual, tuple(expected_metrics), 1e-9)


plan_of = functools.partial(worlds.plan_with_dropouts, WORLD, probe_ratio=0.9)
"""Probes of 9, 0, 4, 0, 1, 7 and 2 rows: two batches, one, or none, as a single row is skipped."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_three_rounds_equal_the_oracle_for_every_algorithm(x64, name):
    algorithm = make(name)
    rules = [(algorithm.native_weighting, Scoring()), *(BY_TENSOR if name in USES_WEIGHTS else [])]
    step = worlds.make_round(WORLD, algorithm, menu(rules), worlds.TASK)
    assert_rounds_agree(name, step, rules, plan_of())


def test_three_rounds_equal_the_oracle_for_every_fedvg_score(x64):
    arguments = WORLD, make("fedavg"), menu(WITH_FEDAVG), worlds.TASK
    step = worlds.make_round(*arguments, executor=executors.lanes(1))
    assert_rounds_agree("fedavg", step, WITH_FEDAVG, plan_of(num_lanes=1))


# --- the recurrent network

NUM_CHARACTERS, LENGTH = 3, 4
GRU = tasks.next_character(
    gru.GRU(NUM_CHARACTERS, width=2, hidden=3), NUM_CHARACTERS, LENGTH, groups.first_component
)


def test_gru_equals_its_equations_in_numpy(x64):
    variables = worlds.variables(task=GRU)
    x = np.random.default_rng(5).integers(0, NUM_CHARACTERS, (5, LENGTH), np.int32)
    p = {path: np.asarray(value) for path, value in worlds.by_path(variables.params).items()}
    assert {GRU.block_of(path) for path in p} == {"embed", "gru", "classifier"}
    state = np.zeros((len(x), 3))
    outputs = []
    w = np.split(p["gru/input/kernel"], 3, 1)
    u = np.split(p["gru/recurrent"], 3, 1)
    b = np.split(p["gru/input/bias"], 3)
    for place in range(LENGTH):
        e = p["embed/embedding"][x[:, place]]
        reset, update = (1 / (1 + np.exp(-(e @ w[i] + b[i] + state @ u[i]))) for i in (0, 1))
        candidate = np.tanh(e @ w[2] + b[2] + reset * (state @ u[2] + p["gru/candidate_bias"]))
        state = (1 - update) * candidate + update * state
        outputs.append(state @ p["classifier/kernel"] + p["classifier/bias"])
    predicted = worlds.jit(GRU.predict)(*variables, Batch(x, x))
    np.testing.assert_allclose(predicted, np.stack(outputs, 1), rtol=1e-12, atol=1e-12)


def test_a_run_on_texts_records_accuracy_per_character():
    """Of two short texts with 21 rows each, of which 5 are for test."""
    rng = np.random.default_rng(0)
    texts = {author: "".join(rng.choice(list("abc \n"), 1400)) for author in ("first", "second")}
    config = fv.Config(
        model="gru", partition="group", rounds=1, clients=2, join_ratio=1.0, local_epochs=1,
        weighting="val_accuracy", corrupt={"kind": "label_noise", "clients": 0.5},
        validation={"label_noise": 0.5}, record="client_accuracy, confusion",
    )  # fmt: skip
    record = fv.run(config, data=text.cut(texts, "two")).records[-1]
    confusion, (first, second) = np.array(record["test_confusion"]), record["client_accuracy"]
    assert confusion.shape == (5, 5) and confusion.sum() == 2 * 5 * 64
    assert record["test_accuracy"] == pytest.approx(np.trace(confusion) / confusion.sum())
    assert 0 < min(first, second) < 1
