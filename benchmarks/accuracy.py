"""CIFAR-10 with ResNet-18: FedAvg, uniform weights and FedVG, at two alphas, five seeds each; for a GPU.

    python -m benchmarks.accuracy --data-dir DIR [--out DIR] [--minutes 9.5]

One command takes at most --minutes; call it again and it goes on where it was, until the table is full. Every run has a
folder of its own, and stops at a checkpoint when time is up. `--parts FILE ...` joins a `cifar10.npz` that came in
pieces (bytes of the file, in order) and puts it into --data-dir first.
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
    """Exit code 0 when every run is finished, 3 when there is more to do, 2 for a mistake in one line."""
    args = parse(argv)
    try:
        if args.parts:
            join(args.parts, args.data_dir / "cifar10.npz")
        return 0 if campaign(args) else 3
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder of CIFAR-10")
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
    """Runs what is unfinished while there is time; prints the table; whether all is finished."""
    deadline = time.monotonic() + 60 * args.minutes
    for config in planned(args):
        if is_finished(config):
            continue
        left = deadline - time.monotonic()
        if left < 5:
            break
        print(f"{config.out.name}, {left / 60:.1f} minutes left", flush=True)
        summary = run(config, left)
        print(f"  {summary['rounds']} rounds, accuracy {summary.get('test_accuracy_final')}", flush=True)
    print(table(args))
    return all(is_finished(config) for config in planned(args))


def planned(args: argparse.Namespace) -> Iterator[Config]:
    """Every run, seed by seed, so that an unfinished campaign is a fair comparison already."""
    chosen = dict(_setting(text) for text in args.set)
    for seed in args.seeds:
        for alpha in args.alphas:
            for name, weighting in METHODS.items():
                own = {"weighting": weighting, "alpha": alpha, "seed": seed, "data_dir": args.data_dir}
                yield configs.apply(Config(), BASE | own | chosen | {"out": folder(args, name, alpha, seed)}, "--set")


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
    """Of one run."""
    return args.out / f"{name}-alpha{alpha:g}-seed{seed}"


def is_finished(config: Config) -> bool:
    """Whether its folder holds the whole run."""
    summary = read(config.out)
    return summary is not None and summary["rounds"] >= config.rounds


def read(path: Path) -> dict[str, Any] | None:
    """The summary in a run folder, if there is one."""
    try:
        return json.loads((path / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def run(config: Config, seconds: float) -> dict[str, Any]:
    """One run, or as much of it as fits; it stops as Ctrl-C would stop it."""
    import dataclasses

    import fedvg_jax

    begun = (config.out / "config.json").is_file()
    alarm = threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT))
    alarm.daemon = True
    alarm.start()
    try:
        return fedvg_jax.run(dataclasses.replace(config, resume=str(config.out) if begun else None)).summary
    finally:
        alarm.cancel()


def table(args: argparse.Namespace) -> str:
    """Mean and standard deviation over the finished seeds, of final and of best accuracy on the test set.

    The maximum over evaluations is chosen on the test set, as the published code does. The best round is chosen on
    D_val, which FedVG's weights also use.
    """
    lines = ["| method | alpha | seeds | final | at best round on D_val | maximum |", "|---|---|---|---|---|---|"]
    for alpha in args.alphas:
        for name in METHODS:
            done = [s for seed in args.seeds if (s := read(folder(args, name, alpha, seed))) and _whole(s)]
            names = ("test_accuracy_final", "test_accuracy_at_best_val", "test_accuracy_max")
            cells = " | ".join(_cell([s[key] for s in done]) for key in names)
            lines.append(f"| {name} | {alpha:g} | {len(done)} of {len(args.seeds)} | {cells} |")
    return "\n".join(lines)


def join(parts: Sequence[Path], target: Path) -> None:
    """Writes the pieces as one file, unless it is there."""
    if target.is_file():
        return
    if lacking := [str(part) for part in parts if not part.is_file()]:
        raise UsageError(f"--parts: no such file: {', '.join(lacking)}; give every piece, in order")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_suffix(".joining")
    with draft.open("wb") as whole:
        for part in parts:
            whole.write(part.read_bytes())
    draft.replace(target)


def _whole(summary: dict[str, Any]) -> bool:
    return not summary.get("interrupted")


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.2f}{spread}"


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set takes NAME=VALUE, got {text!r}; e.g. --set rounds=20")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


if __name__ == "__main__":
    sys.exit(main())
