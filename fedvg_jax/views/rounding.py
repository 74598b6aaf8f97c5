"""How far a number format moves a round: one round in it, and the same round in float32 throughout."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedvg_jax.config import Config
from fedvg_jax.core import hardware, tree
from fedvg_jax.core.types import Variables
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.runs import simulation


class Rounding(NamedTuple):
    """The first round in the run's format, beside float32."""

    weights: float
    """max_k |s_k - s_k in float32|"""
    mean_weight: float
    """1 / K, to judge that by"""
    step: float
    """||theta - theta in float32|| / ||theta in float32 - theta_g||, over the trained tensors"""


def is_float32(config: Config) -> bool:
    """Whether the run computes in float32 throughout already: the CPU's default does."""
    return config.precision == "highest" or (config.precision == "default" and hardware.choices().is_default_float32)


def in_float32(sim: simulation.Simulation) -> simulation.Simulation:
    """The same run in float32 throughout; for simulations made from their config."""
    config = dataclasses.replace(sim.config, precision="highest")
    return simulation.simulation(config, data=sim.arrays, partition=sim.partition)


def compare(sim: simulation.Simulation, exact: simulation.Simulation) -> Rounding:
    """Runs the first round of both; their states are not touched."""
    (found, weights), (expected, exact_weights) = _first_round(sim), _first_round(exact)
    gap = tree.sub(found.params, expected.params)
    moved = float(optax.tree.norm(tree.sub(expected.params, sim.state.variables.params)))
    return Rounding(
        float(np.abs(weights - exact_weights).max()),
        1 / len(weights),
        float(optax.tree.norm(gap)) / moved if moved else 0.0,
    )


def _first_round(sim: simulation.Simulation) -> tuple[Variables, np.ndarray]:
    state = jax.tree.map(jnp.copy, sim.state)  # a chunk takes over the memory of its state
    rounds = schedules.stack([sim.schedule(0)], simulation.MAX_ROUNDS)
    state, metrics = sim.chunk(state, np.int32(1), rounds, sim.data, sim.hyper)
    return state.variables, np.asarray(metrics.weights[0])
