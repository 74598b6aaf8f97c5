"""What is done to images: scaling, statistics, and augmentation by keys that depend on no executor."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds

from fedvg_jax import executors, local, round
from fedvg_jax import schedule as schedules
from fedvg_jax.models import pixels
from fedvg_jax.models import task as tasks
from fedvg_jax.types import Batch

IMAGES = np.random.default_rng(0).integers(1, 256, (6, 5, 7, 2), np.uint8)  # no pixel is black


def test_pixels_are_scaled_to_one_and_nothing_else_by_default():
    np.testing.assert_allclose(pixels.scale(jnp.asarray(IMAGES), jnp.float32), IMAGES / 255, rtol=1e-6)


def test_numbers_that_are_no_pixels_are_taken_as_they_are():
    x = np.float32([[1.5, -2]])
    np.testing.assert_array_equal(pixels.scale(jnp.asarray(x), jnp.float32), x)
    np.testing.assert_array_equal(pixels.scale(jnp.asarray(x.astype(int)), jnp.float32), [[1, -2]])


@pytest.mark.parametrize("name", ["imagenet", "half"])
@pytest.mark.parametrize("depth", [1, 3])
def test_normalised_pixels_are_less_their_mean_over_their_deviation(name, depth):
    """torchvision's documented ImageNet statistics; a grey image is three equal channels before them."""
    x = IMAGES[..., :1].repeat(depth, 3)
    mean, deviation = {
        "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        "half": ([0.5], [0.5]),
    }[name]
    expected = (x / 255 - np.array(mean)) / np.array(deviation)
    np.testing.assert_allclose(pixels.scale(jnp.asarray(x), jnp.float32, name), expected, rtol=1e-5, atol=1e-6)


def test_a_flipped_image_is_mirrored_or_as_it_was_and_half_are():
    keys = jax.random.split(jax.random.key(0), 400)
    flipped = np.asarray(jax.vmap(lambda key: pixels.flip(key, jnp.asarray(IMAGES)))(keys))
    mirrored = (flipped == IMAGES[:, :, ::-1]).all((2, 3, 4))
    assert (mirrored | (flipped == IMAGES).all((2, 3, 4))).all()
    # 2,400 fair coins: five deviations are 122
    assert abs(mirrored.sum() - 1200) <= 122
    assert len(set(map(tuple, mirrored.T))) == 6, "every image is flipped by itself"


def test_a_cropped_image_is_one_of_81_windows_of_the_padded_one():
    padded = np.pad(IMAGES, ((0, 0), (4, 4), (4, 4), (0, 0)))
    keys = jax.random.split(jax.random.key(1), 300)
    seen = set()
    for image, cropped in enumerate(
        np.asarray(jax.vmap(lambda k: pixels.crop(k, jnp.asarray(IMAGES)))(keys)).swapaxes(0, 1)
    ):
        windows = {padded[image, i : i + 5, j : j + 7].tobytes(): (i, j) for i in range(9) for j in range(9)}
        assert len(windows) == 81
        seen |= {windows[c.tobytes()] for c in cropped}
    assert len(seen) == 81


# --- inside a round


TASK = worlds.TASK
WORLD = worlds.small()
K = WORLD.cohort_size
EXECUTORS = {f"lanes {n}": executors.lanes(n) for n in (1, 3)} | {"vmapped": executors.vmapped()}


def make_round(executor, augment, task=TASK):
    algorithm = worlds.algorithm("fedavg")
    rule = worlds.weighting("samples", algorithm, task)
    return round.make_round(task, algorithm, rule, executor, local.sgd, len(WORLD.train), augment=augment)


def after(step, num_lanes, rounds=2, chunk_offset=0):
    state, data, hyper = worlds.state(WORLD, worlds.algorithm("fedavg")), WORLD.data(), worlds.hyper()
    for number in range(rounds):
        schedule = WORLD.schedule(number, num_lanes, capacity=64 + chunk_offset)
        if chunk_offset:  # as in a later round of a chunk, the minibatches lie elsewhere
            rows = np.concatenate([np.full_like(schedule.rows[:chunk_offset], -1), schedule.rows[:-chunk_offset]])
            schedule = schedule._replace(rows=rows, start=schedule.start + np.int32(chunk_offset))
        state, _ = step(state, jax.tree.map(jnp.asarray, schedule), data, hyper)
    return jax.tree.map(np.asarray, state.variables)


@functools.cache
def looped():
    task = TASK._replace(loss=jax.jit(TASK.loss, static_argnums=4))
    augment = jax.jit(pixels.AUGMENTATIONS["flip_crop"])
    return after(make_round(executors.looped(), augment, task), 1)


@pytest.mark.parametrize("name", EXECUTORS)
def test_every_executor_augments_as_the_loop_does(x64, name):
    executor = EXECUTORS[name]
    step = jax.jit(make_round(executor, pixels.AUGMENTATIONS["flip_crop"]), compiler_options=worlds.HASTE)
    worlds.assert_close(after(step, executor.num_lanes), looped(), 1e-9)
    if name == "lanes 1":
        worlds.assert_close(after(step, 1, chunk_offset=5), looped(), 1e-9)
        plain = jax.jit(make_round(executor, None), compiler_options=worlds.HASTE)
        assert np.abs(after(plain, 1).params["fc1"]["kernel"] - looped().params["fc1"]["kernel"]).max() > 1e-3


def test_a_key_belongs_to_a_seed_a_round_a_client_and_a_step():
    def keys(**changes):
        settings = {"number": 0, "seed": 0} | changes
        schedule = jax.tree.map(jnp.asarray, WORLD.schedule(**settings))
        of = jax.vmap(lambda k, m: jax.random.key_data(local.minibatch_key(schedule, k, m)), (None, 0))
        steps = [of(k, schedule.start[k] + jnp.arange(3)) for k in range(K)]
        return {
            (int(c), t): tuple(map(int, key))
            for c, mine in zip(schedule.clients, steps, strict=True)
            for t, key in enumerate(mine)
        }

    first = keys()
    assert len(set(first.values())) == 3 * K and keys(num_lanes=3) == first
    for other in (keys(seed=1), keys(number=1)):
        assert other.keys() == first.keys() and not set(other.values()) & set(first.values())
    halves = jax.random.split(jax.random.wrap_key_data(WORLD.schedule(0).key, impl="threefry2x32"))
    assert not set(first.values()) & set(map(tuple, jax.random.key_data(halves).tolist()))


def test_without_augmentation_the_program_draws_nothing():
    schedule = jax.tree.map(jnp.asarray, WORLD.schedule(0))
    arguments = worlds.state(WORLD, worlds.algorithm("fedavg")), schedule, WORLD.data(), worlds.hyper()
    programs = {
        a: str(jax.make_jaxpr(make_round(executors.lanes(1), pixels.AUGMENTATIONS[a]))(*arguments))
        for a in ("none", "flip")
    }
    assert programs["none"].count("random_fold_in") == 0 < programs["flip"].count("random_fold_in")


def test_scores_and_evaluations_never_see_an_augmented_image():
    """An augmentation that raises whenever it meets the rows of D_val or of the test set would go off."""
    kept = {*WORLD.scoring.ravel().tolist(), *WORLD.test.tolist()} - {-1}
    marked = WORLD.pool._replace(y=np.where(np.isin(np.arange(len(WORLD.pool.y)), list(kept)), 2, WORLD.pool.y % 2))
    seen = []

    def watch(key, batch):
        jax.debug.callback(lambda y: seen.append(np.asarray(y)), batch.y)
        return batch

    algorithm = worlds.algorithm("fedavg")
    rule = worlds.weighting("fedvg", algorithm, TASK, WORLD.batch_size)
    step = round.make_round(TASK, algorithm, rule, executors.lanes(1), local.sgd, len(WORLD.train), augment=watch)
    schedule = WORLD.schedule(0)
    padding = (schedule.rows < 0).any()
    marked.y[0] = 0 if padding else marked.y[0]  # row 0 stands in for padding
    data = WORLD.data()._replace(pool=Batch(*map(jnp.asarray, marked)))
    state = worlds.state(WORLD, algorithm)
    jax.block_until_ready(
        jax.jit(step, compiler_options=worlds.HASTE)(state, jax.tree.map(jnp.asarray, schedule), data, worlds.hyper())
    )
    jax.effects_barrier()
    assert len(seen) == schedules.length(schedule) and not (np.concatenate(seen) == 2).any()


def test_a_task_normalises_in_training_and_in_evaluation(x64):
    from fedvg_jax.models.mlp import MLP

    task = tasks.classification(MLP(2, ()), 2, (2, 2, 1), normalise="imagenet")
    params = jax.eval_shape(task.init, jax.random.key(0)).params
    assert params["classifier"]["kernel"].shape == (12, 2), "one grey channel is three"
    rng = np.random.default_rng(0)
    kernel, x = rng.normal(size=(12, 2)), rng.integers(0, 256, (3, 2, 2, 1), np.uint8)
    params = {"classifier": {"kernel": jnp.asarray(kernel), "bias": jnp.zeros(2)}}
    found = task.predict(params, {}, Batch(jnp.asarray(x), jnp.zeros(3, jnp.int32)))
    normalised = (x / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    np.testing.assert_allclose(found, normalised.reshape(3, -1) @ kernel, rtol=1e-9)
