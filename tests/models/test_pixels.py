"""Scaling, normalisation and augmentation of images, with keys that do not depend on the executor."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

from fedvg_jax.core import tree
from fedvg_jax.engine import executors, local_training, schedule as schedules
from fedvg_jax.models import task as tasks, transforms
from fedvg_jax.models.plain import MLP

IMAGES = np.random.default_rng(0).integers(1, 256, (6, 5, 7, 2), np.uint8)  # no pixel is black


def test_inputs_of_other_dtypes_are_not_scaled():
    x = np.float32([[1.5, -2]])
    np.testing.assert_array_equal(tasks.scale(jnp.asarray(x), jnp.float32), x)
    np.testing.assert_array_equal(tasks.scale(jnp.asarray(x.astype(int)), jnp.float32), [[1, -2]])


@pytest.mark.parametrize(
    ("name", "depth"), [("none", 1), ("imagenet", 1), ("imagenet", 3), ("half", 1)]
)
def test_normalised_pixels_are_centred_and_divided_by_the_deviation(name, depth):
    """With torchvision's documented ImageNet statistics; a grayscale image counts as three equal channels."""
    x = IMAGES[..., :1].repeat(depth, 3)
    mean, deviation = {
        "none": (0.0, 1.0),
        "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        "half": (0.5, 0.5),
    }[name]
    scaled = tasks.scale(jnp.asarray(x), jnp.float32, name)
    np.testing.assert_allclose(scaled, (x / 255 - mean) / deviation, rtol=1e-5, atol=1e-6)


def augmented(augment, keys):
    return np.asarray(worlds.jit(jax.vmap(augment, (0, None)))(keys, IMAGES))


def test_flip_mirrors_half_of_the_images_and_keeps_the_others():
    keys = jax.random.split(jax.random.key(0), 400)
    flipped = augmented(transforms.flip, keys)
    mirrored = (flipped == IMAGES[:, :, ::-1]).all((2, 3, 4))
    assert (mirrored | (flipped == IMAGES).all((2, 3, 4))).all()
    # 2,400 fair coins: five standard deviations are 122
    assert abs(mirrored.sum() - 1200) <= 122
    assert len(set(map(tuple, mirrored.T))) == 6, "images are flipped independently"


def test_crop_takes_each_of_the_81_windows_of_the_padded_image():
    padded = np.pad(IMAGES, ((0, 0), (4, 4), (4, 4), (0, 0)))
    keys = jax.random.split(jax.random.key(1), 300)
    cropped = augmented(transforms.crop, keys)
    taken = set()
    for image in range(len(IMAGES)):
        windows = {
            padded[image, i : i + 5, j : j + 7].tobytes(): (i, j)
            for i in range(9)
            for j in range(9)
        }
        assert len(windows) == 81
        taken |= {windows[window.tobytes()] for window in cropped[:, image]}
    assert len(taken) == 81


# --- inside a round


TASK = tasks.classification(MLP(worlds.CLASSES, ()), worlds.CLASSES, worlds.IMAGE)
WORLD = worlds.small()
K = WORLD.cohort_size


def trained(train, num_lanes, offset):
    """Returns the clients of a round after `train`, of an executor.

    Their minibatches begin `offset` rows into the schedule's table, as those of a later round of a chunk do.
    """
    schedule = WORLD.schedule(1, num_lanes)
    schedule = schedule._replace(
        rows=np.roll(schedule.rows, offset, 0),
        start=schedule.start + np.int32(offset),
        state_rows=schedule.clients,
    )
    algorithm = worlds.algorithm("fedavg")
    augment = transforms.AUGMENTATIONS["flip_crop"]
    parts = TASK, algorithm, local_training.sgd
    make_client = functools.partial(local_training.make_client, *parts, augment=augment)
    shared = worlds.state(WORLD, algorithm, TASK), WORLD.data(), worlds.hyper()
    return train(make_client, shared, jax.tree.map(jnp.asarray, schedule))


def test_lanes_augment_as_the_python_loop(x64):
    train = worlds.jit(executors.lanes(3).train, static_argnums=0)
    worlds.assert_close(trained(train, 3, 5), trained(worlds.looped, 1, 0), 1e-9)


def test_augmentation_keys_differ_by_seed_round_client_and_step():
    def keys(**changes):
        schedule = jax.tree.map(jnp.asarray, WORLD.schedule(**{"number": 0, "seed": 0} | changes))

        @worlds.jit
        @jax.vmap
        def of(k, start):
            minibatch_key = functools.partial(local_training.minibatch_key, schedule, k)
            return jax.random.key_data(jax.vmap(minibatch_key)(start + jnp.arange(3)))

        steps = np.asarray(of(jnp.arange(K), schedule.start)).tolist()
        clients = schedule.clients.tolist()
        return {(c, *key) for c, mine in zip(clients, steps, strict=True) for key in mine}

    first = keys()
    assert len({key[1:] for key in first}) == 3 * K and keys(num_lanes=3) == first
    assert not first & (keys(seed=1) | keys(number=1))


def test_only_training_minibatches_are_augmented_once_each():
    augmented, schedule = [], WORLD.schedule(0)

    def record(key, batch):
        jax.debug.callback(augmented.append, batch.x)
        return batch

    arguments = WORLD, [schedule], worlds.algorithm("fedavg"), "fedvg", TASK
    worlds.play(*arguments, executor=executors.lanes(1), augment=record)
    jax.effects_barrier()
    rows = schedule.rows[: schedules.num_minibatches(schedule)]
    expected, _ = tree.gather(WORLD.pool, rows)
    actual = [np.asarray(x).tobytes() for x in augmented]
    assert sorted(actual) == sorted(x.tobytes() for x in np.asarray(expected.x))
