"""Clients carry only the parameters that can have a gradient, and no result changes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds

from fedvg_jax import config
from fedvg_jax.core import gradient_support, tree
from fedvg_jax.core.types import Batch, UsageError
from fedvg_jax.engine import local_training
from fedvg_jax.models import layers, live_taps, resnet
from fedvg_jax.models import task as tasks
from fedvg_jax.runs import registry


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


def test_rounds_on_the_support_equal_rounds_on_all_parameters(x64):
    """Two rounds of an algorithm whose clients correct their gradients by memories, weighed by validation gradients."""
    algorithm = worlds.algorithm("scaffold")
    plan = [WORLD.schedule(number, 2) for number in range(2)]

    on_support, on_all = (
        worlds.play(WORLD, plan, algorithm, "fedvg", TASK._replace(support=of_task), support=support)[-1]
        for of_task, support in ((TASK.support, TASK.support), (None, gradient_support.FULL_SUPPORT))
    )
    worlds.assert_close(on_support, on_all, 1e-12)
    models = worlds.variables(task=TASK), on_support[0].variables
    kernels = [variables.params["conv1"]["kernel"] for variables in models]
    np.testing.assert_array_equal(*(kernel[0] for kernel in kernels))
    assert jnp.abs(kernels[1] - kernels[0])[1].min() > 0


def test_client_carries_the_support_only():
    state = worlds.state(WORLD, worlds.algorithm("fedavg"), TASK)
    parts, shared = (TASK, worlds.algorithm("fedavg"), local_training.sgd), (state, WORLD.data(), worlds.hyper())
    client = local_training.make_client(*parts, shared, WORLD.schedule(0), support=TASK.support)
    start = jax.eval_shape(lambda: client.init(0))
    carries = start, jax.eval_shape(lambda carry: client.step(carry, 0, 0), start)
    assert [carry.params["conv1"]["kernel"].shape for carry in carries] == 2 * [(1, 3, 3, 4)]


@pytest.mark.parametrize("changes", [{"weight_decay": 1e-3}, {"optimiser": "adamw"}])
def test_all_parameters_are_carried_where_those_without_gradient_change_too(changes):
    """Weight decay moves them."""
    assert registry.make_live(config.Config(**changes), TASK) is gradient_support.FULL_SUPPORT


def test_loss_refuses_images_of_another_shape():
    """Other parameters would have a gradient."""
    batch = Batch(jnp.zeros((2, 4, 4, 3), jnp.uint8), jnp.zeros(2, jnp.int32))
    with pytest.raises(UsageError, match=r"images of \(4, 4, 3\) for the loss of a task made for \(1, 2, 3\)"):
        TASK.loss(*worlds.variables(task=TASK), batch, jnp.ones(2, bool), True)


def live_boxes(init):
    return live_taps.record_live_taps(init)[1]()
