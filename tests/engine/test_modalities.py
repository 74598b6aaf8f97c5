"""Sequences of characters through the engine, against the NumPy oracle and a Python loop."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import oracle, worlds

import fedvg_jax as fv
from fedvg_jax.config import MODELS
from fedvg_jax.core import groups
from fedvg_jax.core.types import Batch
from fedvg_jax.engine import evaluate
from fedvg_jax.models import gru
from fedvg_jax.models import task as tasks
from fedvg_jax.models.layers import dense

C, L = worlds.CLASSES, 4


class Bigram(nn.Module):
    """Scores of the next character from the current one alone: an embedding and a dense layer."""

    @nn.compact
    def __call__(self, x, mask, train: bool):
        return dense(nn.Embed(C, 5, name="embed")(x), C, "classifier")


def bigram_logits(params, stats, x, train):
    """The network `Bigram` for the oracle: sequences -> logits of all places [B * L, C], backward passes."""
    characters = x.ravel()

    def embed_backward(dy):
        gradient = np.zeros_like(params["embed/embedding"])
        np.add.at(gradient, characters, dy)
        return None, {"embed/embedding": gradient}

    outputs, classifier = oracle.dense(params, "classifier", params["embed/embedding"][characters])
    return outputs, (embed_backward, classifier), stats


SIZE, RNG = len(worlds.small().pool.y), np.random.default_rng(5)
SEQUENCES = worlds.small()._replace(pool=Batch(*RNG.integers(0, C, (2, SIZE, L), np.int32)))
"""The small world with other rows."""
BIGRAM = tasks.next_character(Bigram(), C, L)


def test_three_rounds_equal_the_oracle(x64, monkeypatch):
    """The layerwise scores include that of the embedding; Elastic also measures outputs at every place."""
    monkeypatch.setattr(oracle, "logits", bigram_logits)
    world, algorithm, mine = SEQUENCES, worlds.algorithm("elastic"), oracle.ALGORITHMS["elastic"]
    rule = worlds.weighting("fedvg", algorithm, BIGRAM, world.batch_size, granularity="layerwise")
    plan = [world.schedule(number, 2, probe_ratio=0.9) for number in range(3)]
    of_oracle = worlds.rounds_of_oracle(world, plan, mine, "fedvg", oracle.Scoring(granularity="layerwise"), BIGRAM)
    played = worlds.play(world, plan, algorithm, rule, BIGRAM)
    for (state, metrics), (expected, expected_metrics) in zip(played, of_oracle, strict=True):
        worlds.assert_close(tuple(map(worlds.by_path, state.variables)), (expected.params, expected.stats), 1e-9)
        worlds.assert_close(metrics.weights, expected_metrics.weights, 1e-9)


def test_metrics_of_sequences_are_those_of_their_characters():
    variables, rows = worlds.variables(task=BIGRAM), np.array([[0, 1, 2, 3], [4, 5, -1, -1]], np.int32)
    pool = jax.tree.map(jnp.asarray, SEQUENCES.pool)
    actual = BIGRAM.metrics(jax.device_get(worlds.jit(evaluate.make_evaluate(BIGRAM))(variables, pool, rows)))
    batch = Batch(pool.x[:6], pool.y[:6])
    logits = np.asarray(worlds.jit(BIGRAM.predict)(*variables, batch), np.float64).reshape(-1, C)
    true, confusion = np.asarray(batch.y).ravel(), np.zeros((C, C), int)
    np.add.at(confusion, (true, logits.argmax(1)), 1)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(6 * L), true]
    expected = tasks.metrics({"loss": losses.sum(), "confusion": confusion.reshape(-1)})
    assert actual == pytest.approx(expected, rel=1e-5)


# --- the recurrent network

GRU = tasks.next_character(gru.GRU(C, width=2, hidden=3), C, L, groups.first_component)


def test_gru_equals_its_equations_in_numpy(x64):
    variables, x = worlds.variables(task=GRU), SEQUENCES.pool.x[:5]
    p = {path: np.asarray(value) for path, value in worlds.by_path(variables.params).items()}
    assert {GRU.block_of(path) for path in p} == {"embed", "gru", "classifier"}
    state, outputs = np.zeros((len(x), 3)), []
    w, u = np.split(p["gru/input/kernel"], 3, 1), np.split(p["gru/recurrent"], 3, 1)
    b = np.split(p["gru/input/bias"], 3)
    for place in range(L):
        e = p["embed/embedding"][x[:, place]]
        reset, update = (1 / (1 + np.exp(-(e @ w[i] + b[i] + state @ u[i]))) for i in (0, 1))
        candidate = np.tanh(e @ w[2] + b[2] + reset * (state @ u[2] + p["gru/candidate_bias"]))
        state = (1 - update) * candidate + update * state
        outputs.append(state @ p["classifier/kernel"] + p["classifier/bias"])
    predicted = worlds.jit(GRU.predict)(*variables, Batch(x, x))
    np.testing.assert_allclose(predicted, np.stack(outputs, 1), rtol=1e-12, atol=1e-12)


def test_a_run_on_texts_records_accuracy_per_character(tmp_path, monkeypatch):
    """Of two short texts with 21 rows each, of which 5 are for test."""
    rng = np.random.default_rng(0)
    for author in ("first", "second"):
        (tmp_path / f"{author}.txt").write_text("".join(rng.choice(list("abc \n"), 1400)), encoding="utf-8")
    small = functools.partial(gru.GRU, width=2, hidden=3)
    monkeypatch.setitem(MODELS, "gru", MODELS["gru"]._replace(make=small))
    settings = {"dataset": "text", "data_dir": tmp_path, "model": "gru", "partition": "group", "rounds": 1}
    settings |= {"clients": 2, "join_ratio": 1.0, "local_epochs": 1, "weighting": "val_accuracy"}
    settings |= {"corrupt": {"kind": "label_noise", "clients": 0.5}, "validation": {"label_noise": 0.5}}
    record = fv.run(fv.Config(**settings, record="client_accuracy, confusion")).records[-1]
    confusion = np.array(record["test_confusion"])
    assert confusion.shape == (5, 5) and confusion.sum() == 2 * 5 * 64
    assert record["test_accuracy"] == pytest.approx(np.trace(confusion) / confusion.sum())
    assert np.array(record["client_accuracy"]).shape == (2,) and 0 < np.min(record["client_accuracy"]) < 1
