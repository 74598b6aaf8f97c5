"""Measures test accuracy on CIFAR-10 with ResNet-18 under FedAvg, uniform weights and FedVG; meant for a GPU.

    python -m benchmarks.accuracy --data-dir DIR [--out DIR] [--minutes 9.5]

Runs two alphas with five seeds each, of 200 rounds. A command takes at most --minutes: runs stop at a checkpoint, and
the same command continues them. Each run has a run folder in --out; the command prints a table of mean and deviation
over the finished seeds. `--parts FILE ...` first joins a `cifar10.npz` that was split into pieces and puts it into
--data-dir.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedvg_jax import config as configs
from fedvg_jax.config import Config
from fedvg_jax.core.types import UsageError

METHODS = {"FedAvg": "samples", "uniform": "uniform", "FedVG": "fedvg"}
ALPHAS = (0.05, 0.1)
SEEDS = range(5)


def main(argv: list[str] | None = None) -> int:
    """Runs the campaign; exit code 0 if every run is finished, 3 if not yet, 2 after a user error."""
    args = parse(argv)
    try:
        if args.parts:
            join(args.parts, args.data_dir / "cifar10.npz")
        return 0 if campaign(args) else 3
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder with CIFAR-10")
    parser.add_argument("--parts", type=Path, nargs="+", metavar="FILE", help="pieces of cifar10.npz, in order")
    parser.add_argument("--out", type=Path, default=Path("runs/accuracy"))
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of every run, e.g. rounds=20"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--alphas", type=float, nargs="+", default=list(ALPHAS))
    args = parser.parse_args(argv)
    if args.parts and not args.data_dir:
        parser.error("--parts needs --data-dir DIR, where the joined file goes")
    return args


def campaign(args: argparse.Namespace) -> bool:
    """Computes unfinished runs until the time limit and prints the table; returns whether all are finished."""
    deadline = time.monotonic() + 60 * args.minutes
    for config in run_configs(args):
        if is_finished(config):
            continue
        left = deadline - time.monotonic()
        if left < 5:
            break
        print(f"{config.out.name}, {left / 60:.1f} minutes left", flush=True)
        try:
            summary = run(config, left)
        except KeyboardInterrupt:
            if time.monotonic() < deadline:
                raise
            break  # the run is saved, and the same command continues it
        print(f"  {summary['rounds']} rounds, accuracy {summary.get('test_accuracy_final')}", flush=True)
    print(table(args))
    return all(is_finished(config) for config in run_configs(args))


def run_configs(args: argparse.Namespace) -> Iterator[Config]:
    """Yields the configs of all runs, seed by seed, so that an unfinished campaign compares equal numbers of seeds."""
    overrides = dict(_parse_setting(text) for text in args.set)
    for seed in args.seeds:
        for alpha in args.alphas:
            for name, weighting in METHODS.items():
                own = {"weighting": weighting, "alpha": alpha, "seed": seed, "data_dir": args.data_dir}
                out = {"out": folder(args, name, alpha, seed)}
                yield configs.apply(Config(), BASE | own | overrides | out, "--set")


BASE: dict[str, Any] = {
    "dataset": "cifar10",
    "model": "resnet18",
    "clients": 100,
    "join_ratio": 0.1,
    "rounds": 200,
    "local_epochs": 5,
    "batch_size": 32,
    "lr": 0.01,
    "eval_every": 20,
}


def folder(args: argparse.Namespace, name: str, alpha: float, seed: int) -> Path:
    """Returns the run folder of a run."""
    return args.out / f"{name}-alpha{alpha:g}-seed{seed}"


def is_finished(config: Config) -> bool:
    """Returns whether a config's run folder holds all its rounds."""
    summary = read_summary(config.out)
    return summary is not None and summary["rounds"] >= config.rounds


def read_summary(path: Path) -> dict[str, Any] | None:
    """Returns the summary in a run folder; None without one."""
    try:
        return json.loads((path / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def run(config: Config, seconds: float) -> dict[str, Any]:
    """Starts or resumes a run, interrupts it after `seconds` as Ctrl-C does, and returns its summary."""
    import dataclasses

    import fedvg_jax

    is_resumed = (config.out / "config.json").is_file()
    alarm = threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT))
    alarm.daemon = True
    alarm.start()
    try:
        return fedvg_jax.run(dataclasses.replace(config, resume=str(config.out) if is_resumed else None)).summary
    finally:
        alarm.cancel()


def table(args: argparse.Namespace) -> str:
    """Returns a table of mean and standard deviation of test accuracy over the finished seeds.

    The maximum over evaluations is chosen on the test set, as in the published code. The best round is chosen on D_val,
    which FedVG's weights also use.
    """
    lines = ["| method | alpha | seeds | final | at best round on D_val | maximum |", "|---|---|---|---|---|---|"]
    for alpha in args.alphas:
        for name in METHODS:
            summaries = [read_summary(folder(args, name, alpha, seed)) for seed in args.seeds]
            finished = [summary for summary in summaries if summary and not summary.get("interrupted")]
            keys = ("test_accuracy_final", "test_accuracy_at_best_val", "test_accuracy_max")
            cells = " | ".join(_format_cell([summary[key] for summary in finished]) for key in keys)
            lines.append(f"| {name} | {alpha:g} | {len(finished)} of {len(args.seeds)} | {cells} |")
    return "\n".join(lines)


def join(parts: Sequence[Path], target: Path) -> None:
    """Joins the pieces of a file, unless the file exists.

    Raises:
        UsageError: a piece does not exist.
    """
    if target.is_file():
        return
    if missing := [str(part) for part in parts if not part.is_file()]:
        raise UsageError(f"--parts: no such file: {', '.join(missing)}; give every piece, in order")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_suffix(".joining")
    with draft.open("wb") as whole:
        for part in parts:
            whole.write(part.read_bytes())
    draft.replace(target)


def _format_cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.2f}{spread}"


def _parse_setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set takes NAME=VALUE, got {text!r}; e.g. --set rounds=20")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


if __name__ == "__main__":
    sys.exit(main())
