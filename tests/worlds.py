"""A world to run rounds in: a network of 44 parameters, a small pool, ragged clients."""

from collections.abc import Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedvg_jax import round, schedule, tree
from fedvg_jax.models import task as tasks
from fedvg_jax.models.layers import dense, flatten
from fedvg_jax.models.norm import BatchNorm
from fedvg_jax.types import Algorithm, Batch, Data, Hyper, Schedule, SimState, Task, Variables

IMAGE, HIDDEN, CLASSES = (1, 2, 3), 5, 3


class Net(nn.Module):
    """dense 6 -> 5, BatchNorm, ReLU, dense 5 -> 3; the network of the oracle."""

    @nn.compact
    def __call__(self, x, mask, train: bool):
        x = dense(flatten(x), HIDDEN, "fc1")
        x = nn.relu(BatchNorm(name="bn1")(x, mask, train))
        return dense(x, CLASSES, "classifier")


TASK = tasks.classification(Net(), CLASSES, IMAGE)


class World(NamedTuple):
    """Who holds what; NumPy."""

    pool: Batch
    train: Sequence[np.ndarray]
    """rows of every client"""
    scoring: np.ndarray
    test: np.ndarray
    """rows, not a table"""
    batch_size: int
    cohort_size: int
    local_epochs: int

    def schedule(self, number: int, num_lanes: int = 1, seed: int = 0, capacity: int = 64) -> Schedule:
        return schedule.make(
            number,
            self.train,
            seed=seed,
            cohort_size=self.cohort_size,
            local_epochs=self.local_epochs,
            batch_size=self.batch_size,
            num_lanes=num_lanes,
            capacity=capacity,
        )

    def data(self) -> Data:
        tables = (jnp.asarray(table) for table in (self.scoring, self.scoring, self.test[:, None]))
        return Data(Batch(*map(jnp.asarray, self.pool)), *tables)


def world(sizes: Sequence[int], *, batch_size: int, cohort_size: int, local_epochs: int, seed: int = 0) -> World:
    """Clients of the given sizes; D_val is 10 rows, so that with batches of 4 its last group is partial, and its table
    has an empty group besides."""
    rng = np.random.default_rng(seed)
    val, test = 10, 13
    size = sum(sizes) + val + test
    pool = Batch(rng.integers(0, 256, (size, *IMAGE), np.uint8), rng.integers(0, CLASSES, size, np.int32))
    parts = np.split(rng.permutation(size).astype(np.int32), np.cumsum([*sizes, val]))
    scoring = schedule.table(parts[-2], batch_size, -(-val // batch_size) + 1)
    return World(pool, parts[:-2], scoring, parts[-1], batch_size, cohort_size, local_epochs)


def small() -> World:
    """Seven clients, five a round: several batches, one row (skipped), a last batch of one row (skipped), none."""
    return world([11, 1, 5, 0, 2, 8, 3], batch_size=4, cohort_size=5, local_epochs=2)


def ragged() -> World:
    """Clients of 1 to 200 rows, all in every round."""
    return world([7, 1, 200, 2, 64, 33, 120, 1, 17, 5], batch_size=16, cohort_size=10, local_epochs=1)


def variables(seed: int = 0, task: Task = TASK) -> Variables:
    """The network's arrays, none of them at a special value, in the precision of the moment."""
    with jax.enable_x64(False):
        start = jax.tree.map(np.asarray, jax.jit(task.init)(jax.random.key(seed)))
    rng = np.random.default_rng(seed)
    moved = jax.tree.map(lambda x: x + rng.uniform(0, 0.3, x.shape), start)
    return jax.tree.map(lambda x: jnp.asarray(x, float), moved)


def state(world: World, algorithm, task: Task = TASK) -> SimState:
    """The state before the first round, from `variables`."""
    known = variables(task=task)
    return round.init(task._replace(init=lambda key: known), algorithm, len(world.train), jax.random.key(0))


def hyper(lr: float = 0.3, eps: float = 1e-3) -> Hyper:
    """Like `build.make_hyper`, in the precision of the moment."""
    return {"lr": jnp.asarray(lr, float), "eps": jnp.asarray(eps, float)}


def busybody() -> Algorithm:
    """Of no use but to the tests: it has every memory, sends a message and reads every argument."""

    def init(params):
        return {"c": tree.zeros_like(params)}, {"c": tree.zeros_like(params), "steps": jnp.zeros((), jnp.int32)}

    def correct(hyper, grads, params, anchor):
        def one(g, p, theta, c, own):
            return g + 0.5 * (p - theta) + c - own

        return jax.tree.map(one, grads, params, anchor.params, anchor.server["c"], anchor.client["c"])

    def report(hyper, params, anchor, num_steps):
        def one(p, theta, c, own):
            return own - c + (theta - p) / (hyper["lr"] * (1 + num_steps).astype(p.dtype))

        own = jax.tree.map(one, params, anchor.params, anchor.server["c"], anchor.client["c"])
        memory = {"c": own, "steps": anchor.client["steps"] + num_steps}
        return memory, tree.sub(own, anchor.client["c"])

    def residual(hyper, server, params, cohort):
        def one(p, u, m, w, c):
            mean = m.sum(0) / cohort.num_clients
            return 0.1 * p - 0.25 * u + hyper["eps"] * jnp.tensordot(w, m, 1), c + mean

        both = jax.tree.map(one, params, cohort.update, cohort.messages, cohort.weights, server["c"])
        added, c = jax.tree.transpose(jax.tree.structure(params), jax.tree.structure((0, 0)), both)
        return added, {"c": c}

    return Algorithm(init, correct, report, residual, native_weighting="uniform")


def by_path(variables_part) -> dict[str, np.ndarray]:
    """A tree as the oracle wants it, path -> float64."""
    return dict(
        zip(tree.paths(variables_part), (np.asarray(x, float) for x in jax.tree.leaves(variables_part)), strict=True)
    )


def assert_close(actual, expected, tolerance: float) -> None:
    """Equal up to `tolerance` of max(1, |expected|), entry by entry, with the leaf named."""
    jax.tree.map_with_path(
        lambda path, a, e: np.testing.assert_allclose(
            a, e, rtol=tolerance, atol=tolerance, err_msg=jax.tree_util.keystr(path)
        ),
        actual,
        expected,
    )
