"""The sections of `benchmarks.gpu`, which runs each in its own process.

python -m benchmarks.gpu_sections NAME [--seconds S] [--cpu-smoke]

A section is a function that yields its results so far after each measurement; each is printed as a line of JSON, so
that a process that is stopped still has results.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import cases, machine
from benchmarks import gpu_workload as workload
from fedvg_jax.runs import loop

Results = Iterator[dict[str, Any]]

DIGITS = Path(__file__).parent.parent / "configs" / "digits.toml"

AGREE = {"config": DIGITS, "model": "tinycnn", "lr": 0.05, "rounds": 3, "eval-every": 1, "devices": 1}
"""Options of the runs of `agree`."""

MODELS = (
    ("lenet5", 32, ("gemm", "lax")),
    ("efficientnet_lite0", 64, ("gemm",)),
    ("efficientnet_lite0", 64, ("lax",)),
    ("vit_s16", 224, ("auto",)),
    ("resnet50", 64, ("lax", "gemm")),
)
"""Networks of `models`, the pixels of an image's side, and convolution algorithms."""

PRECISIONS = ("tensorfloat32", "bfloat16")
"""Precisions of matmuls and convolutions, by jax.default_matmul_precision; all other operations are in float32."""

VARIANTS = (
    ("gemm", "tensorfloat32", (1, 4, 10)),
    ("lax", "tensorfloat32", (1,)),
    ("winograd", "tensorfloat32", (1, 4)),
    ("gemm", "bfloat16", (1, 4, 10)),
    ("lax", "tensorfloat32", (4, 10)),
)
"""Convolution algorithms of `lanes`, precisions and numbers of lanes, in the order of measurement."""


def peaks(box: workload.Box) -> Results:
    """Speed of matrix products by precision, and of a copy."""
    device = jax.devices()[0]
    results: dict[str, Any] = {"device": {"accelerator": device.device_kind, "jax_backend": device.platform}}
    results["TF/s"] = machine.accelerator_peaks(128 if box.smoke else 8192, 3 if box.smoke else 20)
    yield results
    size = 2**10 if box.smoke else 2**28
    x, double = jnp.ones(size), jax.jit(lambda x: x * 2)
    seconds = machine.median_seconds(lambda: double(x).block_until_ready(), 5)
    yield results | {"copy GB/s, read and written": round(8e-9 * size / seconds, 2)}


def loop_overhead(box: workload.Box) -> Results:
    """Microseconds of an iteration of an almost empty loop, whose trip count is data or a constant."""

    def iterate(count, x):
        return lax.fori_loop(0, count, lambda i, x: x + 1, x)

    count, results = 20 if box.smoke else 5000, {}
    for name, f, args in (
        ("data", jax.jit(iterate), (jnp.int32(count), jnp.zeros(()))),
        ("constant", jax.jit(lambda x: iterate(count, x)), (jnp.zeros(()),)),
    ):
        seconds = machine.median_seconds(lambda f=f, args=args: f(*args).block_until_ready(), 5)
        results[f"microseconds a turn, trip count {name}"] = 1e6 * seconds / count
    call = jax.jit(lambda x: x + 1)
    yield results | {"microseconds a call": 1e6 * machine.median_seconds(lambda: call(0.0).block_until_ready(), 50)}


def lanes(box: workload.Box) -> Results:
    """Milliseconds per client and local step, by lanes, convolution algorithm and precision."""
    results: dict[str, Any] = {}
    for conv, precision, lanes in VARIANTS:
        steps = [workload.Step(n, conv, precision) for n in lanes if not box.smoke or n < 10]
        results.setdefault(precision, {}).update(workload.step_milliseconds(box, steps))
        yield {"milliseconds per client and step": results}


def models(box: workload.Box) -> Results:
    """Milliseconds per client and local step of other networks, by lanes and convolution algorithm."""
    results: dict[str, Any] = {}
    for model, side, convs in MODELS[: 1 if box.smoke else None]:
        steps = [workload.Step(n, conv, model=model, side=side) for n in (1, 4) for conv in convs]
        results.setdefault(f"{model} at {side} pixels", {}).update(workload.step_milliseconds(box, steps))
        yield {"milliseconds per client and step": results}


def graphs(box: workload.Box) -> Results:
    """Milliseconds per client and local step under this process's XLA_FLAGS, see `gpu.GRAPHS`."""
    steps = [workload.Step(n, "gemm", PRECISIONS[0]) for n in (1, 4)]
    yield {"milliseconds per client and step": workload.step_milliseconds(box, steps)}


def score(box: workload.Box) -> Results:
    """Images scored per second, by images in a pass."""
    results: dict[str, Any] = {}
    for precision in PRECISIONS:
        for images in (64, 128) if box.smoke else (256, 1024, 4096):
            name = f"{images} images a pass, {precision}"
            results[name] = round(workload.scoring_rate(box, images, precision), 1)
            yield {"images per second": results}


def agree(box: workload.Box) -> Results:
    """Differences between runs of a CNN on the digits: with other arithmetic, twice the same, and on the CPU."""
    ways: dict[str, tuple[list[str], dict[str, str]]] = {
        "default": ([], {}),
        "default again": ([], {}),
        "highest": (["--precision", "highest"], {}),
        "bfloat16": (["--precision", "bfloat16"], {}),
        "deterministic": (["--deterministic"], {}),
        "deterministic again": (["--deterministic"], {}),
        "cpu": ([], {"JAX_PLATFORMS": "cpu"}),
    }
    options = [text for name, value in AGREE.items() for text in (f"--{name}", str(value))]
    with tempfile.TemporaryDirectory() as folder:
        processes = {}
        for way, (more, variables) in ways.items():
            command = [sys.executable, "-m", "fedvg_jax.sim", *options, *more, "--out", f"{folder}/{way}"]
            processes[way] = subprocess.Popen(
                command, env=os.environ | variables, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        texts = {way: process.communicate()[1] for way, process in processes.items()}
        paths = {way: Path(folder, way, "history.jsonl") for way in ways if not processes[way].returncode}
        runs = {way: [json.loads(line) for line in path.read_text().splitlines()] for way, path in paths.items()}
    errors = {way: text[-500:] for way, text in texts.items() if processes[way].returncode}
    same = {
        way: _without_times(runs[way]) == _without_times(runs[f"{way} again"])
        for way in ("default", "deterministic")
        if {way, f"{way} again"} <= runs.keys()
    }
    against = runs.pop("cpu", None)
    differences = {
        way: [workload.difference(a, b) for a, b in zip(run, against, strict=True)]
        for way, run in runs.items()
        if against and not way.endswith("again")
    }
    yield {"the same bits twice": same, "differences from the CPU, by round": differences, "errors": errors}


def _without_times(history: list[dict]) -> list[dict]:
    return [{name: value for name, value in record.items() if name != "seconds"} for record in history]


def phases(box: workload.Box) -> Results:
    """Seconds of a round's phases, of a local step and a scoring pass, and of drawing and uploading a schedule."""
    from benchmarks.ours import Ours

    sim = workload.simulation(box)
    planned = [sim.schedule(0)]
    start = time.perf_counter()
    ours = Ours(sim, planned)
    results: dict[str, Any] = {"compile_seconds": time.perf_counter() - start, "lanes": planned[0].plan.client.shape[1]}
    yield results
    times = [ours.time() for _ in range(2 if box.smoke else 5)]
    results["seconds"] = {name: machine.spread([t[name] for t in times]) for name in times[0]}
    steps, length = int(planned[0].num_steps.sum()), int(planned[0].plan.length.sum())
    results |= {"steps": steps, "dependent steps": length, "largest client's": int(planned[0].num_steps.max())}
    results["milliseconds per client and step"] = 1e3 * results["seconds"]["train"]["median"] / steps
    passes = len(planned[0].clients) * int((np.asarray(sim.data.scoring) >= 0).any(1).sum())
    results["milliseconds per scoring group"] = 1e3 * results["seconds"]["score"]["median"] / passes
    yield results
    draw = machine.median_seconds(lambda: sim.schedule(1), 5)
    upload = machine.median_seconds(lambda: jax.block_until_ready(jax.device_put(ours.stacked)), 5)
    yield results | {"seconds to draw a schedule": draw, "seconds to upload it": upload}


def run(box: workload.Box) -> Results:
    """The paper's run of 200 rounds: as many as fit in the time limit, and the extrapolated seconds of all."""
    sim = workload.simulation(box, rounds=2 if box.smoke else 200)
    deadline, start = box.deadline - 10, time.perf_counter()
    records: list[dict] = []

    def stop_in_time(new_records):
        records.extend(new_records)
        if time.monotonic() > deadline:
            signal.raise_signal(signal.SIGINT)  # stops the run after this chunk, as Ctrl-C does

    history = loop.run_simulation(sim, on_records=stop_in_time)
    seconds, num_rounds, rounds = history.summary["run_seconds"], len(history.records), sim.config.rounds
    yield {
        "rounds": num_rounds,
        "seconds": seconds,
        "compile_seconds": history.summary["compile_seconds"],
        "seconds with compiling": time.perf_counter() - start,
        "seconds of 200 rounds": seconds / max(num_rounds, 1) * 200,
        "extrapolated": num_rounds < rounds or rounds < 200,
        "seconds a round": machine.spread([r["seconds"] for r in records]),
    }


def torch_loop(box: workload.Box) -> Results:
    """The same local step and scoring groups in eager PyTorch, which launches kernels one by one."""
    from benchmarks import gpu_torch

    yield gpu_torch.measure(workload.simulation(box), cases.CASES[box.case].model, box.smoke)


SECTIONS: dict[str, Callable[[workload.Box], Results]] = {
    "peaks": peaks,
    "loop": loop_overhead,
    "agree": agree,
    "lanes": lanes,
    "models": models,
    "graphs": graphs,
    "score": score,
    "parts": phases,
    "run": run,
    "torch": torch_loop,
}


def main(argv: list[str] | None = None) -> int:
    """Prints a section's results as lines of JSON, each with those before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=SECTIONS)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--cpu-smoke", action="store_true")
    args = parser.parse_args(argv)
    box = workload.Box(time.monotonic() + args.seconds, args.cpu_smoke)
    for results in SECTIONS[args.section](box):
        print(json.dumps(results), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
