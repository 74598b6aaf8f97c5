"""One contestant: this package. Started by `benchmarks.rounds`; it also writes the world the others work in.

python -m benchmarks.ours --folder DIR --case NAME [--images N] [--data-dir DIR] [--conv NAME]
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import cases, contest, machine
from fedvg_jax.core import tree
from fedvg_jax.core.types import Data, Executor, Hyper, Report, Returns, Schedule, SimState, Variables
from fedvg_jax.engine import executors, lane_plan, local_training, robust
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.runs import simulation as build


def main(argv: list[str] | None = None) -> int:
    """Builds the case, writes the world, then answers requests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--case", choices=cases.CASES, required=True)
    parser.add_argument("--images", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--conv", default="auto")
    args = parser.parse_args(argv)
    case = contest.resized(cases.CASES[args.case], args.images, args.rounds)
    sim = simulation(case, args.data_dir, args.conv)
    planned = [sim.schedule(r) for r in range(case.rounds)]
    write_world(args.folder, case, sim, planned)
    ours = Ours(sim, planned, case.checked_steps)
    contest.serve(args.folder, "ours", {"check": ours.check, "exact": ours.exact}, ours.time, ours.about(case))
    return 0


def simulation(case: cases.Case, data_dir: Path | None = None, conv: str = "auto") -> build.Simulation:
    """The case, ready to run."""
    devices = str(len(jax.devices())) if case.each_core else "auto"
    config = dataclasses.replace(cases.config(case), conv=conv, devices=devices)
    options = {"data": cases.arrays(case, data_dir), "partition": cases.partition(case), "task": cases.task(case, conv)}
    return build.simulation(config, **options)


def write_world(folder: Path, case: cases.Case, sim: build.Simulation, planned: list[Schedule]) -> None:
    """Pool, minibatches, scoring groups and the initial model, for the others."""
    pool = {"x": np.asarray(sim.arrays.x), "y": np.asarray(sim.arrays.y)}
    plain = {f"r{r}/{name}": getattr(s, name) for r, s in enumerate(planned) for name in contest.PLANNED}
    scoring = {"scoring": np.asarray(sim.data.scoring)}
    model = contest.by_path("init", *jax.device_get(sim.state.variables))
    np.savez(folder / "world.npz", **pool, **plain, **scoring, **model)
    config = sim.config
    known = {
        "model": case.model,
        "rounds": case.rounds,
        "lr": float(np.float32(config.lr)),
        "eps": config.fedvg.eps,
        "batch_size": config.batch_size,
        "scored": config.weighting == "fedvg",
        "clients": config.clients,
        "work": cases.image_gradients(planned, scoring["scoring"], config.weighting == "fedvg"),
        "checked_steps": case.checked_steps,
        "equal": len({tuple(s.num_steps) for s in planned}) == 1 and len(set(planned[0].num_steps.tolist())) == 1,
    }
    (folder / "world.json").write_text(json.dumps(known), encoding="utf-8")


class Ours:
    """The compiled rounds of a simulation, and its parts."""

    def __init__(self, sim: build.Simulation, planned: list[Schedule], checked_steps: int | None = None):
        self.sim, self.planned = sim, planned
        self.checked = planned[0] if checked_steps is None else shortened(planned[0], sim, checked_steps)
        self.stacked = schedules.stack(planned, build.MAX_ROUNDS)
        begun = time.perf_counter()
        lowered = sim.chunk.lower(sim.state, np.int32(0), self.stacked, sim.data, sim.hyper)
        self.chunk, self.compile_seconds = lowered.compile(), time.perf_counter() - begun
        self.parts, self.alone = _parts(sim, build.make_executor(sim.config)), _parts(sim, executors.lanes(1))
        first, data, hyper = planned[0], sim.data, sim.hyper
        self.clients = self.parts["train"](sim.state, first, data, hyper)
        self.measured = self.parts["score"](sim.state, self.clients, first, data, hyper)
        jax.block_until_ready(self.parts["aggregate"](sim.state, self.clients, self.measured, first, data, hyper))

    def about(self, case: cases.Case) -> dict[str, Any]:
        """What is told once."""
        return {
            "compile_seconds": round(self.compile_seconds, 3),
            "devices": len(self.sim.data.scoring.sharding.device_set),
            "flops_per_image_gradient": flops(case, self.sim),
            "parameters": tree.size(self.sim.state.variables.params),
        }

    def check(self) -> dict[str, np.ndarray]:
        """Every client after one step in float64; the checked round's global model and weights by the timed program."""
        first = self.checked
        single = schedules.stack([first], build.MAX_ROUNDS)
        state, metrics = self.chunk(self._state(), np.int32(1), single, self.sim.data, self.sim.hyper)
        stepped = self._double(first._replace(num_steps=np.minimum(first.num_steps, 1)))[2]
        found = contest.by_path("round", *jax.device_get(state.variables)) | {"weights": metrics.weights[0]}
        return found | contest.by_path("step", *jax.device_get(stepped))

    def exact(self) -> dict[str, np.ndarray]:
        """The checked round's global model in float64, which all are compared with."""
        first = self.checked
        state, data, clients, hyper = self._double(first)
        with jax.enable_x64(True):
            measured = self.alone["score"](state, clients, first, data, hyper)
            model = self.alone["aggregate"](state, clients, measured, first, data, hyper)
        return contest.by_path("round", *jax.device_get(model))

    def _double(self, planned: Schedule) -> tuple[SimState, Data, Variables, Hyper]:
        """The initial state, the data, the trained clients and the hyper-parameters in float64.

        On one device: with two of a CPU at work, gradients in float64 were off by 1e-3, others in every call.
        """
        state, data = jax.device_get((self.sim.state, self.sim.data))
        planned = planned._replace(plan=lane_plan.plan_lanes(planned.num_steps, 1))
        with jax.enable_x64(True):
            state, hyper = jax.tree.map(_double, (state, self.sim.hyper))
            return state, data, self.alone["train"](state, planned, data, hyper), hyper

    def time(self) -> dict[str, float]:
        """Seconds of all rounds, uploads included; then of the parts of the first round."""
        sim, first = self.sim, self.planned[0]
        state = jax.block_until_ready(self._state())
        begun, worked = time.perf_counter(), time.process_time()
        done = self.chunk(state, np.int32(len(self.planned)), self.stacked, sim.data, sim.hyper)
        jax.block_until_ready(done)
        spent = {"round": time.perf_counter() - begun, "cpu": time.process_time() - worked}
        found = {name: seconds / len(self.planned) for name, seconds in spent.items()}
        arguments = {
            "train": (sim.state, first, sim.data, sim.hyper),
            "score": (sim.state, self.clients, first, sim.data, sim.hyper),
            "aggregate": (sim.state, self.clients, self.measured, first, sim.data, sim.hyper),
        }
        for name, part in self.parts.items():
            found[name] = machine.timed(lambda part=part, name=name: jax.block_until_ready(part(*arguments[name])))
        return found

    def _state(self):
        return jax.tree.map(jnp.copy, self.sim.state)  # a chunk takes over the memory of its state


def shortened(planned: Schedule, sim: build.Simulation, steps: int) -> Schedule:
    """Returns the round with at most so many local steps of each client."""
    num_steps, executor = np.minimum(planned.num_steps, steps), build.make_executor(sim.config)
    start = (np.cumsum(num_steps) - num_steps).astype(np.int32)
    rows = np.full_like(planned.rows, -1)
    for old, new, count in zip(planned.start, start, num_steps, strict=True):
        rows[new : new + count] = planned.rows[old : old + count]
    plan = lane_plan.plan_lanes(num_steps, executor.num_lanes, executor.lanes_together)
    return planned._replace(num_steps=num_steps, start=start, rows=rows, plan=plan)


def _double(x: np.ndarray | jax.Array) -> np.ndarray | jax.Array:
    return x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _parts(sim: build.Simulation, executor: Executor) -> dict[str, Any]:
    """Training, scoring and aggregation as programs of their own."""
    config, task = sim.config, sim.task
    algorithm = build.ALGORITHMS[config.algorithm](config)
    weighting, optimiser = build.make_weighting(config, task, algorithm), build.make_optimiser(config)
    live = build.make_live(config, task)

    def client(shared, planned):
        state, data, hyper = shared
        return local_training.make_client(task, algorithm, optimiser, state, planned, data, hyper, support=live)

    def train(state, planned, data, hyper) -> Variables:
        done = executor.train(client, (state, data, hyper), planned)
        return Variables(jax.vmap(live.within, (None, 0))(state.variables.params, done.params), done.stats)

    def measure(shared, report, row_parts=None):
        hyper, data = shared
        return weighting.signal(hyper, report._replace(row_parts=row_parts), data)

    def score(state, clients, planned, data, hyper):
        deltas = jax.tree.map(lambda p, c: p[None] - c, state.variables.params, clients.params)
        reports = Report(clients, planned.num_samples, deltas)
        return (executor.map_by_rows or executor.map)(measure, (hyper, data), reports)

    def aggregate(state, clients, measured, planned, data, hyper):
        weights = weighting.weigh(hyper, measured, Returns(state.variables, clients, planned.shuffle, data))
        key = jax.random.key(0)
        return robust.mean(hyper, key, state.variables, clients, weights, sharding=executor.clients)

    return {f.__name__: jax.jit(f) for f in (train, score, aggregate)}


def flops(case: cases.Case, sim: build.Simulation) -> float | None:
    """Floating-point operations of one image's forward and backward pass, as XLA counts them with its own convolution:
    neither zeros that ours adds nor products that it saves. It counts a loop's body once, so loops are written out."""
    task = cases.task(case, "lax") or build.make_task(dataclasses.replace(sim.config, conv="lax"), sim.arrays)
    size = sim.config.batch_size
    x = jax.ShapeDtypeStruct((size, *sim.arrays.x.shape[1:]), jnp.uint8)
    batch = type(sim.data.pool)(x, jax.ShapeDtypeStruct((size,), jnp.int32))
    gradient = jax.grad(lambda *args: task.loss(*args, True)[0])
    mask = jax.ShapeDtypeStruct((size,), jnp.bool)
    with mock.patch.object(lax, "scan", functools.partial(lax.scan, unroll=True)):
        counted = jax.jit(gradient).lower(*sim.state.variables, batch, mask).cost_analysis()
    return counted["flops"] / size if counted else None


if __name__ == "__main__":
    sys.exit(main())
