"""The program of an accelerator computes what a CPU's does: its choices, taken here, in double precision.

Three rounds of five of six clients: one without a step, one with non-finite rows, one that drops out in the second
round. D_val fills neither its last group nor its last pass.
"""

import functools
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

SIDE = {"lanes": "4", "client_chunk": 0, "scoring": 1024}
"""Choices that are the accelerator's: lanes, and the rows of a scoring pass."""


# --- the data


@functools.cache
def world(image):
    """The clients; pixels are floats, NaN in those of client 4."""
    made = worlds.world(SIZES, batch_size=BATCH, cohort_size=5, local_epochs=2)
    x = np.random.default_rng(1).uniform(size=(len(made.pool.y), *image))
    x[made.train[4]] = np.nan
    return made._replace(pool=Batch(x, made.pool.y))


def rounds_of(config, executor, image):
    """The schedules of a config on an executor; client 0 drops out in the second round."""
    options = {"probe_ratio": 0.5, "lanes_together": executor.lanes_together}
    if config.client_chunk:
        options["client_chunk_size"] = configs.client_chunk_size(config)
    rounds = [
        world(image).schedule(number, executor.num_lanes, **options) for number in range(ROUNDS)
    ]
    rounds[1] = rounds[1]._replace(participating=rounds[1].clients != 0)
    return schedule.stack(rounds, ROUNDS)


def play(config, image, hardware, program_of, rules=(0,)):
    """The state after the rounds and their metrics, for every rule and two sizes of D_val, on this hardware.

    Args:
        program_of: (config, image) -> (task, algorithm, executor, jitted chunk).
    """
    # FedDecorr divides rounding by 1e-4
    made, hyper = (
        world(image),
        worlds.hyper(lr=0.05, **{"feddecorr.beta": 0.01}),
    )
    with jax.numpy_dtype_promotion("standard"), hw.assumed(hardware):
        task, algorithm, executor, chunk = program_of(config, image)
        start = worlds.random_variables(task)
        state = federated_round.init_state(task, algorithm, len(SIZES), hyper, variables=start)
        planned = rounds_of(config, executor, image)
        cases = [
            (
                made._replace(
                    scoring=schedule.table(made.val[:count], BATCH, 5), val=made.val[:count]
                ).data(),
                rule,
            )
            for count in (7, 10)
            for rule in rules
        ]

        def arguments(data, rule):
            return (
                tree.copies(state),
                np.int32(ROUNDS),
                planned,
                data,
                hyper | {"rule": jnp.int32(rule)},
            )

        run = chunk.lower(*arguments(*cases[0])).compile(compiler_options=worlds.HASTE)
        return [jax.device_get(run(*arguments(*case))) for case in cases]


def accelerator(monkeypatch, case):
    """A GPU with the choices of a case, which its name has: stored programs are those of their hardware."""
    values = {"rows_per_scoring_pass": case["scoring"]}
    monkeypatch.setattr(hw, "ACCELERATOR", hw.ACCELERATOR._replace(**values))
    return hw.Hardware("gpu", repr(values), num_devices=1, cores=1, memory_bytes=None)


def settings(**changes):
    size = {
        "clients": len(SIZES),
        "join_ratio": 0.85,
        "batch_size": BATCH,
        "local_epochs": 2,
        "min_samples": 1,
    }
    return replace(configs.Config(**size), **changes)


def compare(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        assert not one[1].finite.all() and one[1].finite.any()
        worlds.assert_close(one, other, 1e-9)


class ConvNet(nn.Module):
    """Convolution, BatchNorm, ReLU, dense."""

    @nn.compact
    def __call__(self, x, mask, train: bool):
        x = nn.Conv(2, (2, 2), name="conv1")(x)
        x = nn.relu(layers.BatchNorm(name="bn1")(x, mask, train))
        return nn.Dense(worlds.CLASSES, name="classifier")(x.reshape(len(x), -1))


NORMS = ("l1", "l2")


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


def small_program(config, image):
    """The round of every part of an algorithm, with `menu`."""
    task = fast_task(tasks.classification(ConvNet(), worlds.CLASSES, image), "auto")
    algorithm, executor = worlds.full_algorithm(), resolve.machine.make_executor(config)
    step = federated_round.make_round(
        task, algorithm, menu(task), executor, local_training.sgd, len(SIZES)
    )
    return task, algorithm, executor, jax.jit(federated_round.make_chunk(step), donate_argnums=0)


def test_an_accelerator_s_rounds_equal_those_of_a_cpu(x64, monkeypatch):
    image, rules = (3, 2, 2), range(len(NORMS))
    expected = play(settings(model="tinycnn"), image, ONE_CPU, small_program, rules)
    config = settings(model="tinycnn", lanes=SIDE["lanes"], client_chunk=SIDE["client_chunk"])
    compare(play(config, image, accelerator(monkeypatch, SIDE), small_program, rules), expected)
