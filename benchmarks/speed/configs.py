"""Measures time, memory and losses of the shipped configs, each in a fresh process.

    python -m benchmarks.speed.configs --data-dir DIR [--only NAME ...] [--parts reduced plan five_rounds]

reduced       a run of few rounds on evenly spaced images at the size of `REDUCED`
plan          what `--dry-run` predicts at full size
five_rounds   a run of five rounds at full size

DIR holds the files of every data set, or a folder of each set's name with its files. Each part runs `python -m
fedvg_jax.sim --config configs/NAME.toml`. Results go to benchmarks/results/configs.json and into the headers of the
configs; configs that are not measured, or whose data is missing, keep their earlier results.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import machine
from fedvg_jax import config as configs
from fedvg_jax import data
from fedvg_jax.config import presets
from fedvg_jax.core.types import UsageError
from fedvg_jax.data.images import Size

CONFIGS = machine.ROOT / "configs"
RESULT = machine.RESULTS / "configs.json"

COMMON = "--rounds 5 --eval-every 1 --clients 4 --join-ratio 0.5 --alpha 100"
"""Flags of reduced runs. Clients are almost iid, because with few images a skewed partition would dominate the loss."""

TINY = "--local-epochs 1 --batch-size 8"
"""Flags for ViTs, which resize all images to 224 x 224 pixels."""


class Reduced(NamedTuple):
    """The reduced size of a config."""

    images: int
    flags: str = ""
    size: Size | None = None
    """height and width at which the data set is read; None: its own"""


REDUCED = {
    "cifar10_resnet18": Reduced(2000),
    "cifar10_lenet5": Reduced(2000),
    "cifar10_cnn": Reduced(2000),
    "organamnist_resnet18": Reduced(2000),
    "tinyimagenet_resnet50": Reduced(500),
    "covid19_resnet50": Reduced(800, size=(64, 64)),
    "dermamnist_resnet50": Reduced(1000, size=(28, 28)),
    "covid19_vit_s16": Reduced(160, TINY, (64, 64)),
    "dermamnist_vit_b16": Reduced(40, TINY, (28, 28)),
}


PARTS = ("reduced", "plan", "five_rounds")


def main(argv: list[str] | None = None) -> int:
    """Measures the configs; exit code 1 if data is missing for some of them."""
    args = parse(argv)
    results = json.loads(args.out.read_text(encoding="utf-8"))["configs"] if args.out.is_file() else {}
    failures = []
    for name, part in itertools.product(args.only, args.parts):
        about = machine.describe(["python", "-m", "benchmarks.speed.configs", "--data-dir", "DIR", "--only", name])
        try:
            source, measured = measure(name, part, args)
        except UsageError as error:
            failures.append(f"{name}: {error}")
            continue
        measured["machine"] = machine.add_final_load(about | {"command": f"{about['command']} --parts {part}"})
        results[name] = results.get(name, {}) | source | {part: measured}
        machine.write(
            args.out,
            {"command": "python -m benchmarks.speed.configs --data-dir DIR", "configs": dict(sorted(results.items()))},
        )
        if args.out == RESULT:
            path = CONFIGS / f"{name}.toml"
            config = replace_measurement(path.read_text(encoding="utf-8"), format_measurement(results[name]))
            path.write_text(config, encoding="utf-8")
    print(*failures, sep="\n", file=sys.stderr)
    return bool(failures)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = machine.parser(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=REDUCED, default=list(REDUCED), metavar="NAME")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["reduced"])
    parser.add_argument("--note", nargs="*", default=[], metavar="SET=TEXT", help="note on a set's data")
    parser.add_argument("--out", type=Path, default=RESULT)
    return parser.parse_args(argv)


def measure(name: str, part: str, args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measures a part of a config.

    Args:
        name: of the config.
        part: one of `PARTS`.
        args: the command line.

    Returns:
        The number of images and notes on the data; the results of the part.

    Raises:
        UsageError: the data set's files are missing or damaged.
    """
    dataset, case = configs.read_toml(CONFIGS / f"{name}.toml")["dataset"], REDUCED[name]
    folder = args.data_dir / dataset if (args.data_dir / dataset).is_dir() else args.data_dir
    size = case.size if part == "reduced" else None
    arrays = data.load(dataset, folder, configs.default_cache_dir() / "data", size=size)
    notes = dict(note.split("=", 1) for note in args.note)
    source = {"images_found": len(arrays.y), "images_of_the_paper": presets.NUM_IMAGES[dataset]}
    source |= {"note": notes[dataset]} if dataset in notes else {}
    with tempfile.TemporaryDirectory() as scratch:
        small, out = Path(scratch) / f"{dataset}.npz", Path(scratch) / "run"
        if part == "reduced":
            shape = write_subset(arrays, case.images, small)
            return source, {"images": shape} | run(name, f"--dataset npz {COMMON} {case.flags}", small, out)
        if part == "plan":
            return source, plan(name, folder)
        return source, run(name, "--rounds 5 --eval-every 1", folder, out)


def write_subset(arrays: data.Arrays, num: int, file: Path) -> list[int]:
    """Writes `num` images, evenly spaced over the pool, as an .npz file; returns their shape."""
    rows = np.unique(np.linspace(0, len(arrays.y) - 1, num).astype(int))
    np.savez(file, x=arrays.x[rows], y=arrays.y[rows], class_names=np.array(arrays.class_names))
    return [len(rows), *arrays.x.shape[1:]]


def run(name: str, flags: str, data_path: Path, out: Path) -> dict[str, Any]:
    """Runs a config with an empty compilation cache; returns losses, times and memory.

    Args:
        name: of the config.
        flags: of `fedvg_jax.sim`.
        data_path: file or folder of the data.
        out: run folder.
    """
    start = time.perf_counter()
    peak = run_process(name, f"{flags} --data-dir {data_path} --out {out} --cache-dir {out}-cache")
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    records = [json.loads(line) for line in (out / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    columns = ("train_loss", "val_loss", "test_accuracy")
    portable_path = data_path.name if data_path.is_file() else "DIR"
    results = {
        "command": f"python -m fedvg_jax.sim --config configs/{name}.toml {flags} --data-dir {portable_path}",
        **{column: [record[column] for record in records] for column in columns},
        "seconds_per_round": [round(record["seconds"], 2) for record in records],
        "compile_seconds": round(summary["compile_seconds"], 1),
        "seconds_in_all": round(time.perf_counter() - start),
        "peak_memory_gib": round(peak / 2**30, 2),
    }
    refuse_incomplete(results, json.loads((out / "config.json").read_text(encoding="utf-8"))["rounds"])
    print(f"{name}: {json.dumps(results)}", flush=True)
    return results


def refuse_incomplete(results: dict[str, Any], rounds: int) -> None:
    """Refuses results that lack rounds or hold non-finite numbers.

    Raises:
        UsageError: names the column.
    """
    for column in ("train_loss", "val_loss", "test_accuracy", "seconds_per_round"):
        values = results[column]
        if len(values) != rounds:
            raise UsageError(f"{column} has {len(values)} of {rounds} rounds")
        if not all(value is not None and math.isfinite(value) for value in values):
            raise UsageError(f"{column} is not finite in every round: {values}")


def plan(name: str, folder: Path) -> dict[str, Any]:
    """Returns the rows that `--dry-run` prints for a config at full size."""
    with tempfile.TemporaryFile("w+") as stdout:
        start = time.perf_counter()
        run_process(name, f"--data-dir {folder} --dry-run", stdout)
        stdout.seek(0)
        rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in stdout if line.startswith("│")]
    results = {"command": f"python -m fedvg_jax.sim --config configs/{name}.toml --data-dir DIR --dry-run"}
    results |= dict(rows) | {"seconds_of_the_dry_run": round(time.perf_counter() - start)}
    print(f"{name}: {json.dumps(results)}", flush=True)
    return results


def format_measurement(result: dict[str, Any]) -> str:
    """Returns the results of a config as text, for its header."""
    small = result["reduced"]
    images, height, width, _ = small["images"]
    note = f", {result['note']}" if "note" in result else ""
    sentences = [
        f"Measured at a reduced size ({images:,} images of {height} x {width}{note}; the command is in"
        f" benchmarks/results/configs.json) {_where(small['machine'])}: {_cost(small)}."
    ]
    if full := result.get("five_rounds"):
        losses = ", ".join(f"{loss:.3f}" for loss in full["val_loss"])
        where = _where(full["machine"])
        sentences.append(f"At full size five rounds {where}: {_cost(full)}; validation loss {losses}.")
    if plan := result.get("plan"):
        rounds = next(key for key in plan if key.endswith("rounds"))
        where = _where(plan["machine"])
        sentences.append(
            f"Predicted at full size by --dry-run {where}: {plan['one round']} a round, {plan[rounds]} for {rounds}."
        )
    return " ".join(sentences if full or plan else [*sentences, "At full size not yet measured."])


def _where(about: dict[str, Any]) -> str:
    busy = ", which other work shared" if about["busy"] else ""
    return f"on {about['cores']} cores of an {about['processor']}{busy} (jax {about['versions']['jax']})"


def _cost(run: dict[str, Any]) -> str:
    seconds = run["seconds_per_round"]
    rounds = f"{_rounded(min(seconds))} to {_rounded(max(seconds))} s a round"
    return f"{rounds}, {run['compile_seconds']:.0f} s to compile, {run['peak_memory_gib']:.1f} GiB at most"


def _rounded(seconds: float) -> str:
    """Returns seconds to the second, and below ten to two digits."""
    return f"{seconds:.0f}" if seconds >= 9.95 else f"{seconds:.2g}"


def replace_measurement(config: str, measurement: str) -> str:
    """Returns a config's text with new results in its header.

    The lines of the earlier results, which stand above those about memory, are replaced.
    """
    lines = config.splitlines(keepends=True)
    begin = next(i for i, line in enumerate(lines) if line.startswith(("# Measured", "# Time")))
    end = next(i for i in range(begin, len(lines)) if lines[i].startswith(("# Memory", "#\n")))
    wrapped = textwrap.wrap(measurement, 120, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    return "".join(lines[:begin] + [f"{line}\n" for line in wrapped] + lines[end:])


def run_process(name: str, flags: str, stdout: Any = subprocess.DEVNULL) -> int:
    """Runs a config in a process; returns its peak resident memory in bytes.

    Raises:
        UsageError: the process failed; with its standard error.
    """
    command = [sys.executable, "-m", "fedvg_jax.sim", "--config", str(CONFIGS / f"{name}.toml"), *shlex.split(flags)]
    with tempfile.TemporaryFile("w+") as stderr:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        stderr.seek(0)
        if process.returncode:
            raise UsageError(stderr.read().strip() or f"exit code {process.returncode}")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    sys.exit(main())
