"""Measures memory and time of a run on a memory-mapped data set with `--placement device` and with `--placement host`.

    python -m benchmarks.speed.host_pool [--gib 3] [--folder DIR] [--out benchmarks/results/host_pool.json]

Writes random uint8 images of 160 x 160 x 3 to DIR and trains a linear model on means of 16 x 16 pixels, whose little
computation makes copying as large a part of a round as possible. "device" and "host" run in separate processes. Prints
and writes seconds, `anonymous` memory, which the system cannot evict, and `resident` memory, which includes evictable
pages of the file.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine

SIDE, CLASSES, ROWS_PER_CLIENT, COHORT = 160, 10, 100, 20
ROUNDS, EVAL_EVERY = 20, 10
MIB_PER_WRITE = 64


def write_images(folder: Path, gib: float) -> None:
    """Writes x.npy and y.npy, a few images at a time."""
    count = int(gib * 2**30 / (SIDE * SIDE * 3)) // ROWS_PER_CLIENT * ROWS_PER_CLIENT
    rng = np.random.default_rng(0)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.uint8, (count, SIDE, SIDE, 3))
    step = MIB_PER_WRITE * 2**20 // (SIDE * SIDE * 3)
    for begin in range(0, count, step):
        part = x[begin : begin + step]
        part[:] = np.frombuffer(rng.bytes(part.size), np.uint8).reshape(part.shape)
    x.flush()
    np.save(folder / "y.npy", rng.integers(0, CLASSES, count, np.int32))


def linear_task():
    """Returns the task of a linear classifier on means of 16 x 16 pixels."""
    import jax.numpy as jnp
    import optax

    import fedvg_jax as fv

    def logits(params, x):
        blocks = x.reshape(len(x), SIDE // 16, 16, SIDE // 16, 16, 3).astype(jnp.float32).mean((2, 4)) / 255
        return blocks.reshape(len(x), -1) @ params["kernel"]

    def entropies(params, batch, mask):
        each = optax.softmax_cross_entropy_with_integer_labels(logits(params, batch.x), batch.y)
        return jnp.where(mask, each, 0).sum()

    def init(key):
        return fv.Variables({"kernel": jnp.zeros((3 * (SIDE // 16) ** 2, CLASSES))}, {})

    def loss(params, stats, batch, mask, train):
        return entropies(params, batch, mask) / jnp.maximum(mask.sum(), 1).astype(jnp.float32), stats

    def measure(params, stats, batch, mask):
        return {"sum": entropies(params, batch, mask), "rows": mask.sum()}

    def metrics(sums):
        return {"loss": float(sums["sum"] / sums["rows"])}

    return fv.Task(init, loss, lambda params, stats, batch: logits(params, batch.x), measure, metrics, str)


def anonymous_bytes() -> int:
    """Returns the memory of this process that is not backed by a file."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def measure_run(folder: Path, pool: str) -> dict[str, Any]:
    """Runs in this process; returns seconds, memory and losses.

    Args:
        folder: with x.npy and y.npy.
        pool: "device" or "host".
    """
    import fedvg_jax as fv
    from fedvg_jax.data import datasets

    data = datasets.load("npz", folder)
    config = make_config(len(data.y) // ROWS_PER_CLIENT, pool)
    before, peak, done = anonymous_bytes(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], anonymous_bytes())

    watcher, start = threading.Thread(target=watch), time.perf_counter()
    watcher.start()
    try:
        history = fv.run(config, data=data, task=linear_task())
    finally:
        seconds = time.perf_counter() - start
        done.set()
        watcher.join()
    return {
        "pool": pool,
        "seconds_per_round": statistics.median(record["seconds"] for record in history.records[1:]),
        "seconds": seconds,
        "anonymous_before": before,
        "anonymous": peak[0],
        "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "losses": [
            [record["train_loss"], record.get("val_loss"), record.get("test_loss")] for record in history.records
        ],
    }


def make_config(num_clients: int, pool: str):
    """Returns the settings of a run with `COHORT` clients a round."""
    import fedvg_jax as fv

    return fv.Config(
        clients=num_clients,
        join_ratio=COHORT / num_clients,
        rounds=ROUNDS,
        eval_every=EVAL_EVERY,
        local_epochs=1,
        batch_size=20,
        lr=0.1,
        val_ratio=0.02,
        test_ratio=0.1,
        placement=pool,
        weighting="samples",  # because scoring would take most of a round
        devices="1",
        partition="iid",
    )


def main(argv: list[str] | None = None) -> None:
    """Measures both pools and writes the results."""
    parser = machine.parser(__doc__, "host_pool.json")
    parser.add_argument("--gib", type=float, default=3.0, help="size of the images")
    parser.add_argument("--folder", type=Path, help="for the images; default: a temporary folder")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.measure:
        print(json.dumps(measure_run(args.folder, args.measure)))
        return
    results = machine.begin("speed.host_pool", argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "y.npy").exists():
            write_images(folder, args.gib)
        runs = []
        for pool in ("device", "host"):
            command = [sys.executable, "-m", "benchmarks.speed.host_pool", "--measure", pool, "--folder", str(folder)]
            runs.append(json.loads(subprocess.check_output(command, text=True).splitlines()[-1]))
            anonymous, resident = (runs[-1][name] / 2**30 for name in ("anonymous", "resident"))
            seconds = runs[-1]["seconds_per_round"]
            print(f"{pool}: {seconds:.3f} s a round, {anonymous:.2f} GiB anonymous, {resident:.2f} GiB resident")
        size = (folder / "x.npy").stat().st_size
    losses = [run.pop("losses") for run in runs]
    numbers = {"data_bytes": size, "cohort": COHORT, "rows_per_client": ROWS_PER_CLIENT, "rounds": ROUNDS}
    machine.finish(args.out, results | numbers | {"equal_histories": losses[0] == losses[1], "runs": runs})


if __name__ == "__main__":
    main()
