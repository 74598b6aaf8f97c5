"""Draws the loss around the model of a run, with its clients' models and where three weightings take the next round.

    python -m benchmarks.loss_plane RUN [--points 25] [--out DIR]

The picture is that of the paper's Figure 2, computed: the plane holds the two main directions of the clients' updates.
The round starts from the final model of the run folder RUN, with the memories of the algorithm as before a first round.
Writes loss_plane.png and loss_plane.csv into DIR, by default RUN. Exit code 2 after an error, one line.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import fedvg_jax as fv
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.host import files

RULES = {"FedAvg": "samples", "uniform": "uniform", "FedVG": "fedvg"}
"""Name in the picture -> weighting."""

MARKS = {"FedAvg": ("#d55e00", "s"), "uniform": ("#ffffff", "o"), "FedVG": ("#f0e442", "^")}
MARGIN = 0.25
"""Part of the extent of the points that the grid reaches beyond them."""


class Plane(NamedTuple):
    """Losses on a grid, and the points of a round projected onto its plane."""

    axes: np.ndarray
    """[2, n] L2 distances from the model before the round, along two orthonormal directions"""
    losses: dict[str, np.ndarray]
    """val_loss and test_loss -> [n, n]; rows follow the second direction"""
    clients: dict[int, np.ndarray]
    """client -> [2] coordinates of its model"""
    rules: dict[str, np.ndarray]
    """weighting -> [2] coordinates of its new global model"""
    explained: float
    """share of the squared lengths of the updates that lies in the plane"""


def main(argv: list[str] | None = None) -> int:
    """Draws the plane of a run folder; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loss_plane", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--points", type=int, default=25)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    try:
        plane = plane_of(args.run, args.points)
    except fv.UsageError as error:
        print(error, file=sys.stderr)
        return 2
    out = args.out or args.run
    out.mkdir(parents=True, exist_ok=True)
    write_table(out / "loss_plane.csv", plane)
    draw(out / "loss_plane.png", plane)
    print(out / "loss_plane.png", out / "loss_plane.csv", sep="\n")
    return 0


def plane_of(folder: Path, num_points: int) -> Plane:
    """Returns the plane of the round after the last one of a run folder.

    Raises:
        UsageError: the folder has no checkpoint, the run had objects from Python, or the updates lie on one line.
    """
    history = fv.History.load(folder)
    if given := files.read_object(folder / "manifest.json").get("given"):
        raise fv.UsageError(f"{folder} is of a run with its own {', '.join(given)}; name a run of the command line")
    assert history.config is not None
    config = dataclasses.replace(history.config, devices="1", placement="device", record="")
    start, number = history.variables, len(history.records)
    sims = {name: fv.simulation(dataclasses.replace(config, weighting=rule)) for name, rule in RULES.items()}
    new = {name: next_model(sim, start, number) for name, sim in sims.items()}
    sim, clients = sims["uniform"], sims["uniform"].schedule(number).clients.tolist()
    own = client_models(sim, start, number)

    origin, unravel = ravel_pytree(start.params)

    def updates_of(models: Iterable[fv.Variables]) -> np.ndarray:
        return np.stack([np.asarray(ravel_pytree(model.params)[0] - origin, np.float64) for model in models])

    updates, steps = updates_of(own), updates_of(new.values())
    span = directions(updates)
    points, ends = updates @ span.T, steps @ span.T
    axes = np.stack([axis(along, num_points) for along in points.T])

    def losses_at(first: float, second: float) -> dict[str, float]:
        params = unravel(origin + jnp.asarray(np.array([first, second]) @ span, origin.dtype))
        return fv.evaluate(sim, fv.Variables(params, new["uniform"].stats))

    grid = [[losses_at(first, second) for first in axes[0]] for second in axes[1]]
    losses = {part: np.array([[at[part] for at in row] for row in grid]) for part in ("val_loss", "test_loss")}
    explained = float(np.sum(points**2) / np.sum(updates**2))
    return Plane(axes, losses, dict(zip(clients, points, strict=True)), dict(zip(new, ends, strict=True)), explained)


def next_model(sim: fv.Simulation, start: fv.Variables, number: int, **hyper: Any) -> fv.Variables:
    """Returns the model after one more round.

    Args:
        sim: the simulation.
        start: the model before the round.
        number: of the round, from 0.
        hyper: hyperparameters that replace those of the simulation.
    """
    state = sim.state._replace(variables=start, round=number)
    state = jax.tree.map(lambda leaf, first: jnp.array(leaf, first.dtype), state, sim.state)  # a copy: it is donated
    rounds = schedules.stack([sim.schedule(number)], 1)
    return sim.chunk(state, 1, rounds, sim.data, sim.hyper | hyper)[0].variables


def client_models(sim: fv.Simulation, start: fv.Variables, number: int) -> list[fv.Variables]:
    """Returns the models of a round's clients: each is the plain mean with all weight on it.

    The algorithm's residual, a robust rule and server tuning, which move the mean, are left out.
    """
    plain = dataclasses.replace(sim.config, robust=fv.Config().robust, tuning=fv.Config().tuning, hold=0)
    algorithm = sim.algorithm._replace(residual=fv.algorithms.no_residual)
    sim = fv.simulation(plain, algorithm=algorithm, weighting=fv.weightings.given())
    return [next_model(sim, start, number, given=one) for one in jnp.eye(len(sim.schedule(number).clients))]


def directions(updates: np.ndarray) -> np.ndarray:
    """Returns the two orthonormal directions [2, p] with the largest part of the squared lengths of updates [K, p].

    Raises:
        UsageError: the updates lie on one line.
    """
    _, lengths, span = np.linalg.svd(updates, full_matrices=False)
    if len(lengths) < 2 or lengths[1] <= 1e-5 * lengths[0]:
        raise fv.UsageError("a plane needs two clients with different updates; use a larger --join-ratio")
    return span[:2]


def axis(coordinates: np.ndarray, num_points: int) -> np.ndarray:
    """Returns the coordinates of the grid along one direction, around the points and the global model."""
    low, high = min(0.0, coordinates.min()), max(0.0, coordinates.max())
    return np.linspace(low - MARGIN * (high - low), high + MARGIN * (high - low), num_points)


def write_table(path: Path, plane: Plane) -> None:
    """Writes every point of the grid with its losses, and the coordinates of the models."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["point", "first", "second", *plane.losses])
        for i, second in enumerate(plane.axes[1]):
            for j, first in enumerate(plane.axes[0]):
                writer.writerow(["grid", first, second, *(values[i, j] for values in plane.losses.values())])
        for name, point in {**{f"client {k}": point for k, point in plane.clients.items()}, **plane.rules}.items():
            writer.writerow([name, *point, *[""] * len(plane.losses)])


def draw(path: Path, plane: Plane) -> None:
    """Draws contours of the test loss, the clients' updates, and the new models of the weightings."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 5.2), layout="constrained")
    axes, losses = figure.subplots(), np.log10(np.maximum(plane.losses["test_loss"], 1e-12))
    levels = np.unique(np.quantile(losses, np.linspace(0, 1, 14)))  # as many grid points between any two of them
    filled = axes.contourf(*plane.axes, losses, levels=levels, cmap="viridis")
    figure.colorbar(filled, ax=axes, label="test loss", format=lambda level, _: f"{10**level:.3g}")
    for client, (x, y) in plane.clients.items():
        axes.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "->", "color": "white", "lw": 0.9})
        axes.annotate(f"{client}", (x, y), (3, 3), textcoords="offset points", color="white", fontsize=8)
    for name, (x, y) in plane.rules.items():
        colour, marker = MARKS[name]
        axes.plot(x, y, marker, color=colour, mec="black", ms=8, label=f"after {name}", ls="none")
    axes.plot(0, 0, "k+", ms=10, mew=2, label="before the round")
    axes.set(xlabel="first direction (L2 distance)", ylabel="second direction (L2 distance)")
    axes.set_title(f"{plane.explained:.0%} of the updates' squared length", fontsize=9, loc="left")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    sys.exit(main())
