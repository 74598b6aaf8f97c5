"""What the shipped configs take at a reduced size, each run in a fresh process; and predictions at full size.

    python -m benchmarks.configs --data-dir DIR [--only NAME ...] [--full NAME ...]

DIR holds the files of every set, or a folder of each set's name with them. A set is read by its own reader at the size
of `REDUCED`, evenly spaced images are kept, and `python -m fedvg_jax.sim --config configs/NAME.toml` runs on those. A
config whose files are not there keeps what the results file says of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import machine
from fedvg_jax import config as configs
from fedvg_jax import data, presets
from fedvg_jax.data.images import Size
from fedvg_jax.types import UsageError

CONFIGS = Path(__file__).parent.parent / "configs"
RESULT = Path(__file__).parent / "results" / "configs.json"

COMMON = "--rounds 3 --eval-every 1 --min-samples-rule top_up"
SMALL = "--clients 10 --join-ratio 0.2"
TINY = "--clients 4 --join-ratio 0.5 --local-epochs 1 --batch-size 8"
"""For ViTs, which see 224 x 224 pixels whatever the set's images."""


class Reduced(NamedTuple):
    """How a config is made small."""

    images: int
    flags: str
    size: Size | None = None
    """that the set is read at; None: its own"""


REDUCED = {
    "cifar10_resnet18": Reduced(2000, SMALL),
    "organamnist_resnet18": Reduced(2000, SMALL),
    "tinyimagenet_resnet50": Reduced(1000, SMALL),
    "covid19_resnet50": Reduced(800, SMALL, (64, 64)),
    "dermamnist_resnet50": Reduced(1000, SMALL, (28, 28)),
    "covid19_vit_s16": Reduced(160, TINY, (64, 64)),
    "dermamnist_vit_b16": Reduced(80, TINY, (28, 28)),
}


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when all were measured, 1 when the files of some are not there."""
    args = parse(argv)
    about = machine.describe(["python", "-m", "benchmarks.configs", *(sys.argv[1:] if argv is None else argv)])
    results = json.loads(args.out.read_text(encoding="utf-8")) if args.out.is_file() else {}
    lacking = []
    for name in args.only:
        try:
            results[name] = measured(name, args)
        except UsageError as error:
            lacking.append(f"{name}: {error}")
            continue
        results[name] |= {"measured": machine.finished(about)}
        machine.write(args.out, dict(sorted(results.items())))
    print(*lacking, sep="\n", file=sys.stderr)
    return bool(lacking)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=REDUCED, default=list(REDUCED), metavar="NAME")
    parser.add_argument("--full", nargs="+", choices=REDUCED, default=[], metavar="NAME", help="predicted at full size")
    parser.add_argument("--note", nargs="*", default=[], metavar="SET=TEXT", help="of files that stand in for a set")
    parser.add_argument("--out", type=Path, default=RESULT)
    return parser.parse_args(argv)


def measured(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """A run at reduced size, and its plan at full size where that is asked for.

    Raises:
        UsageError: the set's files are not there, or damaged.
    """
    dataset = configs.read_toml(CONFIGS / f"{name}.toml")["dataset"]
    folder = args.data_dir / dataset if (args.data_dir / dataset).is_dir() else args.data_dir
    arrays = data.load(dataset, folder, configs.default_cache_dir(), size=REDUCED[name].size)
    found = {"images_found": len(arrays.y), "images_of_the_paper": presets.NUM_IMAGES[dataset]}
    notes = dict(note.split("=", 1) for note in args.note)
    found |= {"note": notes[dataset]} if dataset in notes else {}
    with tempfile.TemporaryDirectory() as scratch:
        small = Path(scratch) / f"{dataset}.npz"
        reduce(arrays, REDUCED[name].images, small)
        found["reduced"] = run(name, small)
    if name in args.full:
        found["full_size_predicted"] = predicted(name, folder)
    return found


def reduce(arrays: data.Arrays, num: int, file: Path) -> None:
    """`num` images, evenly spaced over the pool, as a .npz of arrays."""
    rows = np.unique(np.linspace(0, len(arrays.y) - 1, num).astype(int))
    np.savez(file, x=arrays.x[rows], y=arrays.y[rows], class_names=np.array(arrays.class_names))


def run(name: str, small: Path) -> dict[str, Any]:
    """Losses, times and memory of a run on the images of `small`."""
    case, out = REDUCED[name], small.parent / "run"
    flags = f"--dataset npz {COMMON} {case.flags}"
    peak = call(name, f"{flags} --data-dir {small} --out {out} --cache-dir {small.parent / 'cache'}")
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    records = [json.loads(line) for line in (out / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    with np.load(small) as held:
        shape = list(held["x"].shape)
    found = {
        "command": f"python -m fedvg_jax.sim --config configs/{name}.toml {flags} --data-dir {small.name}",
        "images": shape,
        "train_loss": [record["train_loss"] for record in records],
        "val_loss": [record["val_loss"] for record in records],
        "test_accuracy": [record["test_accuracy"] for record in records],
        "seconds_per_round": [round(record["seconds"], 2) for record in records],
        "compile_seconds": round(summary["compile_seconds"], 1),
        "peak_memory_gib": round(peak / 2**30, 2),
    }
    print(f"{name}: {json.dumps(found)}", flush=True)
    return found


def predicted(name: str, folder: Path) -> dict[str, Any]:
    """The plan that `--dry-run` prints, at the config's own size."""
    with tempfile.TemporaryFile("w+") as said:
        begun = time.perf_counter()
        call(name, f"--data-dir {folder} --dry-run", said)
        said.seek(0)
        lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said if line.startswith("│")]
    found = {"command": f"python -m fedvg_jax.sim --config configs/{name}.toml --data-dir DIR --dry-run"}
    found |= dict(lines) | {"seconds_of_the_dry_run": round(time.perf_counter() - begun)}
    print(f"{name}: {json.dumps(found)}", flush=True)
    return found


def call(name: str, flags: str, stdout: Any = subprocess.DEVNULL) -> int:
    """Peak resident memory, bytes, of the process that runs a config.

    Raises:
        UsageError: with what it said, if it failed.
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
