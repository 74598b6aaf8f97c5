"""Mistakes in a task, an algorithm or a weighting of the caller's own, and in other arguments of public functions."""

from dataclasses import replace
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from support import linear, worlds

import fedvg_jax as fv
from fedvg_jax.algorithms import fedavg
from fedvg_jax.core.types import Hyperparameter
from fedvg_jax.weightings import basic

TASK, CLIENTS = worlds.TASK, [np.arange(4)]
SMALL = fv.Config(rounds=1, clients=4, local_epochs=1, alpha=10.0, weighting="uniform")
DECLARED = fedavg()._replace(hyperparameters=(Hyperparameter("tau", 0.5, low=0.0),))


def task(**changes):
    return lambda: fv.check_task(TASK._replace(**changes), worlds.small().data().pool)


def algorithm(**changes):
    return lambda: traced(worlds.small(), TASK, fedavg()._replace(**changes), basic.uniform())


def describing(describe):
    return run(algorithm=fedavg()._replace(describe=describe))


def aggregate(rule):
    return run(aggregate=rule)


def weighting(**changes):
    own = basic.uniform()._replace(**changes)
    return lambda: traced(worlds.uneven(), worlds.QUADRATIC, fedavg(), own)


def traced(world, own_task, own_algorithm, rule):
    """Traces a round, in which every function is checked."""
    state = worlds.state(world, own_algorithm, own_task)
    step = worlds.round_step(world, own_algorithm, rule, own_task)
    jax.eval_shape(step, state, world.schedule(0, 2), world.data(), worlds.hyper())


def run(settings=None, **arguments):
    return lambda: fv.run(replace(SMALL, **settings or {}), **linear.GIVEN | arguments)


def initial(params):
    return run(initial=fv.Variables(params, {}))


def simulation(**settings):
    return lambda: fv.simulation(replace(SMALL, **settings), **linear.GIVEN)


def sweep(**arguments):
    return lambda: fv.run_sweep(SMALL, **{"axes": {"seed": [0]}} | arguments)


def schedule(clients=None, **arguments):
    return lambda: fv.make_schedule(0, CLIENTS if clients is None else clients, **arguments)


def gradients(client_params, val_batches):
    return lambda: fv.validation_gradients(lambda params, x: x, client_params, val_batches)


def integers(key):
    model = TASK.init(key)
    return model._replace(
        params=model.params | {"fc1": model.params["fc1"] | {"bias": jnp.zeros(5, jnp.int32)}}
    )


def of_all_rows(*arguments):
    *model, mask, train = arguments
    return TASK.loss(*model, mask if train else jnp.ones(mask.shape, bool), train)


def without_labels(**changes):
    """Returns the call of FedNTD with a task of numbers."""

    def call():
        x = np.random.default_rng(0).normal(size=(80, 5)).astype(np.float32)
        own = fv.linen_task(nn.Dense(1), lambda output, y: (output[0] - y) ** 2, x[:1])
        own, data = own._replace(**changes), (x, x.sum(1))
        run({"partition": "iid"}, data=data, task=own, algorithm=fv.algorithms.fedntd())()

    return call


TWO, THREE, STACK = np.ones(2, np.float32), np.ones(3, np.float32), np.ones((3, 2), np.float32)
ONE_LOGIT = "float32 of shape (7,)"

CASES = [
    # a task
    ("a parameter of integers", task(init=integers), "fc1/bias"),
    ("parameters alone", task(init=lambda key: TASK.init(key).params), "task.init"),
    ("a loss of each row", task(loss=lambda *at: (at[3].astype(float), at[1])), "task.loss"),
    ("a loss of padded rows", task(loss=of_all_rows), "task.loss does not depend on mask"),
    (
        "a measure of padded rows",
        task(measure=lambda *at: TASK.measure(*at[:3], jnp.ones(at[3].shape, bool))),
        "measure",
    ),
    # an algorithm
    ("no gradients", algorithm(correct=lambda *_: None), "algorithm.correct"),
    (
        "a probe of no rows",
        run(algorithm=fv.algorithms.elastic(ratio=0)),
        "algorithm.probe_ratio must be in (0, 1]; got 0",
    ),
    ("undeclared", algorithm(residual=lambda hyper, s, p, c: (hyper["tempo"], s)), "'tempo'"),
    (
        "two own",
        lambda: fv.run(replace(SMALL, local="^fc1"), algorithm=fv.algorithms.ditto(fedavg())),
        "local",
    ),
    ("FedNTD without labels of classes", without_labels(), "FedNTD needs labels"),
    ("a task without forward", without_labels(forward=None), "task.forward"),
    (
        "another description for another client",
        describing(lambda rows: np.bincount(rows.y)[: 1 + len(rows.y) % 2]),
        "algorithm.describe: client",
    ),
    ("a description that fails", describing(lambda rows: rows.z), "algorithm.describe"),
    ("a description of nothing", describing(lambda rows: None), "algorithm.describe: client 0"),
    ("a large integer", describing(lambda rows: 2**32 + len(rows.y)), "int32 cannot hold 42949"),
    ("a large float", describing(lambda rows: np.array([1e39, 0.0])), "float32 cannot hold 1e+39"),
    # a robust rule, and an attack
    (
        "an aggregate of clients",
        aggregate(lambda hyper, theta, clients, weights: clients),
        "aggregate leaf",
    ),
    ("an aggregate that fails", aggregate(lambda *_: 1 / 0), "aggregate failed: ZeroDivisionError"),
    ("an aggregate of unset settings", aggregate(lambda hyper, *_: hyper["R"]), "there is no 'R'"),
    ("an attack of nothing", run(attack=lambda *_: None), "attack leaf"),
    # a weighting
    (
        "weights of two clients",
        weighting(weigh=lambda _, ones, view: basic.broadcast_weights(ones[:2] / 2, view)),
        "params/left/x",
    ),
    (
        "a detail of the history's",
        run(weighting=basic.uniform()._replace(detail=lambda ones: {"weights": ones})),
        "weights",
    ),
    (
        "weights of three of four clients",
        run(weighting=fv.weightings.fixed([1.0, 2.0, 3.0])),
        "fixed",
    ),
    (
        "a factory without parentheses",
        run(weighting=basic.uniform),
        "weighting",
    ),
    # hyperparameters
    ("an unknown hyperparameter", run(algorithm=DECLARED, hyper={"tua": 1.0}), "'tau'"),
    ("a hyperparameter below float32", run(algorithm=DECLARED, hyper={"tau": 1e-60}), "1e-60"),
    ("a setting as hyperparameter", run(algorithm=DECLARED, hyper={"lr": 0.1}), "'lr'"),
    (
        "a name with two meanings",
        run(
            {"weighting": "fedvg"},
            algorithm=fedavg()._replace(hyperparameters=(Hyperparameter("fedvg.eps", 1e-3),)),
        ),
        "'fedvg.eps'",
    ),
    # settings beside a task
    ("accuracy of one logit", simulation(weighting="val_accuracy"), ONE_LOGIT),
    ("precision beside a task", simulation(precision="bfloat16"), "precision bfloat16"),
    ("confusion of a task", simulation(record="confusion"), "record confusion"),
    (
        "a robust rule beside a weighting",
        run({"robust": "median"}, weighting=lambda task: basic.uniform()),
        "robust median",
    ),
    # arguments of a run
    ("an initial tensor of another shape", initial({"w": np.ones(2, np.float32)}), "'params/w'"),
    ("a name as weighting", run(weighting="fedvg"), "weighting"),
    ("a callback without arguments", run(callbacks=[lambda: None]), "callback"),
    ("a metric of a model alone", run(metrics={"m": lambda model: 0}), "metric 'm'"),
    ("a metric of the history's", run(metrics={"weights": lambda model, data: 0}), "'weights'"),
    ("no file to start from", run({"init": Path("nothing.safetensors")}), "nothing.safetensors"),
    (
        "an export to nowhere",
        run({"export": Path("none") / "m.safetensors"}),
        "export none/m.safetensors",
    ),
    ("an argument of another name", run(wieghting=1), "wieghting"),
    ("axes as a list", sweep(axes=["seed"]), "axes"),
    ("values of two settings as a number", sweep(axes={("lr", "seed"): 3}), "lr, seed"),
    ("an empty folder", sweep(out=""), "out"),
    # parts of a research script
    ("more clients than there are", schedule(cohort_size=2), "cohort_size"),
    ("no clients", schedule([]), "client_rows"),
    (
        "two cohorts",
        lambda: fv.stack_schedules([fv.make_schedule(0, CLIENTS * k) for k in (1, 2)]),
        "cohort sizes",
    ),
    ("no data", lambda: fv.evaluate(linear.TASK, fv.Variables({}, {})), "data"),
    ("no folder of a history", lambda: fv.History.load(None), "History.load"),
    # functions of the method
    ("a negative norm", lambda: fv.inverse_norm_weights({"w": -TWO}), "norms must be"),
    (
        "a temperature of 0",
        lambda: fv.generalised_weights({"a": THREE}, temperature=0.0),
        "generalised.temperature",
    ),
    (
        "layers without a matrix",
        lambda: fv.weightings.fedvg(TASK, "spectral", "layerwise"),
        "a matrix in every group",
    ),
    ("a norm that is none", lambda: fv.weightings.fedvg(TASK, "l3"), "'l3'"),
    (
        "weights of other tensors",
        lambda: fv.aggregate({"a": TWO}, {"a": STACK}, {"b": THREE}),
        "weights leaf 'a'",
    ),
    ("no validation batch", gradients(THREE, np.zeros((0, 4))), "val_batches"),
]
