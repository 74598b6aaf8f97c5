"""The program of an accelerator computes what a CPU's does: its choices, taken here, in double precision.

Three rounds of five of six clients: one without a step, one with non-finite rows, one that drops out in the second
round. D_val fills neither its last group nor its last pass.
"""

import functools
import itertools
from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from support import worlds

from fedvg_jax import config as configs, resolve
from fedvg_jax.core import groups, norms, tree
from fedvg_jax.core.types import Batch
from fedvg_jax.engine import federated_round, local_training, schedule
from fedvg_jax.host import hardware as hw
from fedvg_jax.models import layers, task as tasks
from fedvg_jax.models.conv.rewrite import fast_task
from fedvg_jax.weightings import signals
from fedvg_jax.weightings.fedvg import NormParts, inverse_norms

SIZES, BATCH, ROUNDS = [11, 2, 5, 0, 8, 3], 4, 3
ONE_CPU = hw.Hardware("cpu", "", num_devices=1, cores=1, memory_bytes=None)
IMAGE = (3, 2, 2)
NORMS = ("l1", "l2")
CONFIG = configs.Config(
    clients=len(SIZES),
    join_ratio=0.85,
    batch_size=BATCH,
    local_epochs=2,
    min_samples=1,
    model="tinycnn",
)


# --- the data


@functools.cache
def world():
    """The clients; pixels are floats, NaN in those of client 4."""
    made = worlds.world(SIZES, batch_size=BATCH, cohort_size=5, local_epochs=2)
    x = np.random.default_rng(1).uniform(size=(len(made.pool.y), *IMAGE))
    x[made.train[4]] = np.nan
    return made._replace(pool=Batch(x, made.pool.y))


def rounds_of(executor):
    """The schedules of an executor; client 0 drops out in the second round."""
    options = {"probe_ratio": 0.5, "lanes_together": executor.lanes_together}
    rounds = [world().schedule(number, executor.num_lanes, **options) for number in range(ROUNDS)]
    rounds[1] = rounds[1]._replace(participating=rounds[1].clients != 0)
    return schedule.stack(rounds, ROUNDS)


def play(config, hardware):
    """The state after the rounds and their metrics, for every norm and two sizes of D_val, on this hardware."""
    made, hyper = world(), worlds.hyper(lr=0.05)
    with jax.numpy_dtype_promotion("standard"), hw.assumed(hardware):
        task, algorithm, executor, chunk = program(config)
        start = worlds.random_variables(task)
        state = federated_round.init_state(task, algorithm, len(SIZES), hyper, variables=start)
        planned, compiled, results = rounds_of(executor), None, []
        for count, rule in itertools.product((7, 10), range(len(NORMS))):
            val = made.val[:count]
            data = made._replace(scoring=schedule.table(val, BATCH, 5), val=val).data()
            values = hyper | {"rule": jnp.int32(rule)}
            arguments = tree.copies(state), np.int32(ROUNDS), planned, data, values
            if compiled is None:
                compiled = chunk.lower(*arguments).compile(compiler_options=worlds.HASTE)
            results.append(jax.device_get(compiled(*arguments)))
        return results


class ConvNet(nn.Module):
    """Convolution, BatchNorm, ReLU, dense."""

    @nn.compact
    def __call__(self, x, mask, train: bool):
        x = nn.Conv(2, (2, 2), name="conv1")(x)
        x = nn.relu(layers.BatchNorm(name="bn1")(x, mask, train))
        return nn.Dense(worlds.CLASSES, name="classifier")(x.reshape(len(x), -1))


def menu(task):
    """FedVG by the L1 norm, modelwise, and by L2, layerwise, of one gradient."""
    gradient = signals.validation_gradient(
        task, True, functools.partial(hw.groups_per_scoring_pass, BATCH, 0)
    )
    rules = [
        inverse_norms(NormParts(gradient, grouping, task.block_of))
        for grouping in (groups.modelwise, groups.layerwise)
    ]

    def signal(*report):
        of_client = gradient(*report)
        return [norms.tensor_norms(norms.BY_NAME[name])(of_client) for name in NORMS]

    return worlds.any_of(rules)._replace(signal=signal)


def program(config):
    """The round of every part of an algorithm, with `menu`: (task, algorithm, executor, jitted chunk)."""
    task = fast_task(tasks.classification(ConvNet(), worlds.CLASSES, IMAGE), "auto")
    algorithm, executor = worlds.full_algorithm(), resolve.machine.make_executor(config)
    step = federated_round.make_round(
        task, algorithm, menu(task), executor, local_training.sgd, len(SIZES)
    )
    return task, algorithm, executor, jax.jit(federated_round.make_chunk(step), donate_argnums=0)


def test_an_accelerator_s_rounds_equal_those_of_a_cpu(x64):
    expected = play(CONFIG, ONE_CPU)
    gpu = ONE_CPU._replace(platform="gpu")
    for one, other in zip(play(replace(CONFIG, lanes="4"), gpu), expected, strict=True):
        assert not one[1].finite.all() and one[1].finite.any()
        worlds.assert_close(one, other, 1e-9)
