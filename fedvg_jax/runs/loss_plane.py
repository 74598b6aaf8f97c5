"""The loss on a plane through the global model, with the clients' models and where weightings take the round.

The picture is that of the paper's Figure 2, computed: the plane is spanned by the two principal directions of the
clients' updates, or by two random directions whose filters have the norms of the model's (Li et al. 2018).
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedvg_jax.algorithms.base import no_residual
from fedvg_jax.config import Config
from fedvg_jax.config.robustness import Robust, Tuning
from fedvg_jax.core import checks
from fedvg_jax.core.types import (
    RoundStep,
    Schedule,
    SimState,
    Task,
    Tree,
    UsageError,
    Variables,
    Weighting,
)
from fedvg_jax.engine.evaluate import make_evaluate
from fedvg_jax.runs import history, host_memories, programs, provenance, recorder, registry, simulation
from fedvg_jax.runs.weighting_registry import make_fedvg
from fedvg_jax.weightings import basic
from fedvg_jax.weightings.given import combined, given

RULES = ("FedAvg", "uniform", "FedVG")
"""Weightings whose new global models are shown."""

DIRECTIONS = ("updates", "random")
MARGIN = 0.25
"""Part of the extent of the points that the grid reaches beyond them."""


class LossPlane(NamedTuple):
    """Losses on a grid, and the points of a round projected onto the plane."""

    number: int
    """of the round, from 1"""
    directions: str
    """`updates` or `random`"""
    axes: np.ndarray
    """[2, n] coordinates along the directions, the global model at 0. The directions of the updates have length 1;
    random ones have, filter by filter, the length of the model's."""
    losses: dict[str, np.ndarray]
    """part, val or test -> [n, n] mean loss; rows follow the second direction"""
    clients: list[int]
    """[K]"""
    points: np.ndarray
    """[K, 2] coordinates of the clients' models"""
    rules: dict[str, np.ndarray]
    """name of a weighting -> [2] coordinates of its new global model"""
    explained: float
    """share of the squared lengths of the updates that lies in the plane"""


def of_run(folder: Path, *, directions: str = "updates", num_points: int = 25) -> LossPlane:
    """Returns the plane of the round that follows the newest checkpoint of a run folder.

    Args:
        folder: run folder of a run with its settings' own data, model and algorithm.
        directions: `updates` or `random`.
        num_points: n, grid points along each direction.

    Raises:
        UsageError: there is no checkpoint, the data or the partition changed, or the settings do not serve.
    """
    return loss_plane(*restored(folder), directions=directions, num_points=num_points)


def restored(folder: Path) -> tuple[simulation.Simulation, SimState, int]:
    """Returns the simulation of a run with the weights of `RULES`, its newest stored state, and that state's round.

    Raises:
        UsageError: see `of_run`.
    """
    stored = history.read_config(folder)
    config = dataclasses.replace(stored, devices=1, record="", resume=None, pool="device")
    sim = simulation.simulation(config, weighting=functools.partial(_choosing, config))

    def digests() -> dict[str, str]:
        return provenance.sources(sim.arrays, sim.partition, sim.data.pool)

    state, number = recorder.newest_state(folder, stored, sim.state, digests)
    if host := sim.host_memories:
        state = host_memories.load(host, host_memories.store_of(host, state), state, sim.schedule(number).clients)
    return sim, state, number


def loss_plane(
    sim: simulation.Simulation, state: SimState, number: int, *, directions: str = "updates", num_points: int = 25
) -> LossPlane:
    """Returns the plane of one round.

    Running statistics are those of the model that uniform weights give, at every point of the grid.

    Args:
        sim: as `restored` returns it.
        state: before the round.
        number: of the round, from 0.
        directions: `updates` or `random`.
        num_points: n, grid points along each direction.

    Raises:
        UsageError: the clients' updates lie on one line, or the directions are unknown.
    """
    checks.named(dict.fromkeys(DIRECTIONS), directions, "directions")
    clients = [int(k) for k in np.asarray(sim.schedule(number).clients)]
    models = models_of_round(sim, state, number)
    offsets = jax.tree.map(lambda stack, x: stack - x[None], models.params, state.variables.params)
    updates = jax.tree.map(lambda leaf: leaf[: len(clients)], offsets)
    is_random = directions == "random"
    span = random_directions(state.variables.params, number) if is_random else principal_directions(updates)
    products = _products(span, span)
    points = np.linalg.solve(products, _products(span, offsets)).T
    axes = [np.linspace(-1, 1, num_points) if is_random else _axis(along, num_points) for along in points.T]
    stats = jax.tree.map(lambda leaf: leaf[len(clients) + RULES.index("uniform")], models.stats)
    base, places = Variables(state.variables.params, stats), np.stack(np.meshgrid(*axes), -1).reshape(-1, 2)
    tables = {"val": sim.data.val, "test": sim.data.test}
    lengths = np.einsum("ki,ij,kj->k", points, products, points)[: len(clients)]
    return LossPlane(
        number=number + 1,
        directions=directions,
        axes=np.stack(axes),
        losses={p: losses_at(sim, base, span, places, rows).reshape(2 * [num_points]) for p, rows in tables.items()},
        clients=clients,
        points=points[: len(clients)],
        rules=dict(zip(RULES, points[len(clients) :], strict=True)),
        explained=float(lengths.sum() / np.trace(_products(updates, updates))),
    )


def _axis(coordinates: np.ndarray, num_points: int) -> np.ndarray:
    """Returns the coordinates of the grid along one direction, around the points and the global model."""
    low, high = min(0.0, coordinates.min()), max(0.0, coordinates.max())
    margin = MARGIN * (high - low)
    return np.linspace(low - margin, high + margin, num_points)


def losses_at(sim: simulation.Simulation, base: Variables, span: Tree, places: np.ndarray, rows: Any) -> np.ndarray:
    """Returns the mean losses [P] at theta_g + sum_i a_i d_i.

    Args:
        base: theta_g, and the running statistics of all points.
        span: the directions d_i, leaves [2, ...].
        places: [P, 2] the coordinates a.
        rows: a table of minibatches.
    """
    evaluate = make_evaluate(sim.task)

    def sums_at(place: Array) -> Tree:
        params = jax.tree.map(lambda x, d: x + jnp.tensordot(place.astype(d.dtype), d, 1), base.params, span)
        return evaluate(base._replace(params=params), sim.data.pool, rows)

    sums = jax.device_get(jax.jit(functools.partial(jax.lax.map, sums_at))(jnp.asarray(places)))
    leaves, structure = jax.tree.flatten(sums)
    return np.array([sim.task.metrics(structure.unflatten(part))["loss"] for part in zip(*leaves, strict=True)])


def _choosing(config: Config, task: Task) -> Weighting:
    """Returns the weights of one of `RULES`, or given ones, as the hyperparameters `rule` and `given` choose."""
    return combined((basic.samples(), basic.uniform(), make_fedvg(config, task), given()))


def models_of_round(sim: simulation.Simulation, state: SimState, number: int) -> Variables:
    """Returns the clients' models of a round, and those that the rules give, stacked, leaves [K + rules, ...].

    A client's model is the plain mean with all weight on it, without the algorithm's residual, a robust rule or server
    tuning. `vmap` batches only what depends on the weights, so each of the two rounds trains the clients once.
    """
    config, schedule = sim.config, sim.schedule(number)
    assert sim.algorithm and sim.weighting and sim.executor and sim.optimiser
    others = sim.weighting, sim.executor, sim.optimiser, registry.make_live(config, sim.task)
    plain = dataclasses.replace(config, robust=Robust(), tuning=Tuning())
    mean = programs.make_round(plain, sim.task, sim.algorithm._replace(residual=no_residual), *others)
    of_run = programs.make_round(config, sim.task, sim.algorithm, *others)
    cohort = len(np.asarray(schedule.clients))
    *rules, is_given = jnp.eye(len(RULES) + 1)

    @jax.jit
    def models(state: SimState, schedule: Schedule) -> Variables:
        def model(step: RoundStep, own: Array, choice: Array) -> Variables:
            return step(state, schedule, sim.data, {**sim.hyper, "given": own, "rule": choice})[0].variables

        of_clients = jax.vmap(lambda own: model(mean, own, is_given))(jnp.eye(cohort))
        of_rules = jax.vmap(lambda choice: model(of_run, jnp.ones(cohort), choice))(jnp.stack(rules))
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), of_clients, of_rules)

    return models(state, schedule)


def _products(first: Tree, second: Tree) -> np.ndarray:
    """Returns the inner products of stacked trees, float64 [I, J]."""
    parts = [
        np.asarray(a, np.float64).reshape(len(a), -1) @ np.asarray(b, np.float64).reshape(len(b), -1).T
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    ]
    return np.sum(parts, 0)


def principal_directions(updates: Tree) -> Tree:
    """Returns the two orthonormal directions with the largest part of the updates' squared lengths, leaves [2, ...].

    Raises:
        UsageError: the updates lie on one line.
    """
    values, vectors = np.linalg.eigh(_products(updates, updates))
    values, vectors = values[::-1], vectors[:, ::-1]
    if len(values) < 2 or values[1] <= 1e-10 * values[0] or values[0] <= 0:
        raise UsageError("a plane needs two clients with different updates; use a larger --join-ratio")
    factors = jnp.asarray((vectors[:, :2] / np.sqrt(values[:2])).T)
    return jax.tree.map(lambda leaf: jnp.tensordot(factors.astype(leaf.dtype), leaf, 1), updates)


def random_directions(params: Tree, number: int) -> Tree:
    """Returns two random directions, leaves [2, ...]; every filter has the norm of the model's (Li et al. 2018).

    A filter is what the last axis of a tensor counts. Vectors, such as biases, get 0.
    """

    def filter_norms(leaf: Array) -> Array:
        return jnp.linalg.norm(leaf.reshape(-1, leaf.shape[-1]), axis=0)

    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(number), len(leaves))

    def direction(leaf: Array, key: Array) -> Array:
        if leaf.ndim < 2:
            return jnp.zeros((2, *leaf.shape), leaf.dtype)
        drawn = jax.random.normal(key, (2, *leaf.shape), leaf.dtype)
        factors = filter_norms(leaf)[None] / jax.vmap(filter_norms)(drawn)
        return drawn * factors.reshape(2, *(leaf.ndim - 1) * [1], -1)

    return structure.unflatten([direction(leaf, key) for leaf, key in zip(leaves, keys, strict=True)])


def table(plane: LossPlane) -> list[dict[str, Any]]:
    """Returns the rows of a table: every point of the grid, every client's model, and that of every rule.

    Models of clients and rules have no loss, which is that of the plane only.
    """
    rows: list[dict[str, Any]] = []
    for i, second in enumerate(plane.axes[1]):
        for j, first in enumerate(plane.axes[0]):
            losses = {f"{part}_loss": float(values[i, j]) for part, values in plane.losses.items()}
            rows.append({"point": "grid", "first": float(first), "second": float(second)} | losses)
    named = [(f"client {k}", at) for k, at in zip(plane.clients, plane.points, strict=True)]
    for name, (first, second) in [*named, *plane.rules.items()]:
        rows.append({"point": name, "first": float(first), "second": float(second)})
    return rows
