"""The contestant "ours" of `rounds`: times rounds of this package.

python -m benchmarks.speed.ours --folder DIR --case NAME [--rounds N] [--data-dir DIR]

`rounds` starts it and sends it requests, see `contest`. It also writes the workload of the other
contestants to DIR: the images, the minibatches of every client and the initial model.
"""

from __future__ import annotations

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

from benchmarks import machine
from benchmarks.speed import cases, contest
from fedvg_jax import resolve
from fedvg_jax.core import trained_part, tree
from fedvg_jax.core.types import (
    ClientReturn,
    Data,
    Executor,
    Hyper,
    Schedule,
    ServerView,
    SimState,
    Variables,
)
from fedvg_jax.engine import executors, lane_plan, local_training, robust, schedule as schedules
from fedvg_jax.runs.assemble import simulation as build, tables


def main(argv: list[str] | None = None) -> int:
    """Builds the case, writes the workload, then answers requests."""
    parser = machine.parser(__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--case", choices=cases.CASES, required=True)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--data-dir", type=Path)
    args = parser.parse_args(argv)
    case = cases.CASES[args.case]
    case = case._replace(rounds=args.rounds or case.rounds)
    sim = simulation(case, args.data_dir)
    planned = [sim.schedule(r) for r in range(case.rounds)]
    write_workload(args.folder, case, sim, planned)
    ours = Ours(sim, planned, case.checked_steps)
    contest.serve(
        args.folder, "ours", {"check": ours.check, "exact": ours.exact}, ours.time, ours.about(case)
    )
    return 0


def simulation(case: cases.Case, data_dir: Path | None = None) -> build.Simulation:
    """Returns the simulation of a case."""
    devices = str(len(jax.devices())) if case.each_core else "auto"
    config = dataclasses.replace(cases.config(case), devices=devices)
    options = {
        "data": cases.arrays(case, data_dir),
        "partition": cases.partition(case),
        "task": cases.task(case),
    }
    return resolve.experiment.simulation(config, **options)


def write_workload(
    folder: Path, case: cases.Case, sim: build.Simulation, planned: list[Schedule]
) -> None:
    """Writes the pool, minibatches, scoring groups, initial model and settings for the other contestants."""
    pool = {"x": np.asarray(sim.arrays.x), "y": np.asarray(sim.arrays.y)}
    schedules = {
        f"r{r}/{name}": getattr(s, name)
        for r, s in enumerate(planned)
        for name in contest.SCHEDULE_FIELDS
    }
    scoring = {"scoring": np.asarray(sim.data.scoring)}
    model = contest.flatten_model("init", *jax.device_get(sim.state.variables))
    if sim.base is not None:
        model |= contest.flatten_model("base", *jax.device_get(sim.base))
    np.savez(folder / "workload.npz", **pool, **schedules, **scoring, **model)
    config = sim.config
    settings = {
        "model": case.model,
        "rounds": case.rounds,
        "lr": float(np.float32(config.lr)),
        "eps": config.fedvg.eps,
        "batch_size": config.batch_size,
        "scored": config.weighting == "fedvg",
        "clients": config.clients,
        "work": cases.image_gradients(planned, scoring["scoring"], config.weighting == "fedvg"),
        "checked_steps": case.checked_steps,
    }
    (folder / "workload.json").write_text(json.dumps(settings), encoding="utf-8")


class Ours:
    """The compiled rounds of a simulation, and each of their phases compiled alone."""

    def __init__(
        self, sim: build.Simulation, planned: list[Schedule], checked_steps: int | None = None
    ):
        self.sim, self.planned = sim, planned
        self.checked = (
            planned[0] if checked_steps is None else limit_steps(planned[0], sim, checked_steps)
        )
        start = time.perf_counter()
        self.chunk, self.stacked = cases.compile_rounds(sim, planned)
        self.compile_seconds = time.perf_counter() - start
        self.phases = _phases(sim, sim.executor)
        self.phases_of_one_device = _phases(sim, executors.lanes(1))
        first, data, hyper = planned[0], sim.data, sim.hyper
        self.clients = self.phases["train"](sim.state, first, data, hyper)
        self.signals = self.phases["score"](sim.state, self.clients, first, data, hyper)
        jax.block_until_ready(
            self.phases["aggregate"](sim.state, self.clients, self.signals, first, data, hyper)
        )

    def about(self, case: cases.Case) -> dict[str, Any]:
        """Returns what the results record of this contestant."""
        return {
            "compile_seconds": round(self.compile_seconds, 3),
            "devices": len(self.sim.data.scoring.sharding.device_set),
            "flops_per_image_gradient": flops(case, self.sim),
            "parameters": tree.size(self.sim.state.variables.params),
        }

    def check(self) -> dict[str, np.ndarray]:
        """Returns every client after one step in float64, and the checked round's global model and weights.

        The checked round runs in the timed program, in float32.
        """
        first = self.checked
        single = schedules.stack([first], tables.MAX_ROUNDS)
        state, metrics = self.chunk(
            self._copy_state(), np.int32(1), single, self.sim.data, self.sim.hyper
        )
        one_step = first._replace(num_steps=np.minimum(first.num_steps, 1))
        _, _, stepped, _ = self._train_in_float64(one_step)
        arrays = contest.flatten_model("round", *jax.device_get(state.variables))
        arrays |= contest.flatten_model("step", *jax.device_get(stepped))
        return arrays | {"weights": metrics.weights[0]}

    def exact(self) -> dict[str, np.ndarray]:
        """Returns the checked round's global model in float64, the reference of all comparisons."""
        first, phases = self.checked, self.phases_of_one_device
        state, data, clients, hyper = self._train_in_float64(first)
        with jax.enable_x64(True):
            signals = phases["score"](state, clients, first, data, hyper)
            model = phases["aggregate"](state, clients, signals, first, data, hyper)
        return contest.flatten_model("round", *jax.device_get(model))

    def _train_in_float64(self, planned: Schedule) -> tuple[SimState, Data, Variables, Hyper]:
        """Returns the initial state, the data, the trained clients and the hyperparameters in float64.

        Runs on one device: on two CPU devices, float64 gradients were off by 1e-3, differently in every call.
        """
        state, data = jax.device_get((self.sim.state, self.sim.data))
        planned = planned._replace(plan=lane_plan.plan_lanes(planned.num_steps, 1))
        with jax.enable_x64(True):
            state, hyper, base = jax.tree.map(_to_float64, (state, self.sim.hyper, data.base))
            data = data._replace(base=base)
            trained = self.phases_of_one_device["train"](state, planned, data, hyper)
        return state, data, trained, hyper

    def time(self) -> dict[str, float]:
        """Returns the mean seconds of a round, uploads included, and the seconds of each phase of the first round."""
        sim, first = self.sim, self.planned[0]
        state = jax.block_until_ready(self._copy_state())
        start, cpu_start = time.perf_counter(), time.process_time()
        outputs = self.chunk(state, np.int32(len(self.planned)), self.stacked, sim.data, sim.hyper)
        jax.block_until_ready(outputs)
        total = {"round": time.perf_counter() - start, "cpu": time.process_time() - cpu_start}
        seconds = {name: value / len(self.planned) for name, value in total.items()}
        arguments = {
            "train": (sim.state, first, sim.data, sim.hyper),
            "score": (sim.state, self.clients, first, sim.data, sim.hyper),
            "aggregate": (sim.state, self.clients, self.signals, first, sim.data, sim.hyper),
        }
        for name, phase in self.phases.items():
            seconds[name] = machine.time_call(
                lambda phase=phase, name=name: jax.block_until_ready(phase(*arguments[name]))
            )
        return seconds

    def _copy_state(self):
        return jax.tree.map(jnp.copy, self.sim.state)  # because a chunk donates its state's buffers


def limit_steps(planned: Schedule, sim: build.Simulation, steps: int) -> Schedule:
    """Returns the round with at most `steps` local steps of each client."""
    num_steps, executor = np.minimum(planned.num_steps, steps), sim.executor
    start = (np.cumsum(num_steps) - num_steps).astype(np.int32)
    rows = np.full_like(planned.rows, -1)
    for old, new, count in zip(planned.start, start, num_steps, strict=True):
        rows[new : new + count] = planned.rows[old : old + count]
    plan = lane_plan.plan_lanes(num_steps, executor.num_lanes, executor.lanes_together)
    return planned._replace(num_steps=num_steps, start=start, rows=rows, plan=plan)


def _to_float64(x: np.ndarray | jax.Array) -> np.ndarray | jax.Array:
    return x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _phases(sim: build.Simulation, executor: Executor) -> dict[str, Any]:
    """Returns training, scoring and aggregation as separately jitted functions."""

    def client(shared, planned):
        task = sim.bind(shared[1].base).task
        optimiser = sim.experiment.method.optimiser
        return local_training.make_client(task, sim.algorithm, optimiser, shared, planned)

    def train(state, planned, data, hyper) -> Variables:
        planned = planned._replace(state_rows=planned.clients)
        trained = executor.train(client, (state, data, hyper), planned)
        return Variables(trained.params, trained.stats)

    def measure(shared, client):
        hyper, data = shared
        return sim.bind(data.base).weighting.signal(hyper, client, data)

    def score(state, clients, planned, data, hyper):
        deltas = jax.tree.map(lambda p, c: p[None] - c, state.variables.params, clients.params)
        reports = ClientReturn(clients, planned.num_samples, deltas)
        return executor.map(measure, (hyper, data), reports)

    def aggregate(state, clients, signals, planned, data, hyper):
        view = ServerView(state.variables, clients, planned.shuffle, data)
        weights = sim.weighting.weigh(hyper, signals, view)
        return robust.weighted_mean(
            hyper, state.variables, clients, weights, sharding=executor.clients
        )

    return {f.__name__: jax.jit(f) for f in (train, score, aggregate)}


def flops(case: cases.Case, sim: build.Simulation) -> float | None:
    """Returns the floating-point operations of one image's forward and backward pass, as XLA counts them.

    Counted with XLA's convolution, because ours adds products with zeros in some layers and saves products in
    others. XLA counts a loop's body once, so loops are unrolled here.
    """
    config = dataclasses.replace(sim.config, conv="lax")
    task = cases.task(case, "lax") or trained_part.bind(
        resolve.model.make_model(config, sim.arrays).bound(None), sim.base
    )
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
