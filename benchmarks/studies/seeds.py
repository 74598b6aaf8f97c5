"""The command line of an experiment over seeds, each with its own partition, and intervals over them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.progress import track

import fedvg_jax as fv
from benchmarks import machine
from fedvg_jax import commands
from fedvg_jax.runs.assemble.simulation import load_data
from fedvg_jax.study import statistics

ALPHA = 0.05
LR = 0.2
"""Learning rate of the committed results, unless the options give one."""


def run(
    argv: Sequence[str] | None,
    name: str,
    description: str | None,
    seeds: int,
    prepare: Callable[[fv.Simulation], Any],
    measure: Callable[[fv.Simulation, Any, int], Any],
    summary: Callable[[Sequence[Any]], dict[str, Any]],
    record: str = "",
) -> int:
    """Measures all seeds and writes the results after each, so that an interrupted command keeps its seeds.

    Args:
        argv: the command line; None for the process's.
        name: of the module in `benchmarks.studies` and of its results file.
        description: the module's docstring.
        seeds: how many by default.
        prepare: returns what all seeds share, from the first simulation.
        measure: (simulation, what `prepare` returned, seed) -> results of a seed.
        summary: results of seeds -> what is written.
        record: as `--record`.
    """
    parser = machine.parser(description, f"{name}.json")
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="-- OPTION ...", help="options of fedvg_jax.sim")
    args = parser.parse_args(argv)
    config = commands.parse([f"--alpha={ALPHA}", f"--lr={LR}", *(word for word in args.options if word != "--")])
    config = replace(config, weighting="fedvg", devices="1", record=record)
    results, arrays = machine.begin(f"studies.{name}", argv), load_data(config)
    settings = {key: getattr(config, key) for key in ("dataset", "model", "alpha", "rounds")}
    shared, measured = None, []
    for seed in track(range(args.seeds), console=Console(stderr=True)):
        sim = fv.simulation(replace(config, seed=seed, partition_seed=seed), data=arrays)
        shared = shared or prepare(sim)
        measured.append(measure(sim, shared, seed))
        results |= {"settings": settings | {"seeds": seed + 1}} | summary(measured)
        machine.finish(args.out, results)
    print(json.dumps(results))
    return 0


def interval(values: Sequence[float]) -> list[float]:
    """Returns the mean and the limits of the 95 % Student's t interval.

    >>> [round(x, 3) for x in interval([1.0, 2.0, 3.0])]  # t(0.975, 2 degrees of freedom) = 4.303; deviation 1
    [2.0, -0.484, 4.484]
    """
    ours = {(i, 0): value for i, value in enumerate(values)}
    compared = statistics.compare(ours, dict.fromkeys(ours, 0.0))
    return [compared.mean, *compared.t_interval]
