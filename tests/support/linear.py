"""Linear regression on 240 rows, which compiles fast, for tests of whole runs."""

import jax.numpy as jnp
import numpy as np

from fedvg_jax.core.types import Task, Variables


def _loss(params, stats, batch, mask, train):
    errors = jnp.square(batch.x @ params["w"] - batch.y.astype(jnp.float32))
    return jnp.where(mask, errors, 0).sum() / jnp.maximum(mask.sum(), 1).astype(jnp.float32), stats


TASK = Task(
    init=lambda key: Variables({"w": jnp.ones(3)}, {}),
    loss=_loss,
    predict=lambda params, stats, batch: batch.x @ params["w"],
    measure=lambda *batch: {"loss": _loss(*batch, False)[0], "batches": jnp.ones(())},
    metrics=lambda sums: {"loss": float(sums["loss"] / sums["batches"])},
    block_of=str,  # one tensor, one block
)


def data() -> tuple[np.ndarray, np.ndarray]:
    """Returns x [240, 3] and y [240]."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(240, 3)).astype(np.float32), rng.integers(0, 3, 240, np.int32)


GIVEN = {"data": data(), "task": TASK}
"""Arguments of a run."""
