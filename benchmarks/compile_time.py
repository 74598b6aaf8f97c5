"""Measures what compiling costs: a run in a fresh process less the same run again, with an empty and with a full cache.

    python -m benchmarks.compile_time [--networks cnn ...] [--repeats 3] [--beside CHECKOUT] [--out FILE.json]

`plain` is a jitted scan of the same SGD steps in JAX and Flax alone; `demo` is a whole `python -m fedvg_jax.sim --alpha
0.05`. With --beside, another checkout takes turns. Prints medians of CPU seconds and of wall time, and their ratios to
the first row; writes all of them to FILE.json.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parent / "results" / "compile_time.json"
NETWORKS = ("cnn", "gru", "demo", "mlp", "lenet5", "resnet18")
OWN = ("cnn", "gru")
"""Networks with a plain scan beside them; the others are the package's."""


def clocks(whose: int = resource.RUSAGE_SELF) -> tuple[float, float]:
    """Returns CPU seconds and wall time."""
    used = resource.getrusage(whose)
    return used.ru_utime + used.ru_stime, time.perf_counter()


def own_network(name: str):
    """Returns a user's network and rows for it, x [1600, ...] and y [1600]."""
    import flax.linen as nn
    import numpy as np

    class Cnn(nn.Module):
        @nn.compact
        def __call__(self, x, train: bool):
            for features in (16, 32):
                x = nn.max_pool(nn.relu(nn.Conv(features, (3, 3))(x)), (2, 2), (2, 2))
            x = nn.relu(nn.Dense(64)(x.reshape(len(x), -1)))
            return nn.Dense(10)(nn.Dropout(0.5, deterministic=not train)(x))

    class Gru(nn.Module):
        @nn.compact
        def __call__(self, x, train: bool):
            x = nn.RNN(nn.GRUCell(32))(x.reshape(len(x), 16, 48))[:, -1]
            return nn.Dense(10)(nn.Dropout(0.3, deterministic=not train)(x))

    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 1600)
    return {"cnn": Cnn, "gru": Gru}[name](), rng.normal(size=(1600, 16, 16, 3)).astype(np.float32), y


def plain(name: str) -> tuple[float, ...]:
    """Returns the seconds that a scan of 40 SGD steps takes to trace and to compile."""
    import jax
    import jax.numpy as jnp
    import optax

    net, x, y = own_network(name)
    start = clocks()
    params = jax.eval_shape(lambda key: net.init(key, x[:1], False)["params"], jax.random.key(0))

    def steps(params, x, y, rows, keys):
        def step(params, minibatch):
            rows, key = minibatch

            def loss(params):
                logits = net.apply({"params": params}, x[rows], True, rngs={"dropout": key})
                return optax.softmax_cross_entropy_with_integer_labels(logits, y[rows]).mean()

            value, grads = jax.value_and_grad(loss)(params)
            return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), value

        return jax.lax.scan(step, params, (rows, keys))

    rows = jnp.zeros((40, 32), jnp.int32)
    jax.jit(steps).lower(params, x, y, rows, jax.random.split(jax.random.key(0), 40)).compile()
    return tuple(after - before for before, after in zip(start, clocks(), strict=True))


def run(name: str) -> tuple[float, ...]:
    """Returns the seconds of a run less those of the same run again."""
    import numpy as np
    import optax

    import fedvg_jax as fv

    if name in OWN:
        net, x, y = own_network(name)
        config = fv.Config(rounds=5, clients=8, alpha=1.0, lr=0.05)
        make = functools.partial(fv.linen_task, net, optax.softmax_cross_entropy_with_integer_labels, x[:1])
    else:
        x = np.random.default_rng(0).integers(0, 255, (600, 32, 32, 3)).astype(np.uint8)
        y, make = np.arange(600) % 10, lambda: None
        config = fv.Config(model=name, clients=4, alpha=100.0, rounds=1, batch_size=16, local_epochs=1)
    times = [clocks()]
    task = make()
    for _ in range(2):
        fv.run(config, data=(x, y), task=task)
        times.append(clocks())
    return tuple((middle - start) - (end - middle) for start, middle, end in zip(*times, strict=True))


def in_process(child: str, name: str, checkout: Path, cache: str) -> list[float]:
    """Returns what `plain` or `run` measures in a process of its own, with the package of a checkout."""
    variables = {"PYTHONPATH": str(checkout), "FEDVG_CACHE_DIR": cache, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, __file__, "--child", child, "--networks", name]
    if name == "demo":
        command = [sys.executable, "-m", "fedvg_jax.sim", "--alpha", "0.05", "--out", f"{cache}/{time.time_ns()}"]
        start = clocks(resource.RUSAGE_CHILDREN)
        subprocess.run(command, env=os.environ | variables, stdout=subprocess.DEVNULL, check=True)
        return [after - before for before, after in zip(start, clocks(resource.RUSAGE_CHILDREN), strict=True)]
    return json.loads(subprocess.run(command, env=os.environ | variables, capture_output=True, check=True).stdout)


def main(argv: list[str] | None = None) -> None:
    """Measures the networks in turns and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another version to compare with")
    parser.add_argument("--out", type=Path, default=RESULT, metavar="FILE.json")
    parser.add_argument("--child", choices=("plain", "run"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        print(json.dumps((plain if args.child == "plain" else run)(args.networks[0])))
        return
    import numpy as np

    from benchmarks import machine

    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # because an installed package has bytecode too
    results: dict[str, Any] = {"machine": machine.describe(["python", "-m", "benchmarks.compile_time"]), "networks": {}}
    versions = {"here": Path(__file__).parents[1]} | ({"beside": args.beside} if args.beside else {})
    for name in args.networks:
        seconds: dict[str, list[list[float]]] = {}
        for _ in range(args.repeats):
            if name in OWN:
                seconds.setdefault("plain", []).append(in_process("plain", name, versions["here"], "none"))
            for version, checkout in versions.items():
                with tempfile.TemporaryDirectory() as cache:
                    for state in ("empty", "full"):
                        measured = in_process("run", name, checkout, cache)
                        seconds.setdefault(f"{version}, {state} cache", []).append(measured)
        medians = {row: [statistics.median(clock) for clock in np.transpose(of_row)] for row, of_row in seconds.items()}
        results["networks"][name] = medians
        first = next(iter(medians.values()))
        for row, values in medians.items():
            shown = [f"{value:7.2f} s ({value / of_first:.2f})" for value, of_first in zip(values, first, strict=True)]
            print(f"{name:10s}{row:22s} CPU{shown[0]}  wall{shown[1]}")
    results["machine"] = machine.add_final_load(results["machine"])
    machine.write(args.out, results)


if __name__ == "__main__":
    main()
