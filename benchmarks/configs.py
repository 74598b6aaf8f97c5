"""What the shipped configs take, each in a fresh process: reduced in size; planned, or run for five rounds, in full.

    python -m benchmarks.configs --data-dir DIR [--only NAME ...] [--parts reduced plan five_rounds]

DIR holds the files of every set, or a folder of each set's name with them. For the reduced size a set is read by its
own reader at the size of `REDUCED`, evenly spaced images are kept, and `python -m fedvg_jax.sim --config
configs/NAME.toml` runs on those. What is not asked for, or whose files are not there, stays as the results file has it.
What is measured goes into the headers of the configs, too.
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

CONFIGS = Path(__file__).parent.parent / "configs"
RESULT = Path(__file__).parent / "results" / "configs.json"

COMMON = "--rounds 5 --eval-every 1 --clients 4 --join-ratio 0.5 --alpha 100"
"""Like clients: of few images, unlike ones would say more of the draw than of the training."""

TINY = "--local-epochs 1 --batch-size 8"
"""For ViTs, which see 224 x 224 pixels whatever the set's images."""


class Reduced(NamedTuple):
    """How a config is made small."""

    images: int
    flags: str = ""
    size: Size | None = None
    """that the set is read at; None: its own"""


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
    """Exit code 0 when all were measured, 1 when the files of some are not there."""
    args = parse(argv)
    results = json.loads(args.out.read_text(encoding="utf-8"))["configs"] if args.out.is_file() else {}
    lacking = []
    for name, part in itertools.product(args.only, args.parts):
        about = machine.describe(["python", "-m", "benchmarks.configs", "--data-dir", "DIR", "--only", name])
        try:
            found, measured = measure(name, part, args)
        except UsageError as error:
            lacking.append(f"{name}: {error}")
            continue
        measured["machine"] = machine.finished(about | {"command": f"{about['command']} --parts {part}"})
        results[name] = results.get(name, {}) | found | {part: measured}
        machine.write(args.out, {"configs": dict(sorted(results.items()))})
        if args.out == RESULT:
            path = CONFIGS / f"{name}.toml"
            path.write_text(with_header(path.read_text(encoding="utf-8"), told(results[name])), encoding="utf-8")
    print(*lacking, sep="\n", file=sys.stderr)
    return bool(lacking)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=REDUCED, default=list(REDUCED), metavar="NAME")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["reduced"])
    parser.add_argument("--note", nargs="*", default=[], metavar="SET=TEXT", help="of files that stand in for a set")
    parser.add_argument("--out", type=Path, default=RESULT)
    return parser.parse_args(argv)


def measure(name: str, part: str, args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the files are, and what one of `PARTS` took.

    Raises:
        UsageError: the set's files are not there, or damaged.
    """
    dataset, case = configs.read_toml(CONFIGS / f"{name}.toml")["dataset"], REDUCED[name]
    folder = args.data_dir / dataset if (args.data_dir / dataset).is_dir() else args.data_dir
    size = case.size if part == "reduced" else None
    arrays = data.load(dataset, folder, configs.default_cache_dir() / "data", size=size)
    notes = dict(note.split("=", 1) for note in args.note)
    found = {"images_found": len(arrays.y), "images_of_the_paper": presets.NUM_IMAGES[dataset]}
    found |= {"note": notes[dataset]} if dataset in notes else {}
    with tempfile.TemporaryDirectory() as scratch:
        small, out = Path(scratch) / f"{dataset}.npz", Path(scratch) / "run"
        if part == "reduced":
            shape = reduce(arrays, case.images, small)
            return found, {"images": shape} | run(name, f"--dataset npz {COMMON} {case.flags}", small, out)
        if part == "plan":
            return found, plan(name, folder)
        return found, run(name, "--rounds 5 --eval-every 1", folder, out)


def reduce(arrays: data.Arrays, num: int, file: Path) -> list[int]:
    """`num` images, evenly spaced over the pool, as a .npz of arrays; returns their shape."""
    rows = np.unique(np.linspace(0, len(arrays.y) - 1, num).astype(int))
    np.savez(file, x=arrays.x[rows], y=arrays.y[rows], class_names=np.array(arrays.class_names))
    return [len(rows), *arrays.x.shape[1:]]


def run(name: str, flags: str, where: Path, out: Path) -> dict[str, Any]:
    """Losses, times and memory of a run on the data at `where`; every program is compiled anew."""
    own = f"--data-dir {where} --out {out} --cache-dir {out}-cache"
    begun = time.perf_counter()
    peak = call(name, f"{flags} {own}")
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    records = [json.loads(line) for line in (out / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    columns = ("train_loss", "val_loss", "test_accuracy")
    shown = where.name if where.is_file() else "DIR"
    found = {
        "command": f"python -m fedvg_jax.sim --config configs/{name}.toml {flags} --data-dir {shown}",
        **{column: [record[column] for record in records] for column in columns},
        "seconds_per_round": [round(record["seconds"], 2) for record in records],
        "compile_seconds": round(summary["compile_seconds"], 1),
        "seconds_in_all": round(time.perf_counter() - begun),
        "peak_memory_gib": round(peak / 2**30, 2),
    }
    refuse_incomplete(found, json.loads((out / "config.json").read_text(encoding="utf-8"))["rounds"])
    print(f"{name}: {json.dumps(found)}", flush=True)
    return found


def refuse_incomplete(found: dict[str, Any], rounds: int) -> None:
    """Refuses measurements that lack rounds or hold numbers that are not finite.

    Raises:
        UsageError: names the column.
    """
    for column in ("train_loss", "val_loss", "test_accuracy", "seconds_per_round"):
        values = found[column]
        if len(values) != rounds:
            raise UsageError(f"{column} has {len(values)} of {rounds} rounds")
        if not all(value is not None and math.isfinite(value) for value in values):
            raise UsageError(f"{column} is not finite in every round: {values}")


def plan(name: str, folder: Path) -> dict[str, Any]:
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


def told(result: dict[str, Any]) -> str:
    """What was measured, for the header of a config."""
    small = result["reduced"]
    images, height, width, _ = small["images"]
    note = f", {result['note']}" if "note" in result else ""
    said = [
        f"Measured at a reduced size ({images:,} images of {height} x {width}{note}; the command is in"
        f" benchmarks/results/configs.json) {_where(small['machine'])}: {_cost(small)}."
    ]
    if full := result.get("five_rounds"):
        losses = ", ".join(f"{loss:.3f}" for loss in full["val_loss"])
        said.append(f"At full size five rounds {_where(full['machine'])}: {_cost(full)}; validation loss {losses}.")
    if plan := result.get("plan"):
        rounds = next(key for key in plan if key.endswith("rounds"))
        where = _where(plan["machine"])
        said.append(
            f"Predicted at full size by --dry-run {where}: {plan['a round']} a round, {plan[rounds]} for {rounds}."
        )
    return " ".join(said if full or plan else [*said, "At full size not yet measured."])


def _where(about: dict[str, Any]) -> str:
    busy = ", which other work shared" if about["busy"] else ""
    return f"on {about['cores']} cores of an {about['processor']}{busy} (jax {about['versions']['jax']})"


def _cost(run: dict[str, Any]) -> str:
    seconds = run["seconds_per_round"]
    rounds = f"{min(seconds):.0f} to {max(seconds):.0f} s a round"
    return f"{rounds}, {run['compile_seconds']:.0f} s to compile, {run['peak_memory_gib']:.1f} GiB at most"


def with_header(config: str, said: str) -> str:
    """`config` with its lines about what was measured, which stand above those about memory, replaced by `said`."""
    lines = config.splitlines(keepends=True)
    begin = next(i for i, line in enumerate(lines) if line.startswith(("# Measured", "# Time")))
    end = next(i for i in range(begin, len(lines)) if lines[i].startswith(("# Memory", "#\n")))
    wrapped = textwrap.wrap(said, 120, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    return "".join(lines[:begin] + [f"{line}\n" for line in wrapped] + lines[end:])


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
