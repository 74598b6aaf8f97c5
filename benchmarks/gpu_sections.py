"""The sections of `benchmarks.gpu`, each a function that reports whenever it knows more.

python -m benchmarks.gpu_sections NAME [--seconds S] [--cpu-smoke]
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import cases, machine
from benchmarks import gpu_world as world
from fedvg_jax.core import tree
from fedvg_jax.core.gradient_support import FULL_SUPPORT
from fedvg_jax.runs import loop

Results = Iterator[dict[str, Any]]

PRECISIONS = ("tensorfloat32", "bfloat16")
"""Of matmuls and convolutions, by jax.default_matmul_precision; float32 is kept in between."""


def peaks(box: world.Box) -> Results:
    """Matrix products by precision, and a copy."""
    device = jax.devices()[0]
    found: dict[str, Any] = {"device": {"accelerator": device.device_kind, "jax_backend": device.platform}}
    found["TF/s"] = machine.accelerator_peaks(128 if box.smoke else 8192, 3 if box.smoke else 20)
    yield found
    size = 2**10 if box.smoke else 2**28
    x, twice = jnp.ones(size), jax.jit(lambda x: x * 2)
    seconds = machine.median_seconds(lambda: twice(x).block_until_ready(), 5)
    yield found | {"copy GB/s, read and written": round(8e-9 * size / seconds, 2)}


def fixed_cost(box: world.Box) -> Results:
    """Microseconds of one turn of a loop that does next to nothing, with and without a trip count that is data."""

    def turns(count, x):
        return lax.fori_loop(0, count, lambda i, x: x + 1, x)

    count, found = 20 if box.smoke else 5000, {}
    for name, f, args in (
        ("data", jax.jit(turns), (jnp.int32(count), jnp.zeros(()))),
        ("constant", jax.jit(lambda x: turns(count, x)), (jnp.zeros(()),)),
    ):
        seconds = machine.median_seconds(lambda f=f, args=args: f(*args).block_until_ready(), 5)
        found[f"microseconds a turn, trip count {name}"] = 1e6 * seconds / count
    call = jax.jit(lambda x: x + 1)
    yield found | {"microseconds a call": 1e6 * machine.median_seconds(lambda: call(0.0).block_until_ready(), 50)}


def lanes(box: world.Box) -> Results:
    """Milliseconds per client and step: lanes x convolution x precision."""
    wanted = [(n, conv, p) for p in PRECISIONS for n in ((1, 2) if box.smoke else (1, 4, 10, 2)) for conv in box.convs]
    found: dict[str, Any] = {}
    for num_lanes, conv, precision in wanted:
        name = f"{num_lanes} lanes, {conv}, {precision}"
        found[name] = world.step_seconds(box, num_lanes, conv, precision)
        yield {"milliseconds per client and step": found, "left out": [str(w) for w in wanted[len(found) :]]}


def graphs(box: world.Box) -> Results:
    """The step under whatever flags this process was started with."""
    found = {}
    for num_lanes in (1, 4):
        found[f"{num_lanes} lanes"] = world.step_seconds(box, num_lanes, box.convs[-1], PRECISIONS[0])
        yield {"milliseconds per client and step": found}


def score(box: world.Box) -> Results:
    """Images scored per second, by images in a pass."""
    found: dict[str, Any] = {}
    for precision in PRECISIONS:
        for images in (64, 128) if box.smoke else (256, 1024, 4096):
            name = f"{images} images a pass, {precision}"
            found[name] = round(world.scoring_rate(box, images, precision), 1)
            yield {"images per second": found}


def live(box: world.Box) -> Results:
    """The step when all parameters are carried through the loop, and when only those that can have a gradient are."""
    task = world.make_task(box, "gemm")
    params = jax.eval_shape(task.init, jax.random.key(0)).params
    share = tree.size(jax.eval_shape(task.support.of, params)) / tree.size(params)
    found = {}
    for name, carried in (("all", FULL_SUPPORT), ("live", task.support)):
        found[name] = world.step_seconds(box, 1, "gemm", PRECISIONS[0], carried)
        yield {"milliseconds per client and step": found, "live share of the parameters": round(share, 4)}


def parts(box: world.Box) -> Results:
    """One local step, one scoring pass, norms with weights and aggregation, and the upload of a schedule."""
    from benchmarks.ours import Ours

    sim = world.simulation(box)
    planned = [sim.schedule(0)]
    begun = time.perf_counter()
    ours = Ours(sim, planned)
    found: dict[str, Any] = {"compile_seconds": time.perf_counter() - begun, "lanes": planned[0].plan.client.shape[1]}
    yield found
    times = [ours.time() for _ in range(2 if box.smoke else 5)]
    found["seconds"] = {name: machine.spread([t[name] for t in times]) for name in times[0]}
    steps, length = int(planned[0].num_steps.sum()), int(planned[0].plan.length.sum())
    found |= {"steps": steps, "dependent steps": length, "largest client's": int(planned[0].num_steps.max())}
    found["milliseconds per client and step"] = 1e3 * found["seconds"]["train"]["median"] / steps
    passes = len(planned[0].clients) * int((np.asarray(sim.data.scoring) >= 0).any(1).sum())
    found["milliseconds per scoring group"] = 1e3 * found["seconds"]["score"]["median"] / passes
    yield found
    draw = machine.median_seconds(lambda: sim.schedule(1), 5)
    upload = machine.median_seconds(lambda: jax.block_until_ready(jax.device_put(ours.stacked)), 5)
    yield found | {"seconds to draw a schedule": draw, "seconds to upload it": upload}


def run(box: world.Box) -> Results:
    """The paper's run of 200 rounds, as many as fit in the box; what the rest would take is extrapolated."""
    sim = world.simulation(box, rounds=2 if box.smoke else 200)
    deadline, compiled = box.deadline - 10, time.perf_counter()
    seen: list[dict] = []

    def watch(records):
        seen.extend(records)
        if time.monotonic() > deadline:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C would stop it: after this chunk

    history = loop.run_simulation(sim, on_records=watch)
    took, done, rounds = history.summary["run_seconds"], len(history.records), sim.config.rounds
    yield {
        "rounds": done,
        "seconds": took,
        "compile_seconds": history.summary["compile_seconds"],
        "seconds with compiling": time.perf_counter() - compiled,
        "seconds of 200 rounds": took / max(done, 1) * 200,
        "extrapolated": done < rounds or rounds < 200,
        "seconds a round": machine.spread([r["seconds"] for r in seen]),
    }


def torch_loop(box: world.Box) -> Results:
    """The same step and the same scoring groups in PyTorch, kernels launched one by one."""
    from benchmarks import gpu_torch

    yield gpu_torch.measure(world.simulation(box), cases.CASES[box.case].model, box.smoke)


SECTIONS: dict[str, Callable[[world.Box], Results]] = {
    "peaks": peaks,
    "loop": fixed_cost,
    "lanes": lanes,
    "graphs": graphs,
    "score": score,
    "live": live,
    "parts": parts,
    "run": run,
    "torch": torch_loop,
}


def main(argv: list[str] | None = None) -> int:
    """Prints a line of JSON whenever more is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=SECTIONS)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--cpu-smoke", action="store_true")
    args = parser.parse_args(argv)
    box = world.Box(time.monotonic() + args.seconds, args.cpu_smoke)
    for found in SECTIONS[args.section](box):
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
