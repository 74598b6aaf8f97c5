"""A part of a model is trained: its gradients, the products that clients share, every algorithm and weighting."""

import functools

import jax
import jax.numpy as jnp
import pytest
from support import programs, worlds

import fedvg_jax as fv
from fedvg_jax import resolve
from fedvg_jax.config import WEIGHTINGS
from fedvg_jax.core import trained_part, tree

WORLD = worlds.small()
PATTERN = "^bn1/|^classifier/"
"""Of the network; its first layer stays frozen."""

OF_NETWORKS = ("val_accuracy", "val_loss", "fedvg")
"""The first needs scores of classes, the second losses above 0."""

OTHERS = [name for name in WEIGHTINGS if name not in OF_NETWORKS[:2]]


def parts(task=worlds.TASK, pattern=PATTERN):
    """(task of the trained part, its variables, base) of a model in the current precision."""
    trained, base = trained_part.split(
        worlds.variables(task=task), trained_part.chooser(task, pattern)
    )
    return trained_part.bind(task, base), trained, base


# --- the task of a part


def test_gradients_of_the_part_are_those_of_the_whole_model(x64):
    task, trained, base = parts()
    model = trained_part.whole(trained, base)
    rows = jnp.array([0, 1, 2, -1], jnp.int32)
    batch, mask = tree.gather(WORLD.data().pool, rows)

    def derivative(task, model):
        gradient = jax.value_and_grad(task.loss, has_aux=True)
        return worlds.jit(lambda: gradient(*model, batch, mask, True))()

    (loss, stats), grads = derivative(task, trained)
    (expected, all_stats), all_grads = derivative(worlds.TASK, model)
    worlds.assert_close(loss, expected, 1e-12)
    of_whole = trained_part.rest_of(fv.Variables(all_grads, all_stats), base)
    worlds.assert_close(fv.Variables(grads, stats), of_whole, 1e-12)
    assert tree.paths(grads) == ["bn1/bias", "bn1/scale", "classifier/bias", "classifier/kernel"]
    outputs = task.predict(*trained, batch), worlds.TASK.predict(*model, batch)
    worlds.assert_close(*outputs, 0)


STATISTICS = {
    "^bn1/scale": ["bn1/mean", "bn1/var"],
    "^classifier/": [],
    "mean|classifier": ["bn1/mean"],
}


@pytest.mark.parametrize("pattern", STATISTICS)
def test_running_statistics_are_trained_with_their_layer_or_where_they_are_chosen(pattern):
    _, trained, base = parts(pattern=pattern)
    assert tree.paths(trained.stats) == STATISTICS[pattern]
    assert {*tree.paths(trained), *tree.paths(base)} == {*tree.paths(worlds.variables())}


@pytest.mark.parametrize("conv", ["gemm", "winograd", "planes", "lax"])
def test_clients_share_every_convolution_of_the_base(conv):
    """Only the products of the head, its output and its gradient, have an axis of clients."""
    model = resolve.model.named_task(fv.Config(model="tinycnn", conv=conv), (8, 8, 1), 3)
    task, trained, _ = parts(model, "^classifier/")
    rows = fv.Batch(jnp.zeros((5, 8, 8, 1), jnp.uint8), jnp.zeros(5, int)), jnp.ones(5, bool)
    gradients = jax.vmap(lambda model, rows: jax.grad(task.loss, has_aux=True)(*model, *rows, True))
    num_of_clients = 0
    for equation in programs.equations(gradients, *tree.repeat((trained, rows), 7)):
        if equation.primitive.name == "dot_general":
            axes = equation.params["dimension_numbers"][1][0]
            num_of_clients += 7 in [equation.invars[0].aval.shape[axis] for axis in axes]
        assert equation.params.get("feature_group_count", 1) == 1
    assert num_of_clients == 2


# --- rounds


@functools.cache
def any_rule(algorithm, task, names):
    return worlds.any_of([worlds.weighting(name, algorithm, task) for name in names])


def check_rounds(task, trained, algorithms, names, world, send=None):
    """A round of every algorithm under every weighting moves the trained tensors, which are all that the state has.

    A `send` compresses what it sends of them, and keeps errors.
    """
    for algorithm in algorithms:
        chosen = worlds.algorithm(algorithm)._replace(send=send)
        rule = any_rule(chosen, task, tuple(names))
        values = worlds.hyper()
        step = worlds.make_round(world, chosen, rule, task)
        start = fv.init_state(task, chosen, len(world.train), values, variables=trained)
        planned = world.schedule(0, 2, probe_ratio=0.5)
        for number, name in enumerate(names):
            choice = values | {"rule": jnp.int32(number)}
            state, metrics = step(start, planned, world.data(), choice)
            assert tree.paths(state) == tree.paths(start)
            for move in jax.tree.leaves(tree.sub(state.variables, trained)):
                assert jnp.isfinite(move).all() and move.any(), (algorithm, name)
            assert abs(metrics.weights.sum() - 1) < 1e-5
            assert not send or any(x.any() for x in jax.tree.leaves(state.clients.sent))


def test_every_algorithm_and_weighting_runs_on_a_part_of_which_updates_are_compressed():
    task, trained, _ = parts(worlds.QUADRATIC, "^left/")
    check_rounds(
        task, trained, worlds.ON_QUADRATICS, OTHERS, worlds.uneven(), fv.compression.top_k(0.5)
    )


@pytest.mark.parametrize(
    ("algorithms", "names"),
    [(("moon", "fedntd", "feddecorr"), OF_NETWORKS), (("ditto",), ("uniform",))],
)
def test_every_algorithm_with_a_loss_or_models_of_its_own_runs_on_a_part(algorithms, names):
    task, trained, _ = parts()
    check_rounds(task, trained, algorithms, names, WORLD)
