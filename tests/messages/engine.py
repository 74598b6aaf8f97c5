"""Mistakes in calls of the engine: rounds, schedules, selections, gradients of rounds, and parts of a model."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from support import worlds

import fedvg_jax as fv
from fedvg_jax import resolve
from fedvg_jax.core.types import Batch
from fedvg_jax.engine import local_training
from fedvg_jax.models import task as tasks
from fedvg_jax.models.plain import GRU
from fedvg_jax.weightings import baselines, basic

WORLD = worlds.uneven(cohort_size=5)
CONFIG = fv.Config(clients=8, join_ratio=0.25, local_epochs=1, model="linear")


def round_of(
    rule="uniform", task=worlds.QUADRATIC, dtype=float, num_clients=5, size=None, described=True
):
    """Returns the call of a round, of shapes alone."""

    def call():
        algorithm = worlds.algorithm("fedavg")
        weighting = worlds.weighting(rule, algorithm) if isinstance(rule, str) else rule
        step = fv.make_round(task, algorithm, weighting, worlds.TWO_LANES, fv.sgd, num_clients)
        start = worlds.state(WORLD, algorithm, worlds.QUADRATIC)
        start = start._replace(variables=jax.tree.map(lambda x: x.astype(dtype), start.variables))
        schedule, data = WORLD.schedule(0, 2, client_chunk_size=size), WORLD.data()
        data = data if described else data._replace(described=fv.Data._field_defaults["described"])
        jax.eval_shape(step, start, schedule, data, worlds.hyper())

    return call


def selection(choose, num_candidates=0):
    return lambda: fv.run(CONFIG, selection=fv.Selection(choose, num_candidates))


def send(apply, **settings):
    own = fv.algorithms.fedavg()._replace(
        send=fv.Send(lambda hyper, params: (), apply, lambda params: 1)
    )
    return lambda: fv.simulation(dataclasses.replace(CONFIG, **settings), algorithm=own)


def local(*arguments):
    def call():
        start = {"body": jnp.zeros(()), "head": jnp.zeros(())}
        task = fv.Task(lambda key: fv.Variables(start, {}), *[None] * 5)
        fv.init_state(task, fv.algorithms.fedavg(), 2, {"lr": 0.1}, local=fv.local_part(*arguments))

    return call


def devices(count, is_double=False):
    def call():
        with jax.enable_x64(is_double):
            resolve.machine.num_devices(
                dataclasses.replace(CONFIG, clients=6, join_ratio=0.5, devices=count)
            )

    return call


def hypergradient(hyper, names, objective=sum, **options):
    return lambda: fv.hypergradient(objective, hyper, names, **options)


def power(hyper):
    return jax.jit(lambda n, a: local_training.counted(n, lambda i, x: x * a, jnp.float32(1)))(
        3, hyper["a"]
    )


def short_sequences():
    task = tasks.next_character(GRU(5, width=2, hidden=3), 5, 4)
    short = Batch(*np.zeros((2, 2, 3), np.int32))
    task.loss(*jax.eval_shape(task.init, jax.random.key(0)), short, np.ones(2, bool), True)


CASES = [
    ("a cohort of more clients than there are", round_of(num_clients=1), "make_round"),
    (
        "a round without its descriptions",
        round_of(fv.weightings.feddisco(), described=False),
        "weighting",
    ),
    ("half precision in client chunks", round_of(dtype=jnp.bfloat16, size=2), "--client-chunk 0"),
    (
        "a rule without terms in client chunks",
        round_of(baselines.permuted(basic.samples()), size=3),
        "terms",
    ),
    (
        "a key without the default None",
        round_of(
            task=worlds.QUADRATIC._replace(
                loss=lambda params, stats, batch, mask, train, key: (0.0, stats)
            )
        ),
        "key=None",
    ),
    ("one client twice", selection(lambda population: np.array([0, 0])), "selection.choose"),
    (
        "more losses than candidates",
        selection(lambda known: known.losses(np.arange(8))[:2], 3),
        "num_candidates",
    ),
    ("the name of a selection", lambda: fv.run(CONFIG, selection="size"), "selection"),  # pyright: ignore
    ("two compressions", send(None, send="topk:0.1"), "algorithm.send"),
    ("no update", send(lambda hyper, key, delta, state: ({}, state)), "algorithm.send"),
    ("a bracket", local("["), "regular expression"),
    ("all steps for the local part", local("^head", 2.0), "first"),
    ("no local tensor", local("^nothing/"), "local"),
    ("only local tensors", local("^"), "local"),
    (
        "no trained tensor",
        lambda: fv.trained_part(worlds.TASK, worlds.variables(), "^nothing/"),
        "train",
    ),
    (
        "trained statistics",
        lambda: fv.trained_part(worlds.TASK, worlds.variables(), "/mean$"),
        "train",
    ),
    ("more devices than there are", devices("5"), "devices"),
    ("more devices than clients", devices("4"), "devices 4"),
    ("float64 on two devices", devices("2", is_double=True), "--devices 1"),
    ("an unknown hyperparameter", hypergradient({"lr": 0.1}, ["mu"]), "'mu'"),
    (
        "reverse mode of a loop without it",
        hypergradient({"a": jnp.float32(2)}, ["a"], power),
        "fedvg_jax.unrolled",
    ),
    ("sequences of another length", short_sequences, "rows of (3,)"),
]
