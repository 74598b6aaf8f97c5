"""The cases of `rounds`: model, data and clients of each. Importing this module does not import jax."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax import config as configs, data as datasets
from fedvg_jax.config import Config, options
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions.client_rows import Partition


class Case(NamedTuple):
    """A federated round to time."""

    model: str
    """a model of the package; or logistic, mlp64, mlp200, pfl_cnn, which only the benchmarks define"""
    settings: dict[str, Any]
    images: int = 0
    """size of the pool; 0 for the digits"""
    rounds: int = 1
    """rounds in one timing"""
    description: str = ""
    each_core: bool = False
    """whether ours trains one client per core; otherwise the package chooses the number of devices"""
    checked_steps: int | None = None
    """local steps of each client after which contestants must agree; None: all of the first round's"""
    enlarged: int = 1
    """times that each pixel of CIFAR-10 is repeated in both directions"""


def _read() -> dict[str, Case]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return {name: Case(**fields) for name, fields in tomllib.loads(text).items()}


CASES = _read()


def config(case: Case) -> Config:
    """Returns the settings of a case. A model that only the benchmarks define is passed as a task, see `task`."""
    drawn = {} if case.model == "pfl_cnn" else {"min_samples": 2, "partition_seed": 1}
    config = configs.apply(Config(), {"rounds": case.rounds, **drawn, **case.settings}, "benchmark")
    return dataclasses.replace(config, model=case.model if case.model in PACKAGE_MODELS else "mlp")


PACKAGE_MODELS = ("lenet5", "cnn", "resnet18", "vit_s16", "efficientnet_lite0")


def arrays(case: Case, data_dir: Path | None) -> Arrays:
    """Returns the digits, or the first `case.images` images of CIFAR-10; noise of their shape without `data_dir`."""
    if not case.images:
        return datasets.load("digits")
    size = case.images + (_HELD_OUT if case.model == "pfl_cnn" else 0)
    if data_dir:
        cifar10 = datasets.load("cifar10", data_dir, options.default_cache_dir() / "data")
        images = cifar10._replace(
            x=cifar10.x[:size], y=cifar10.y[:size], num_train=min(size, cifar10.num_train)
        )
    else:
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, (size, 32, 32, 3), np.uint8)
        y = rng.integers(0, 10, size).astype(np.int32)
        images = Arrays("noise in the shape of CIFAR-10", x, y, tuple(map(str, range(10))), size)
    return images._replace(x=images.x.repeat(case.enlarged, 1).repeat(case.enlarged, 2))


def partition(case: Case) -> Partition | None:
    """Returns equal clients for pfl_cnn; None for the other cases, which draw it from their settings."""
    if case.model != "pfl_cnn":
        return None
    rows = np.random.default_rng(0).permutation(case.images)
    val, test = np.split(np.arange(case.images, case.images + _HELD_OUT), 2)
    return equal_clients(case.settings["clients"], rows, val, test)


def equal_clients(clients: int, train: np.ndarray, val: np.ndarray, test: np.ndarray) -> Partition:
    """Returns a partition of rows into equal clients, the first of which also has the rows for validation and test."""
    empty = [val[:0]] * (clients - 1)
    return Partition(np.split(train, clients), [val, *empty], [test, *empty])


_HELD_OUT = 128
"""Images of pfl_cnn for validation and test, which its rounds do not use."""


def task(case: Case, conv: str = "auto"):
    """Returns the task of a model that only the benchmarks define; None for the package's models."""
    from fedvg_jax.models import plain, task as tasks
    from fedvg_jax.models.conv.rewrite import fast_task

    hidden = {"logistic": (), "mlp64": (64,), "mlp200": (200, 200)}
    if case.model in hidden:
        return tasks.classification(plain.MLP(10, hidden[case.model]), 10, (8, 8, 1))
    if case.model == "pfl_cnn":
        return fast_task(tasks.classification(_pfl_cnn(), 10, (32, 32, 3)), conv)
    return None


def _pfl_cnn():
    """Returns pfl-research's simple CNN: 3x3 convolutions 32 and 64, max-pool, dense 128; 1,626,442 parameters.

    Without its two dropouts.
    """
    import flax.linen as nn

    from fedvg_jax.models.layers import conv, dense, pool

    class PflCNN(nn.Module):
        @nn.compact
        def __call__(self, x, mask, train: bool):
            x = nn.relu(conv(x, 32, 3, "conv1"))
            x = nn.relu(pool(conv(x, 64, 3, "conv2")))
            return dense(nn.relu(dense(x.reshape(len(x), -1), 128, "fc1")), 10, "classifier")

    return PflCNN()


def compile_rounds(sim, planned: list):
    """Returns the compiled program of a simulation's rounds, and its argument for these schedules."""
    from fedvg_jax.engine import schedule
    from fedvg_jax.runs.assemble import tables

    stacked = schedule.stack(planned, tables.MAX_ROUNDS)
    arguments = (sim.state, np.int32(0), stacked, sim.data, sim.hyper)
    return sim.chunk.lower(*arguments).compile(), stacked


def image_gradients(schedules, scoring: np.ndarray, scored: bool) -> dict[str, int]:
    """Returns the rows that go through a forward and backward pass in these rounds, in training and in scoring.

    Args:
        schedules: of the rounds.
        scoring: [groups, B] the rows of D_val in minibatches, padded with -1.
        scored: whether the weighting scores clients on D_val.
    """
    trained = sum(int((s.rows >= 0).sum()) for s in schedules)
    return {
        "train": trained,
        "score": int((scoring >= 0).sum()) * sum(len(s.clients) for s in schedules) * scored,
    }
