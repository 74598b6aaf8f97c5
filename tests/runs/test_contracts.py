"""Errors in a user's own model, weighting or metric are reported in one line that names the leaf and the shape."""

import json
from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import programs
import pytest
import worlds

import fedvg_jax
from fedvg_jax.core import checks
from fedvg_jax.core.types import Metrics, UsageError, Variables
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.runs import chunks, contracts, simulation
from fedvg_jax.runs.record import history
from fedvg_jax.weightings import basic

WORLD = worlds.small()
TASK = worlds.TASK
DATA = worlds.uneven().data()
"""The clients' rows of `worlds.QUADRATIC`, the model of two tensors that weightings are checked on."""


@pytest.fixture
def small():
    """Arguments of a run on random images with a small network."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (200, *worlds.IMAGE), np.uint8), rng.integers(0, worlds.CLASSES, 200, np.int32)
    return {"data": (x, y), "task": TASK}


def check_weighting(rule):
    with jax.default_prng_impl("rbg"):  # compiles in half the time
        contracts.check_weighting(rule, worlds.QUADRATIC, DATA, worlds.hyper())


def integers(key):
    model = TASK.init(key)
    params = model.params | {"fc1": model.params["fc1"] | {"bias": jnp.zeros(5, jnp.int32)}}
    return model._replace(params=params)


MODELS = {
    "no floats": ({"init": integers}, "task.init: params leaf 'fc1/bias' is int32 of shape (5,); expected floats"),
    "a plain dict": (
        {"init": lambda key: TASK.init(key).params},
        "returned dict; expected fedvg_jax.core.types.Variables",
    ),
    "nothing": ({"init": lambda key: Variables({}, {})}, "params without a leaf"),
    "a loss per row": (
        {"loss": lambda params, stats, batch, mask, train: (mask.astype(float), stats)},
        "a loss float32 of shape (7,); expected one float, of shape ()",
    ),
    "statistics of another dtype": (
        {"loss": lambda *args: (TASK.loss(*args)[0], jax.tree.map(jnp.bfloat16, TASK.loss(*args)[1]))},
        "task.loss: stats leaf 'bn1/mean' is bfloat16; expected float32, as task.init's stats",
    ),
    "no pair": ({"loss": lambda *args: TASK.loss(*args)[0]}, "expected the pair (loss, stats)"),
    "other statistics": (
        {"loss": lambda *args: (TASK.loss(*args)[0], {})},
        "task.loss: stats has no leaf 'bn1/mean'; expected the structure of task.init's stats",
    ),
    "a row less": (
        {"predict": lambda *args: TASK.predict(*args)[:2]},
        "task.predict: output has shape (2, 3); expected (7, ...), for 7 rows of the batch",
    ),
}


@pytest.mark.parametrize("mistake", MODELS)
def test_an_error_in_a_model_is_reported(mistake):
    changes, message = MODELS[mistake]
    with pytest.raises(UsageError) as error:
        contracts.check_task(TASK._replace(**changes), WORLD.data().pool)
    assert message in str(error.value) and "\n" not in str(error.value)


def by(weigh=None, **changes):
    rule = basic.uniform()
    return rule._replace(**({"weigh": weigh} if weigh else {}), **changes)


def everywhere(weights_of):
    return by(lambda hyper, ones, returns: basic.broadcast_weights(weights_of(ones), returns))


RULES = {
    "a sum of 3": (everywhere(lambda ones: ones), "leaf 'params/left/x' of shape (3,) sums to 3; expected 1"),
    "negative": (everywhere(lambda ones: ones.at[0].set(-1)), "leaf 'params/left/x' is [-1.  1.  1.]"),
    "nan": (everywhere(lambda ones: ones / 0), "leaf 'params/left/x' is [inf inf inf]; expected (3,) numbers"),
    "two clients": (everywhere(lambda ones: ones[:2] / 2), "has shape (2,); expected (3,), from K = 3 clients"),
    "integers": (everywhere(lambda ones: jnp.array([1, 0, 0])), "'params/left/x' is int32 of shape (3,)"),
    "params only": (
        by(lambda hyper, ones, returns: basic.broadcast_weights(ones / 3, returns).params),
        "has no leaf 'params/left/x'; expected the structure of the model's variables",
    ),
    "one score": (by(score=lambda ones: ones.sum()), "weighting.score has shape (); expected (3,), one number per"),
    "a detail": (by(detail=lambda ones: {"own": ones[:2]}), "weighting.detail leaf 'own' has shape (2,); expected (3"),
    "one detail": (
        by(detail=lambda ones: {"own": ones.sum()}),
        "weighting.detail leaf 'own' has shape (); expected (3",
    ),
    "a list of details": (by(detail=lambda ones: [ones]), "weighting.detail must return a dict of arrays, name -> ["),
    "nested details": (by(detail=lambda ones: {"own": {"a": ones}}), "weighting.detail must return a dict of arrays"),
    "a detail of the history's": (by(detail=lambda ones: {"weights": ones}), "'weights' would hide the history's own"),
    "a metric's detail": (by(detail=lambda ones: {"test_loss": ones}), "'test_loss' would hide the history's own"),
    "a negative number": (
        basic.by_scalar(lambda *_: -0.83),
        "weighting.weigh: weights leaf 'params/left/x' is [-0.333 -0.333 -0.333]; expected (3,) numbers >= 0",
    ),
    "no number": (
        basic.by_scalar(lambda *_: None),
        "weighting.signal: by_scalar got NoneType; expected one number, of",
    ),
    "two numbers": (
        basic.by_scalar(lambda *_: jnp.ones(2)),
        "weighting.signal: by_scalar got shape (2,); expected one",
    ),
    "two arguments": (
        by(lambda hyper, ones: ones),
        "weighting.weigh takes (hyper, ones); it is called with (hyper, si",
    ),
    "NumPy": (
        everywhere(np.asarray),
        "weighting.weigh failed: its arguments are traced, without val",
    ),
    "undeclared": (
        by(lambda hyper, ones, returns: hyper["tempo"]),
        "weighting.weigh failed: there is no 'tempo'; hyper has ",
    ),
}


@pytest.mark.parametrize("mistake", RULES)
def test_an_error_in_a_weighting_is_reported(mistake):
    rule, message = RULES[mistake]
    with pytest.raises(UsageError) as error:
        check_weighting(rule)
    assert message in str(error.value) and "\n" not in str(error.value)


FACTORIES = {
    "without parentheses": (basic.uniform, "weighting takes (); it is called with (task); did you mean uniform()?"),
    "two arguments": (lambda task, data: None, "weighting takes (task, data); it is called with (task); give a Weig"),
    "an error": (lambda task: {}["loss"], "weighting(task) failed: KeyError: 'loss'"),
}


@pytest.mark.parametrize("mistake", FACTORIES)
def test_an_error_in_a_function_that_makes_a_weighting_is_reported(mistake):
    factory, message = FACTORIES[mistake]
    with pytest.raises(UsageError) as error:
        contracts.weighting_of(factory, TASK)
    assert message in str(error.value)


def test_an_algorithm_without_its_parentheses_is_named():
    with pytest.raises(UsageError, match=r"got a function; did you mean fedavg\(\)\?"):
        contracts.check_kinds(None, fedvg_jax.algorithms.fedavg, None)


DETAILS = {
    "[K]": lambda ones: jnp.array([1.5, 2.5, 3.5]),
    "[K, 2]": lambda ones: ones[:, None] * jnp.ones((1, 2)),
    "[K, 2, 2]": lambda ones: ones[:, None, None] * jnp.ones((1, 2, 2)),
    "[K, 0]": lambda ones: ones[:, None] * jnp.ones((1, 0)),
    "integers": lambda ones: jnp.arange(3),
    "booleans": lambda ones: ones > 0,
    "not finite": lambda ones: ones / 0,
}


@pytest.mark.parametrize("shape", DETAILS)
def test_a_detail_of_any_rank_passes_and_is_recorded_as_nested_lists(shape):
    rule = by(detail=lambda ones: {"own": DETAILS[shape](ones)})
    check_weighting(rule)
    value = np.asarray(DETAILS[shape](jnp.ones(3)))
    metrics = Metrics(*3 * [np.ones(3)], np.ones(3, bool), {"own": value})
    schedule = schedules.pack(np.arange(3), [np.zeros((1, 1), int)] * 3, [1] * 3, num_lanes=1, capacity=3)
    actual = json.loads(json.dumps(history.record(1, schedule, metrics, 0.0)))["own"]
    assert actual == (3 * [None] if shape == "not finite" else value.tolist())


def test_a_run_records_a_detail_of_one_number_per_client(tmp_path, small, monkeypatch):
    """In its first chunk of one round and in a second of more; `trace_only` returns ones."""
    monkeypatch.setattr(chunks, "compile_programs", programs.trace_only)
    monkeypatch.setattr(contracts, "refuse_wrong_weights", lambda records: None)
    rule = by(detail=lambda ones: {"own": jnp.arange(len(ones), dtype=jnp.float32)})
    settings = fedvg_jax.Config(clients=4, join_ratio=1.0, rounds=3, local_epochs=1, cache_dir=tmp_path, lanes="1")
    with jax.default_prng_impl("rbg"):
        records = fedvg_jax.run(replace(settings, alpha=10.0, batch_size=8), weighting=rule, **small).records
    assert [record["own"] for record in records] == 3 * [[1, 1, 1, 1]]


def test_a_correct_task_and_weighting_pass():
    rule = worlds.weighting("samples+generalised", worlds.algorithm("fedavg"))
    contracts.check_task(TASK, WORLD.data().pool)
    check_weighting(rule)


def test_a_run_checks_its_weighting_before_compiling(monkeypatch, small):
    monkeypatch.setattr(chunks, "compile_programs", lambda sim: pytest.fail("too late"))
    with pytest.raises(UsageError, match="sums to 3; expected 1"):
        fedvg_jax.run(fedvg_jax.Config(clients=4, alpha=10.0), weighting=RULES["a sum of 3"][0], **small)
    with pytest.raises(UsageError, match="'fc1/bias' is int32"):
        fedvg_jax.run(fedvg_jax.Config(clients=4, alpha=10.0), **small | {"task": TASK._replace(init=integers)})


def test_too_few_outputs_for_the_classes_are_named_beside_the_divergence():
    """Optax's loss of a class without an output is NaN."""
    x, y = np.ones((40, 3), np.float32), np.arange(40) % 4
    task = fedvg_jax.linen_task(nn.Dense(2), optax.softmax_cross_entropy_with_integer_labels, x[:1])
    settings = fedvg_jax.Config(clients=4, rounds=1, local_epochs=1, alpha=10.0, min_samples=2, batch_size=8)
    with pytest.raises(fedvg_jax.DivergedError, match=r"labels reach 3 and the model has 2 outputs: .* give it 4$"):
        fedvg_jax.run(settings, data=(x, y), task=task)


def test_too_few_outputs_of_a_loss_that_clamps_labels_draw_a_warning(caplog):
    """Indices of jax are clamped, so the third class is trained as the second."""
    x, y = np.ones((40, 3), np.float32), np.arange(40) % 3
    task = fedvg_jax.linen_task(nn.Dense(2), lambda logits, y: -jax.nn.log_softmax(logits)[y], x[:1])
    settings = fedvg_jax.Config(clients=4, rounds=1, local_epochs=1, alpha=10.0, min_samples=2, batch_size=8)
    fedvg_jax.run(settings, data=(x, y), task=task)
    assert "labels reach 2 and the model has 2 outputs: if these are classes, give it 3" in caplog.text


def test_one_client_a_round_draws_a_warning(small, caplog):
    settings = fedvg_jax.Config(clients=4, join_ratio=0.25, rounds=1, local_epochs=1, alpha=10.0, batch_size=8)
    fedvg_jax.run(settings, **small)
    assert "one client a round: every weighting gives it the weight 1" in caplog.text


def right_for_three(weigh_others):
    """Uniform weights for three clients, as in the trial, and others for larger cohorts."""

    def weigh(hyper, ones, returns):
        weights = basic.broadcast_weights(basic.shares(ones, returns.present), returns)
        return weights if len(ones) == 3 else weigh_others(weights)

    return basic.uniform()._replace(weigh=weigh, terms=())


def doubled_in_one_tensor(weights):
    first, *others = jax.tree.leaves(weights)
    return jax.tree.unflatten(jax.tree.structure(weights), [2 * first, *others])


def small_clients(hyper, report, data):
    """Negative for clients of over three rows; the trial's have one to three."""
    return 3.5 - report.num_samples.astype(jnp.float32)


WRONG_FOR_OTHERS = {
    "thirds": (
        right_for_three(lambda weights: jax.tree.map(lambda w: jnp.full_like(w, 1 / 3), weights)),
        r"round 1: weights sum to 1\.6666\d, the least is 0\.333",
    ),
    "one negative": (
        right_for_three(lambda weights: jax.tree.map(lambda w: w.at[:2].add(jnp.array([0.7, -0.7])), weights)),
        r"round 1: weights sum to 1, the least is -0\.5; expected",
    ),
    "one tensor": (right_for_three(doubled_in_one_tensor), r"round 1: .* sum to 2, the least is 0\.2; expected"),
    "all negative": (
        basic.by_scalar(small_clients),
        r"round 1: weights sum to -1, the least is -0\.\d+; expected",
    ),
}
"""Weights that are right for three clients only."""


@pytest.mark.parametrize("name", WRONG_FOR_OTHERS)
def test_weights_of_real_cohorts_are_checked_in_every_tensor(name, small):
    rule, message = WRONG_FOR_OTHERS[name]
    settings = fedvg_jax.Config(clients=5, join_ratio=1.0, rounds=2, local_epochs=1, alpha=10.0, batch_size=8)
    with pytest.raises(UsageError, match=message) as error:
        fedvg_jax.run(settings, weighting=rule, **small)
    assert "\n" not in str(error.value)


def test_weights_of_a_cohort_in_blocks_are_checked(small):
    rule, message = WRONG_FOR_OTHERS["all negative"]
    settings = fedvg_jax.Config(clients=5, join_ratio=1.0, rounds=1, local_epochs=1, alpha=10.0, batch_size=8, hold=2)
    with pytest.raises(UsageError, match=message):
        fedvg_jax.run(settings, weighting=rule, **small)


@pytest.mark.parametrize("weighting", ["val_loss", "samples+val_loss", "permuted(val_loss)"])
def test_negative_losses_have_no_weights_by_validation_loss(small, weighting):
    """A density's, of which 1 / loss says nothing; all clients had equal weights."""

    def loss(*arguments):
        value, stats = TASK.loss(*arguments)
        return value - 50, stats

    settings = fedvg_jax.Config(clients=3, join_ratio=1.0, rounds=1, local_epochs=1, alpha=10.0, weighting=weighting)
    with pytest.raises(UsageError, match=r"round 1: weights sum .*which negative measurements, such as losses"):
        fedvg_jax.run(settings, **{**small, "task": TASK._replace(loss=loss)})


def test_a_right_weighting_passes_where_clients_drop_out(small):
    settings = fedvg_jax.Config(clients=5, join_ratio=1.0, rounds=3, local_epochs=1, alpha=10.0, batch_size=8)
    records = fedvg_jax.run(replace(settings, dropout=0.5), weighting=basic.samples(), **small).records
    assert any("dropped" in record for record in records)
    assert not any("misweighed" in record for record in records)


def test_containers_in_another_order_are_reported():
    """Same names, another order of containers."""
    with pytest.raises(UsageError, match="expected the structure of b, as it is"):
        checks.same_structure({"w": (1.0,)}, {"w": [1.0]}, "a", "b")


# --- a user's metric, and tables


@pytest.mark.parametrize("name", ["round", "weights", "test_mine"])
def test_a_metric_with_a_name_of_the_history_is_refused(name):
    with pytest.raises(UsageError, match=f"metric '{name}' would hide the history's own"):
        fedvg_jax.run(metrics={name: lambda model, data: 0})


def evaluated(metric):
    """The record of an evaluation, with one metric; the two models' sums are the test's own."""
    sums = {"loss": jnp.float32(1), "confusion": jnp.eye(3).reshape(-1)}
    nothing = simulation.Simulation(*[None] * 18)
    sim = nothing._replace(config=fedvg_jax.Config(), task=TASK, data=WORLD.data(), metrics={"mine": metric})
    programs = chunks.Programs(None, lambda *args: sums, 0.0)
    return chunks.evaluate(sim, programs, worlds.state(WORLD, worlds.algorithm("fedavg")))


def test_a_metric_receives_the_model_and_the_data_at_every_evaluation():
    actual = evaluated(lambda model, data: jax.tree.leaves(model)[0].size + 100 * len(data.pool.y))
    size = jax.tree.leaves(worlds.variables())[0].size
    assert actual["mine"] == size + 100 * len(WORLD.pool.y) and actual["test_accuracy"] == 1


def test_a_metric_that_returns_no_number_is_reported():
    with pytest.raises(UsageError, match=r"metric 'mine' returned shape \(3,\); expected one number, of shape \(\)"):
        evaluated(lambda model, data: jnp.ones(3))
    assert evaluated(lambda model, data: jnp.nan)["mine"] is None


RECORDS = [
    {"round": 1, "clients": [4, 2], "weights": [0.25, 0.75], "scores": [3.0, 1.0], "num_samples": [5, 6], "loss": 0.5},
    {"round": 2, "clients": [0], "weights": [1.0], "scores": [2.0], "num_samples": [7], "loss": 0.25, "test_loss": 1.0},
]


def test_a_history_is_two_tables():
    pytest.importorskip("pandas", reason="History.to_pandas needs the extra pandas, which the extra test installs")
    run_history = history.History(RECORDS, {}, None, None)
    rounds, clients = run_history.to_pandas(), run_history.to_pandas("client")
    assert rounds.index.tolist() == [1, 2] and rounds.columns.tolist() == ["loss", "test_loss"]
    assert rounds.loc[2, "test_loss"] == 1 and rounds["test_loss"].isna().tolist() == [True, False]
    assert clients.reset_index().to_numpy().tolist() == [[1, 4, 0.25, 3, 5], [1, 2, 0.75, 1, 6], [2, 0, 1, 2, 7]]
    with pytest.raises(UsageError, match="per must be round or client; got layer"):
        run_history.to_pandas("layer")
