"""Errors in a user's own model, algorithm or weighting are one line that names the function, leaf and shape."""

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import linear, worlds
from support.files import usage_error

import fedvg_jax
from fedvg_jax.core.types import Metrics, UsageError
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.runs import chunks
from fedvg_jax.runs.assemble import contracts, simulation
from fedvg_jax.runs.record import history
from fedvg_jax.weightings import basic

WORLD = worlds.small()
TASK = worlds.TASK
SMALL = {"data": worlds.random_images(), "task": TASK}
"""Arguments of a run of a small network."""
DATA = worlds.uneven().data()
"""The clients' rows of `worlds.QUADRATIC`, the model of two tensors that weightings are checked on."""


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
        "returned dict; expected fedvg_jax.Variables",
    ),
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


@pytest.mark.parametrize(("changes", "message"), MODELS.values(), ids=MODELS)
def test_an_error_in_a_model_is_reported(changes, message):
    with usage_error(message):
        contracts.check_task(TASK._replace(**changes), WORLD.data().pool)


def test_a_pool_of_several_lengths_is_reported():
    pool = WORLD.data().pool
    with usage_error("pool must be arrays of one length"):
        contracts.check_task(TASK, pool._replace(y=pool.y[:3]))


# --- algorithms

AVERAGE = worlds.algorithm("fedavg")


def sums(hyper, server, params, cohort):
    return jax.tree.map(lambda u: u.sum(), cohort.update), server


ALGORITHMS = {
    "a sum per leaf": ({"residual": sums}, "algorithm.residual: R leaf 'bn1/bias' has shape (); expected (5,), as the"),
    "no gradients": ({"correct": lambda *_: None}, "algorithm.correct: gradients has no leaf 'bn1/bias'"),
    "a pair": (
        {"report": lambda *_: ((), ())},
        "algorithm.report returned a tuple of 2; expected (the client's memory",
    ),
    "another memory": (
        {"report": lambda *_: (jnp.ones(2), (), ())},
        "algorithm.report: memory has a leaf '' that algorithm.init's memory of a client has not",
    ),
    "an average of integers": (
        {"report": lambda h, p, a, d: (a.client, (), jax.tree.map(lambda leaf: jnp.int32(1), p))},
        "algorithm.report: the message to be averaged leaf 'bn1/bias' is int32 of shape (); expected floats of shape",
    ),
    "a word as memory": ({"init": lambda hyper, params: ((), "none")}, "algorithm.init failed: TypeError"),
    "undeclared": (
        {"residual": lambda hyper, server, params, cohort: (hyper["tempo"], server)},
        "algorithm.residual failed: there is no 'tempo'; hyper has ",
    ),
    "three arguments": (
        {"residual": lambda hyper, server, cohort: ((), server)},
        "algorithm.residual takes (hyper, server, cohort); it is called with (hyper, server, params, cohort)",
    ),
}


@pytest.mark.parametrize(("changes", "message"), ALGORITHMS.values(), ids=ALGORITHMS)
def test_an_error_in_an_algorithm_is_reported(changes, message):
    with usage_error(message):
        contracts.check_algorithm(AVERAGE._replace(**changes), TASK, WORLD.data().pool, worlds.hyper(), num_clients=7)


def test_algorithm_is_checked_on_what_server_stats_hands_to_it():
    """This one reads a parameter by name, which running statistics beside the parameters hide."""
    algorithm = AVERAGE._replace(residual=lambda hyper, server, params, cohort: ({"w": 0 * params["w"]}, server))
    own = linear.GIVEN | {"algorithm": algorithm}
    simulation.simulation(fedvg_jax.Config(clients=4), **own)
    with pytest.raises(UsageError, match=r"algorithm\.residual"):
        simulation.simulation(fedvg_jax.Config(clients=4, departures="server-stats"), **own)


# --- weightings


def by(weigh=None, **changes):
    rule = basic.uniform()
    return rule._replace(**({"weigh": weigh} if weigh else {}), **changes)


def everywhere(weights_of):
    return by(lambda hyper, ones, view: basic.broadcast_weights(weights_of(ones), view))


RULES = {
    "a sum of 3": (everywhere(lambda ones: ones), "leaf 'params/left/x' of shape (3,) sums to 3; expected 1"),
    "negative": (everywhere(lambda ones: ones.at[0].set(-1)), "leaf 'params/left/x' is [-1.  1.  1.]"),
    "nan": (everywhere(lambda ones: ones / 0), "leaf 'params/left/x' is [inf inf inf]; expected (3,) numbers"),
    "two clients": (everywhere(lambda ones: ones[:2] / 2), "has shape (2,); expected (3,), from K = 3 clients"),
    "params only": (
        by(lambda hyper, ones, view: basic.broadcast_weights(ones / 3, view).params),
        "has no leaf 'params/left/x'; expected the structure of the model's variables",
    ),
    "one score": (by(score=lambda ones: ones.sum()), "weighting.score has shape (); expected (3,), one number per"),
    "a detail": (by(detail=lambda ones: {"own": ones[:2]}), "weighting.detail leaf 'own' has shape (2,); expected (3"),
    "complex details": (
        by(detail=lambda ones: {"own": ones.astype(jnp.complex64)}),
        "weighting.detail 'own' is complex64; expected an",
    ),
    "a detail without a name": (by(detail=lambda ones: {3: ones}), "weighting.detail must return a dict of arrays"),
    "a detail of the history's": (
        by(detail=lambda ones: {"weights": ones}),
        "'weights' is already a name of the history",
    ),
    "no number": (
        basic.by_scalar(lambda *_: None),
        "weighting.signal: by_scalar got NoneType; expected one number, of",
    ),
    "NumPy": (
        everywhere(np.asarray),
        "weighting.weigh failed: its arguments are traced, without val",
    ),
}


@pytest.mark.parametrize(("rule", "message"), RULES.values(), ids=RULES)
def test_an_error_in_a_weighting_is_reported(rule, message):
    with usage_error(message):
        check_weighting(rule)


FACTORIES = {
    "without parentheses": (basic.uniform, "weighting takes (); it is called with (task); did you mean uniform()?"),
    "two arguments": (lambda task, data: None, "weighting takes (task, data); it is called with (task); give a Weig"),
    "an error": (lambda task: {}["loss"], "weighting(task) failed: KeyError: 'loss'"),
}


@pytest.mark.parametrize(("factory", "message"), FACTORIES.values(), ids=FACTORIES)
def test_an_error_in_a_function_that_makes_a_weighting_is_reported(factory, message):
    with usage_error(message):
        contracts.weighting_of(factory, TASK)


def test_details_of_any_rank_pass_and_are_recorded_as_nested_lists():
    def detail(ones):
        return {"mine": ones[:, None, None] * jnp.ones((1, 2, 2)), "present": ones > 0, "broken": ones / 0}

    check_weighting(by(detail=detail))
    values = {name: np.asarray(value) for name, value in detail(jnp.ones(3)).items()}
    metrics = Metrics(*3 * [np.ones(3)], np.ones(3, bool), values)
    schedule = schedules.pack(np.arange(3), [np.zeros((1, 1), int)] * 3, [1] * 3, num_lanes=1, capacity=3)
    actual = json.loads(json.dumps(history.record(1, schedule, metrics, 0.0)))
    assert actual["mine"] == values["mine"].tolist() and actual["present"] == 3 * [True]
    assert actual["broken"] == 3 * [None]


def test_a_run_checks_its_weighting_before_compiling(monkeypatch):
    monkeypatch.setattr(chunks, "compile_programs", lambda *_: pytest.fail("too late"))
    with pytest.raises(UsageError, match="sums to 3; expected 1"):
        fedvg_jax.run(fedvg_jax.Config(clients=4, alpha=10.0), weighting=RULES["a sum of 3"][0], **SMALL)
    with pytest.raises(UsageError, match="'fc1/bias' is int32"):
        fedvg_jax.run(fedvg_jax.Config(clients=4, alpha=10.0), **SMALL | {"task": TASK._replace(init=integers)})


@pytest.mark.parametrize(("first", "remedy"), [(0, "labels reach 3 .* give it 4"), (1, "labels reach 2 .*: .* y - 1")])
def test_too_few_outputs_for_the_classes_are_named_before_the_divergence(first, remedy):
    """Optax's loss of a class without an output is NaN."""
    x, y = np.ones((40, 3), np.float32), first + np.arange(40) % (4 - 2 * first)
    task = fedvg_jax.linen_task(nn.Dense(2), optax.softmax_cross_entropy_with_integer_labels, x[:1])
    settings = fedvg_jax.Config(clients=4, rounds=1, local_epochs=1, alpha=10.0, min_samples=2, weighting="samples")
    with pytest.raises(fedvg_jax.DivergedError, match=rf"^{remedy}; round 1: clients"):
        fedvg_jax.run(settings, data=(x, y), task=task)


@pytest.mark.parametrize("name", ["loss", "measure"])
def test_a_task_that_ignores_the_mask_is_refused(name):
    """Also one whose BatchNorm reads it."""
    everywhere = {
        "loss": lambda params, stats, batch, mask, train: TASK.loss(
            params, stats, batch, mask if train else jnp.ones(mask.shape, bool), train
        ),
        "measure": lambda params, stats, batch, mask: TASK.measure(params, stats, batch, jnp.ones(mask.shape, bool)),
    }
    with pytest.raises(UsageError, match=rf"task\.{name} does not depend on mask"):
        fedvg_jax.check_task(TASK._replace(**{name: everywhere[name]}), WORLD.data().pool)


@pytest.mark.usefixtures("traced")
def test_one_client_a_round_draws_a_warning(caplog):
    settings = fedvg_jax.Config(clients=4, join_ratio=0.25, rounds=1, local_epochs=1, alpha=10.0, batch_size=8)
    fedvg_jax.run(settings, **SMALL)
    assert "one client a round: every weighting gives it the weight 1" in caplog.text


def larger_in_one_tensor(hyper, ones, view):
    """Uniform weights for three clients, as in the trial; one of a larger cohort is larger in one tensor."""
    weights = basic.broadcast_weights(basic.shares(ones, view.present), view)
    first, *others = jax.tree.leaves(weights)
    first = first if len(ones) == 3 else first.at[0].add(0.5)
    return jax.tree.unflatten(jax.tree.structure(weights), [first, *others])


def test_weights_of_real_cohorts_are_checked_in_every_tensor():
    rule = basic.uniform()._replace(weigh=larger_in_one_tensor, terms=())
    settings = fedvg_jax.Config(clients=5, join_ratio=1.0, rounds=2, local_epochs=1, alpha=10.0, model="linear")
    message = "round 1: weights sum to 1.5, the least is 0.2; expected"
    with usage_error(message):
        fedvg_jax.run(settings, weighting=rule, data=worlds.images(120))


def small_clients(hyper, client, data):
    """Negative for clients of over three rows; the trial's have one to three."""
    return 3.5 - client.num_samples.astype(jnp.float32)


def test_weights_of_a_cohort_in_blocks_are_checked():
    settings = fedvg_jax.Config(clients=5, join_ratio=1.0, rounds=1, local_epochs=1, alpha=10.0, batch_size=8, hold=2)
    message = r"round 1: weights sum to -1, the least is -0\.\d+; expected"
    with pytest.raises(UsageError, match=message):
        fedvg_jax.run(settings, weighting=basic.by_scalar(small_clients), **linear.GIVEN)


def test_negative_losses_have_no_weights_by_validation_loss():
    """A density's, of which 1 / loss says nothing; all clients had equal weights."""

    def loss(*arguments):
        value, stats = linear.TASK.loss(*arguments)
        return value - 50, stats

    settings = fedvg_jax.Config(
        clients=3, join_ratio=1.0, rounds=1, local_epochs=1, alpha=10.0, weighting="samples+val_loss"
    )
    with pytest.raises(UsageError, match=r"round 1: weights sum .*which negative measurements, such as losses"):
        fedvg_jax.run(settings, data=linear.data(), task=linear.TASK._replace(loss=loss))


# --- tables


RECORDS = [
    {"round": 1, "clients": [4, 2], "weights": [0.25, 0.75], "scores": [3.0, 1.0], "num_samples": [5, 6], "loss": 0.5},
    {"round": 2, "clients": [0], "weights": [1.0], "scores": [2.0], "num_samples": [7], "loss": 0.25, "test_loss": 1.0},
]


def test_a_history_is_two_tables():
    pytest.importorskip("pandas", reason="History.to_pandas needs the extra pandas, which the extra test installs")
    run_history = history.History(RECORDS, {}, None, None)
    rounds, clients = run_history.to_pandas(), run_history.to_pandas("client")
    assert rounds.index.tolist() == [1, 2] and rounds.columns.tolist() == ["round", "loss", "test_loss"]
    assert rounds.loc[2, "test_loss"] == 1 and rounds["test_loss"].isna().tolist() == [True, False]
    assert clients.to_numpy().tolist() == [[1, 4, 0.25, 3, 5], [1, 2, 0.75, 1, 6], [2, 0, 1, 2, 7]]
    assert clients.groupby("round")["weight"].sum().tolist() == [1, 1] and clients.index.tolist() == [1, 1, 2]
    with pytest.raises(UsageError, match="per must be round or client; got layer"):
        run_history.to_pandas("layer")
    assert history.History([], {}, None, None).to_pandas().empty, "of a run without a round"
