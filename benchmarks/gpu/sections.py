"""The sections of `benchmarks.gpu`, which runs each in its own process.

A section is a function that yields its results so far after each measurement, so that a process that is stopped still
has results. Its docstring says what it decides.
"""

from __future__ import annotations

import functools
import operator
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import machine
from benchmarks.gpu import process, workload
from benchmarks.speed import adapters, cases
from fedvg_jax.runs import loop

Results = Iterator[dict[str, Any]]

MODELS = (
    ("lenet5", 32, ("gemm", "lax")),
    ("cnn", 32, ("gemm", "lax")),
    ("resnet50", 64, ("lax", "gemm")),
    ("efficientnet_lite0", 64, ("lax", "gemm")),
    ("vit_s16", 224, ("auto",)),
)
"""Networks of `models`, the pixels of an image's side, and convolution algorithms."""


def peaks(box: workload.Box) -> Results:
    """Speed of matrix products by precision, and of a copy: what shares of a peak are shares of."""
    device = jax.devices()[0]
    results: dict[str, Any] = {
        "device": {"accelerator": device.device_kind, "jax_backend": device.platform}
    }
    results["TF/s"] = machine.accelerator_peaks(128 if box.smoke else 8192, 3 if box.smoke else 20)
    yield results
    size = 2**10 if box.smoke else 2**28
    x, double = jnp.ones(size), jax.jit(lambda x: x * 2)
    seconds = machine.median_seconds(lambda: double(x).block_until_ready(), 5)
    yield results | {"copy GB/s, read and written": round(8e-9 * size / seconds, 2)}


def score(box: workload.Box) -> Results:
    """Rows of D_val scored per second: decides `scoring_conv`, `rows_per_scoring_pass` and bfloat16 activations."""
    rates: dict[str, dict[str, Any]] = {}
    for precision in ("default",) if box.smoke else ("default", "bfloat16"):
        for conv in ("lax", "gemm"):
            way, sizes = workload.Way(conv, precision), (64,) if box.smoke else (1024, 4096, 6016)
            rates.setdefault(conv, {})[precision] = workload.scoring_rates(box, way, sizes)
            yield {"rows per second": rates}


def step(box: workload.Box, graphs: str | None) -> Results:
    """Milliseconds per client and local step: decides `launch_graphs`, `max_lanes` and training's convolution."""
    results: dict[str, Any] = {}
    for conv in ("gemm",) if box.smoke else ("gemm", "lax"):
        way = workload.Way(conv, graphs=graphs)
        results |= workload.step_milliseconds(
            box, [(lanes, way) for lanes in ((2,) if box.smoke else (4, 10, 1))]
        )
        yield {"milliseconds": results}


def models(box: workload.Box) -> Results:
    """Milliseconds per client and local step of other networks: decides whether ResNet-18's choices are theirs."""
    results: dict[str, Any] = {}
    for model, side, convs in MODELS[: 1 if box.smoke else None]:
        ways = [(n, workload.Way(conv, model=model, side=side)) for n in (4, 1) for conv in convs]
        results[f"{model} at {side} pixels"] = workload.step_milliseconds(
            box, ways[: 1 if box.smoke else None]
        )
        yield {"milliseconds": results}


def trained_parts(box: workload.Box) -> Results:
    """Seconds and memory of rounds that train all, adapters, or head and norms: decides what the page of adapters says.

    Each case has a separate process, because a device's peak of memory cannot be reset.
    """
    models = ["tinycnn"] if box.smoke else ["vit_s16", "efficientnet_lite0", "vit_b16"]
    cases = adapters.cases(models)
    points: list[dict[str, Any]] = []
    for case in sorted(cases, key=operator.itemgetter(1)):
        try:
            points.append(machine.in_process(adapters.measure, *case))
        except SystemExit as error:  # out of memory: the others still count
            points.append({"case": case, "error": str(error)})
        yield {"points": points}


def phases(box: workload.Box) -> Results:
    """Seconds of a round and of its phases alone: decides what the next change has to make faster."""
    from benchmarks.speed.ours import Ours

    workload.take_choices(box.chosen)
    sim = workload.simulation(box)
    planned = [sim.schedule(0)]
    start = time.perf_counter()
    ours = Ours(sim, planned)
    results: dict[str, Any] = {
        "compile_seconds": time.perf_counter() - start,
        "chosen": dict(box.chosen),
    }
    times = [ours.time() for _ in range(2 if box.smoke else 5)]
    results["seconds"] = machine.spread_by_part(times)
    steps, length = int(planned[0].num_steps.sum()), int(planned[0].plan.length.sum())
    rows = len(planned[0].clients) * int((np.asarray(sim.data.scoring) >= 0).sum())
    results |= {"lanes": planned[0].plan.client.shape[1], "steps": steps, "dependent steps": length}
    yield results | {"rows scored per second": rows / results["seconds"]["score"]["median"]}


def run(box: workload.Box) -> Results:
    """The paper's run of 200 rounds by the fastest choices: as many as fit, and the extrapolated seconds of all."""
    workload.take_choices(box.chosen)
    sim = workload.simulation(box, rounds=2 if box.smoke else 200)
    deadline, start = box.deadline - 10, time.perf_counter()
    records: list[dict] = []

    def stop_in_time(new_records):
        records.extend(new_records)
        if time.monotonic() > deadline:
            signal.raise_signal(signal.SIGINT)  # stops the run after this chunk, as Ctrl-C does

    history = loop.run_simulation(sim, on_progress=stop_in_time)
    seconds, num_rounds, rounds = (
        history.summary["run_seconds"],
        len(history.records),
        sim.config.rounds,
    )
    yield {
        "chosen": dict(box.chosen),
        "rounds": num_rounds,
        "seconds": seconds,
        "compile_seconds": history.summary["compile_seconds"],
        "seconds with compiling": time.perf_counter() - start,
        "seconds of 200 rounds": seconds / max(num_rounds, 1) * 200,
        "extrapolated": num_rounds < rounds or rounds < 200,
        "seconds a round": machine.spread([r["seconds"] for r in records]),
    }


def torch_loop(box: workload.Box) -> Results:
    """The same round in PyTorch, by CUDA graphs, torch.compile and eager: the contestant of our round."""
    from benchmarks.gpu import pytorch

    yield from pytorch.measure(workload.simulation(box), cases.CASES[box.case].model, box.smoke)


SECTIONS: dict[str, Callable[[workload.Box], Results]] = {
    "peaks": peaks,
    "score": score,
    **{name: functools.partial(step, graphs=graphs) for name, graphs in process.GRAPHS.items()},
    "torch": torch_loop,
    "round": phases,
    "round_chosen": phases,
    "run": run,
    "models": models,
    "adapters": trained_parts,
}
"""In the order of `session.SECTIONS`."""


def measure(name: str, seconds: float, smoke: bool, chosen: dict[str, Any]) -> Results:
    """Yields the results of a section so far; `round` takes the package's choices."""
    box = workload.Box(time.monotonic() + seconds, smoke, {} if name == "round" else chosen)
    yield from SECTIONS[name](box)
