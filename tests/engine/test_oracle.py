"""The engine against the NumPy oracle, for every algorithm, weighting and way of scoring."""

import functools

import jax
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
RULES = [("samples", Scoring()), ("uniform", Scoring()), *BY_TENSOR]
"""Two of them are those of the algorithms' own papers."""
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
    """All `rules` in one program; what they measure of a client is measured once."""

    def every_norm(x):
        return {name: norm(x) for name, norm in norms.BY_NAME.items()}

    def is_one(node):
        return isinstance(node, dict) and node.keys() == norms.BY_NAME.keys()

    by_mode = {}
    for _, scoring in rules:
        if scoring.mode not in by_mode:
            gradient = signals.validation_gradient(worlds.TASK, scoring.mode == "train", 1)
            by_mode[scoring.mode] = once(signals.normed(gradient, every_norm))

    def of(name, scoring):
        def signal(*client):
            measured_norms = by_mode[scoring.mode](*client)
            return jax.tree.map(
                lambda measured: measured[scoring.norm], measured_norms, is_leaf=is_one
            )

        by_norm = inverse_norms(
            NormParts(signal, groups.BY_NAME[scoring.granularity], worlds.TASK.block_of)
        )
        return {"samples": basic.samples(), "uniform": basic.uniform(), "fedvg": by_norm}[name]

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


def assert_rounds_agree(name, step, start, chosen, rule, plan, tolerance):
    """Both from the same state, each going on from its own.

    Args:
        name: of the oracle's algorithm.
        step: of any algorithms and rules.
        start: the state before the first round.
        chosen: numbers of the algorithm and of the rule in `step`, as hyperparameters.
        rule: of the oracle.
        plan: schedules.
        tolerance: of every entry.
    """
    data, hyper, state = WORLD.data(), worlds.hyper(), start
    hyper |= {key: jnp.int32(value) for key, value in chosen.items()}
    of_oracle = worlds.rounds_of_oracle(WORLD, plan, oracle.ALGORITHMS[name], *rule)
    for schedule, (expected, expected_metrics) in zip(plan, of_oracle, strict=True):
        state, metrics = step(state, schedule, data, hyper)
        metrics = metrics._replace(scores=metrics.detail.get(str(chosen["rule"]), metrics.scores))
        worlds.assert_close(
            tuple(map(worlds.by_path, state.variables)),
            (expected.params, expected.stats),
            tolerance,
        )
        actual = {name: getattr(metrics, name) for name in expected_metrics._fields}
        worlds.assert_close(actual, expected_metrics._asdict(), tolerance)


plan_of = functools.partial(worlds.plan_with_dropouts, WORLD, probe_ratio=0.9)
"""Probes of 9, 0, 4, 0, 1, 7 and 2 rows: two batches, one, or none, as a single row is skipped."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_three_rounds_equal_the_oracle_for_every_algorithm(x64, name):
    algorithm = make(name)
    rules = [(algorithm.native_weighting, Scoring()), *(BY_TENSOR if name in USES_WEIGHTS else [])]
    step = worlds.make_round(WORLD, algorithm, menu(rules), worlds.TASK)
    start = worlds.state(WORLD, algorithm)
    for number, rule in enumerate(rules):
        with naming(rule):
            assert_rounds_agree(name, step, start, {"rule": number}, rule, plan_of(), 1e-9)


def test_three_rounds_equal_the_oracle_for_every_fedvg_score(x64):
    fedavg = make("fedavg")
    step = worlds.make_round(
        WORLD, fedavg, menu(WITH_FEDAVG), worlds.TASK, executor=executors.lanes(1)
    )
    start = worlds.state(WORLD, fedavg)
    for number, rule in enumerate(WITH_FEDAVG):
        with naming(rule):
            assert_rounds_agree(
                "fedavg", step, start, {"rule": number}, rule, plan_of(num_lanes=1), 1e-9
            )


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
    state, outputs = np.zeros((len(x), 3)), []
    w, u = np.split(p["gru/input/kernel"], 3, 1), np.split(p["gru/recurrent"], 3, 1)
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
    settings = {"model": "gru", "partition": "group", "rounds": 1}
    settings |= {"clients": 2, "join_ratio": 1.0, "local_epochs": 1, "weighting": "val_accuracy"}
    settings |= {
        "corrupt": {"kind": "label_noise", "clients": 0.5},
        "validation": {"label_noise": 0.5},
    }
    config = fv.Config(**settings, record="client_accuracy, confusion")
    record = fv.run(config, data=text.cut(texts, "two")).records[-1]
    confusion = np.array(record["test_confusion"])
    assert confusion.shape == (5, 5) and confusion.sum() == 2 * 5 * 64
    assert record["test_accuracy"] == pytest.approx(np.trace(confusion) / confusion.sum())
    assert (
        np.array(record["client_accuracy"]).shape == (2,)
        and 0 < np.min(record["client_accuracy"]) < 1
    )
