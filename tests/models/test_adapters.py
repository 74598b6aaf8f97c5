"""Low-rank adapters: the product, what they leave as it is, and runs that train them."""

import dataclasses
import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import programs, worlds

import fedvg_jax as fv
from fedvg_jax import resolve
from fedvg_jax.core import trained_part, tree
from fedvg_jax.models import adapters, pretrained


class Net(nn.Module):
    """Every kind of layer that can have an adapter, one strided, and some that cannot."""

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(6, (1, 1), (2, 2), padding="VALID", name="pointwise")(
            nn.Conv(3, (3, 3), name="spatial")(x)
        )
        x = nn.Conv(6, (1, 1), feature_group_count=2, name="grouped")(x)
        x = nn.Dense(7, name="mix")(nn.tanh(x))
        return nn.Dense(3, name="head")(nn.tanh(x.reshape(x.shape[0], -1)))


class Small(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, name="head")(nn.tanh(nn.Dense(4, name="mix")(x.reshape(x.shape[0], -1))))


IMAGES = np.random.default_rng(0).normal(size=(40, 4, 4, 2))
INCLUDE = "pointwise|mix"


@functools.cache
def make(net=Net, **options):
    """(task without adapters, task with them, its variables, with a B that is not 0)."""
    x = jnp.asarray(IMAGES[:1], jnp.float32)
    task = fv.linen_task(net(), optax.softmax_cross_entropy_with_integer_labels, x)
    variables = worlds.random_variables(task)
    adapted, start = fv.lora(task, variables, 2, **{"include": INCLUDE} | options)
    leaves = tree.by_path(start)
    for path, leaf in leaves.items():
        if path.endswith("lora_b"):
            leaves[path] = leaf + 0.3 * math.prod(leaf.shape)
    return task, adapted, start, jax.tree.structure(start).unflatten([*leaves.values()])


def test_adapters_compute_what_their_merged_kernels_do_and_at_first_nothing(x64):
    """At first to the bit: B is 0."""
    task, adapted, start, moved = make()
    batch = fv.Batch(jnp.asarray(IMAGES), jnp.arange(40) % 3)
    with_adapters = (moved, start)
    plain = (adapters.merged(moved), adapters.removed(moved))

    def predictions(task, models):
        return worlds.jit(lambda: [task.predict(*model, batch) for model in models])()

    actual, first = predictions(adapted, with_adapters)
    merged, base = predictions(task, plain)
    worlds.assert_close(actual, merged, 1e-12)
    np.testing.assert_array_equal(first, base)
    assert np.abs(actual - base).max() > 0.1
    names = {
        path.rpartition("/")[0] for path in tree.paths(start.params) if adapters.IS_ADAPTER(path)
    }
    assert names == {"mix", "pointwise"}


def test_no_client_has_a_kernel_or_its_gradient(x64):
    _, adapted, start, _ = make()
    trained, base = trained_part.split(start, trained_part.chooser(adapted))
    task = trained_part.bind(adapted, base)
    clients = 3
    batch = fv.Batch(jnp.asarray(IMAGES[:5]), jnp.zeros(5, int)), jnp.ones(5, bool)

    gradient = jax.grad(lambda params, rows: task.loss(params, {}, *rows, True)[0])
    stacked = tree.repeat((trained.params, batch), clients)
    kernels = {(clients, *leaf.shape) for leaf in jax.tree.leaves(base.params) if leaf.ndim > 1}
    for equation in programs.equations(jax.vmap(gradient), *stacked):
        assert not kernels & {made.aval.shape for made in equation.outvars}


def test_1x1_convolutions_of_a_named_network_have_adapters():
    task = resolve.model.named_task(fv.Config(model="efficientnet_lite0", lora=2), (32, 32, 3), 3)
    params = jax.eval_shape(task.init, jax.random.key(0)).params
    paths = filter(adapters.IS_ADAPTER, tree.paths(params))
    names = {path.split("/")[-2] for path in paths}
    assert names == {"expand_conv", "project_conv", "conv_head"}


# --- runs


def test_a_run_trains_adapters_and_what_is_named_beside_them():
    """FFA-LoRA leaves A out; FedSA-LoRA keeps B with the clients."""
    _, task, start, _ = make(Small, train="^head/")
    data = (IMAGES.astype(np.float32), np.arange(40) % 3)
    config = fv.Config(clients=2, join_ratio=1.0, rounds=2, partition="iid", local_epochs=2)
    given = {"task": task, "initial": start, "data": data}
    adapter, head = ["mix/lora_a", "mix/lora_b"], ["head/bias", "head/kernel"]
    choices = {"": head + adapter, "lora_b|head": [*head, "mix/lora_b"], "lora": adapter}
    for train, expected in choices.items():
        sim = fv.simulation(dataclasses.replace(config, train=train), **given)
        assert tree.paths(sim.state.variables.params) == expected
    ended = fv.run(config, **given).variables
    moves = tree.by_path(tree.sub(ended.params, start.params))
    assert [path for path, move in moves.items() if not move.any()] == ["mix/bias", "mix/kernel"]
    kept = fv.simulation(dataclasses.replace(config, local="lora_b"), **given)
    assert tree.paths(kept.state.clients.local.params) == ["mix/lora_b"]


def test_named_models_have_adapters_beside_a_pretrained_base(tmp_path):
    """The exported model is the base with the adapters in its kernels."""
    first = tmp_path / "first.safetensors"
    second = tmp_path / "second.safetensors"
    config = fv.Config(clients=4, rounds=1, alpha=10.0, local_epochs=1, lr=0.01, eval_every=1)
    plain = resolve.model.named_task(config, (8, 8, 1), 10)
    base = worlds.random_variables(plain)
    pretrained.save(first, base, "mlp")
    tuned = dataclasses.replace(config, init=first, lora=2, weighting="uniform", export=second)
    sim = fv.simulation(tuned)
    ended = fv.run(tuned)
    assert ended.records[-1]["bytes_up"] == 2 * 4 * (
        2 * (64 + 200) + 2 * (200 + 200) + 200 * 10 + 10
    )
    worlds.assert_close(sim.base.params["fc1"]["kernel"], base.params["fc1"]["kernel"], 0)
    exported = pretrained.load(second, base, "mlp", head=True)
    assert fv.evaluate(plain, exported, sim.data)["test_loss"] == pytest.approx(
        ended.records[-1]["test_loss"], rel=1e-5
    )
    with pytest.raises(fv.UsageError, match="lora 2 has no effect beside task="):
        fv.run(dataclasses.replace(config, lora=2), data=worlds.random_images(), task=worlds.TASK)
