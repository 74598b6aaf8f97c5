"""Clients carry only the parameters that can have a gradient, and no result changes."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds

from fedvg_jax import config
from fedvg_jax.core import gradient_support, norms, tree
from fedvg_jax.core.types import Batch, Report, UsageError
from fedvg_jax.engine import executors, federated_round, local_training
from fedvg_jax.models import layers, live_taps, resnet
from fedvg_jax.models import task as tasks
from fedvg_jax.runs import registry
from fedvg_jax.weightings import basic, signals


class OnePixel(nn.Module):
    """A 3x3 convolution of images of 1 x 2 pixels: of its nine taps only the middle row meets a pixel."""

    @nn.compact
    def __call__(self, x, mask, train: bool):
        x = nn.Conv(4, (3, 3), (1, 1), padding=[(1, 1), (1, 1)], name="conv1")(x)
        return layers.dense(nn.relu(x).mean((1, 2)), worlds.CLASSES, "classifier")


TASK = tasks.classification(OnePixel(), worlds.CLASSES, worlds.IMAGE)
WORLD = worlds.small()


def test_gradient_is_zero_outside_of_its_support_and_nonzero_inside(x64):
    """The stages of this network work on 4, 2 and 1 pixels: kernels with one dead row, with two, and with none."""
    task = tasks.classification(resnet.ResNet(3, depths=(1, 1, 1), width=2), 3, (16, 16, 3))
    variables = jax.tree.map(lambda p: p.astype(float), worlds.jit(task.init)(jax.random.key(0)))
    rng = np.random.default_rng(0)
    batch = Batch(rng.integers(0, 256, (8, 16, 16, 3), np.uint8), rng.integers(0, 3, 8).astype(np.int32))

    def loss(params):
        return task.loss(params, variables.stats, batch, jnp.ones(8, bool), True)[0]

    gradient = worlds.jit(jax.grad(loss))(variables.params)
    support = task.support
    inside = support.within(tree.zeros_like(gradient), jax.tree.map(jnp.ones_like, support.of(gradient)))
    for path, g, box in zip(tree.paths(gradient), *map(jax.tree.leaves, (gradient, inside)), strict=True):
        if g.ndim == 4:
            np.testing.assert_array_equal(np.asarray(g).any((2, 3)), np.asarray(box).any((2, 3)), path)
    boxes = {path: box for path, box in live_boxes(task.init).items() if path.startswith("layer3")}
    assert boxes == {"layer3_0/conv1/kernel": [(1, 3), (1, 3)], "layer3_0/conv2/kernel": [(1, 2), (1, 2)]}


def test_layer_used_on_two_sizes_has_the_live_taps_of_both():
    class Twice(nn.Module):
        @nn.compact
        def __call__(self, x):
            layer = nn.Conv(3, (3, 3), (1, 1), padding=[(1, 1), (1, 1)])
            return layer(x[:, :1, :1]).sum() + layer(x[:, :2, :1]).sum()

    def init(key):
        return Twice().init(key, jnp.zeros((1, 2, 2, 3)))["params"]

    assert live_boxes(init) == {"Conv_0/kernel": [(0, 3), (1, 2)]}


@pytest.mark.parametrize(
    ("padding", "strides", "dilation"), [("SAME", (1, 1), 1), (1, (1, 1), 1), ([(2, 2)] * 2, (1, 1), 2)]
)
def test_every_tap_is_live_where_padding_is_not_explicit(padding, strides, dilation):
    layer = nn.Conv(3, (3, 3), strides, padding=padding, kernel_dilation=dilation)
    assert live_boxes(lambda key: layer.init(key, jnp.zeros((1, 1, 1, 3)))) == {}


@pytest.mark.parametrize("is_initialised", [False, True])
def test_live_taps_are_recorded_whether_or_not_a_model_was_initialised(is_initialised):
    init, boxes = live_taps.record_live_taps(
        lambda key: OnePixel().init(key, jnp.zeros((1, *worlds.IMAGE)), None, False)
    )
    if is_initialised:
        for _ in range(2):
            worlds.jit(init)(jax.random.key(1))
    assert boxes() == {"conv1/kernel": [(1, 2), (0, 3)]}


WITH_MEMORIES = ("scaffold", "feddyn")
"""The algorithms of which clients correct their gradients by memories; of the others this holds all the more."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in WITH_MEMORIES else pytest.mark.slow) for n in registry.ALGORITHMS]
)
def test_rounds_on_the_support_equal_rounds_on_all_parameters(x64, name):
    """Two rounds with their memories, under weights that measure nothing."""
    algorithm = worlds.algorithm(name)
    schedules = [WORLD.schedule(number, probe_ratio=0.5) for number in range(2)]

    def rounds(task, support):
        rule = basic.samples()
        arguments = task, algorithm, rule, executors.lanes(1), local_training.sgd, len(WORLD.train)
        step, state = worlds.jit(federated_round.make_round(*arguments, support=support)), start
        for schedule in schedules:
            state, metrics = step(state, schedule, WORLD.data(), worlds.hyper())
        return state, metrics

    start = worlds.state(WORLD, algorithm, TASK)
    on_support = rounds(TASK, TASK.support)
    worlds.assert_close(on_support, rounds(TASK._replace(support=None), gradient_support.FULL_SUPPORT), 1e-12)
    kernels = [state.variables.params["conv1"]["kernel"] for state in (start, on_support[0])]
    np.testing.assert_array_equal(*(kernel[0] for kernel in kernels))
    assert jnp.abs(kernels[1] - kernels[0])[1].min() > 0


@pytest.mark.parametrize("groups_per_pass", [1, 2])
def test_validation_gradient_on_the_support_equals_the_full_one(x64, groups_per_pass):
    """By every norm."""

    def every_norm(x):
        return {name: norm(x) for name, norm in norms.BY_NAME.items()}

    @worlds.jit
    def both(variables, data):
        report = Report(variables, jnp.ones((), int), variables.params)
        return [
            signals.normed(signals.validation_gradient(task, True, groups_per_pass), every_norm)({}, report, data)
            for task in (TASK, TASK._replace(support=None))
        ]

    worlds.assert_close(*both(worlds.variables(task=TASK), WORLD.data()), 1e-12)


def test_client_carries_the_support_only():
    state = worlds.state(WORLD, worlds.algorithm("fedavg"), TASK)
    arguments = state, WORLD.schedule(0), WORLD.data(), worlds.hyper()
    client = local_training.make_client(
        TASK, worlds.algorithm("fedavg"), local_training.sgd, *arguments, support=TASK.support
    )
    start = jax.eval_shape(lambda: client.init(0))
    carries = start, jax.eval_shape(lambda carry: client.step(carry, 0, 0), start)
    assert [carry.params["conv1"]["kernel"].shape for carry in carries] == 2 * [(1, 3, 3, 4)]


@pytest.mark.parametrize(
    ("changes", "is_all"),
    [({}, False), ({"weight_decay": 1e-3}, True), ({"optimiser": "adamw"}, True)],
)
def test_all_parameters_are_carried_where_those_without_gradient_change_too(changes, is_all):
    """Weight decay moves them."""
    support = registry.make_live(dataclasses.replace(config.Config(), **changes), TASK)
    assert support is (gradient_support.FULL_SUPPORT if is_all else TASK.support)


def test_loss_refuses_images_of_another_shape():
    """Other parameters would have a gradient."""
    batch = Batch(jnp.zeros((2, 4, 4, 3), jnp.uint8), jnp.zeros(2, jnp.int32))
    with pytest.raises(UsageError, match=r"images of \(4, 4, 3\) for the loss of a task made for \(1, 2, 3\)"):
        TASK.loss(*worlds.variables(task=TASK), batch, jnp.ones(2, bool), True)


def live_boxes(init):
    return live_taps.record_live_taps(init)[1]()
