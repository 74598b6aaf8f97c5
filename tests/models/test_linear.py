"""The linear head against its equation."""

import jax
import numpy as np

import fedvg_jax as fv
from fedvg_jax.core.types import Batch
from fedvg_jax.runs import registry


def test_scores_of_the_linear_head_are_x_times_w_transposed_plus_b():
    task = registry.named_task(fv.Config(model="linear"), (5,), 3)
    variables, x = task.init(jax.random.key(0)), np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    head = jax.tree.map(np.asarray, variables.params["classifier"])
    scores = task.predict(*variables, Batch(x, np.zeros(4, np.int32)))
    np.testing.assert_allclose(scores, x @ head["weight"].T + head["bias"], rtol=1e-5, atol=1e-6)
