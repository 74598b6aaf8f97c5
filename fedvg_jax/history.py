"""What a run leaves behind: one record per round, a summary, and the folder that holds them.

config.json      the resolved settings
manifest.json    what it was made from: data, partition, versions, machine
layers.json      the names of the layers whose shares of the score are recorded
history.jsonl    one line per round
checkpoints/     the newest states of the simulation
summary.json     the run in a few numbers
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax import files
from fedvg_jax.config import Config, method_name, to_json
from fedvg_jax.types import UsageError, Variables

Record = dict[str, Any]


class History(NamedTuple):
    """A finished (or interrupted) run."""

    records: list[Record]
    """One per round: `round` (from 1), `clients`, `weights`, `scores`, `num_samples`, `train_loss`, `seconds`, and at
    evaluations `val_*` and `test_*`: loss, accuracy, balanced_accuracy, macro_f1."""
    summary: dict[str, Any]
    variables: Variables
    """The final global model."""
    folder: Path | None


def record(number: int, schedule, metrics, seconds: float) -> Record:
    """One round's record from its schedule and its metrics, all [K] on the host."""
    return {
        "round": number,
        "clients": schedule.clients.tolist(),
        "weights": _numbers(metrics.weights),
        "scores": _numbers(metrics.scores),
        "num_samples": schedule.num_samples.tolist(),
        "train_loss": _number(np.mean(metrics.train_loss[metrics.finite])) if metrics.finite.any() else None,
        "seconds": _number(seconds),
        **_lists(metrics.detail),
        **_exceptions(schedule, metrics),
    }


def evaluation(part: str, metrics: Mapping[str, float]) -> Record:
    """Named metrics of one part ("val" or "test") as record entries."""
    return {f"{part}_{name}": _number(value) for name, value in metrics.items()}


def summarise(records: Sequence[Record]) -> dict[str, Any]:
    """Test accuracy three ways: of the final round, of the round best on validation, and the maximum.

    The maximum is selected on the test set itself: it is what the published code reports, and optimistic.
    """
    evaluated = [r for r in records if "test_accuracy" in r]
    if not evaluated:
        return {}
    best = max(evaluated, key=lambda r: r["val_accuracy"] or 0)
    return {
        "test_accuracy_final": evaluated[-1]["test_accuracy"],
        "test_accuracy_at_best_val": best["test_accuracy"],
        "best_val_round": best["round"],
        "test_accuracy_max": max(r["test_accuracy"] or 0 for r in evaluated),
        "majority_accuracy": evaluated[-1]["test_majority_accuracy"],
    }


def default_folder(config: Config) -> Path:
    """runs/<time>-<method>, with a number behind it where that is taken."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{method_name(config)}"
    tries = (Path("runs") / (name + (f"-{i}" if i else "")) for i in range(1000))
    return next(path for path in tries if not path.exists())


def refuse_taken(folder: Path) -> None:
    """UsageError if the folder already holds anything but a lock or a draft: nothing is overwritten."""
    if folder.exists() and (not folder.is_dir() or any(path.name[0] != "." for path in folder.iterdir())):
        raise UsageError(
            f"run folder {folder} is taken, and nothing is overwritten; name another with --out, or go on with --resume"
        )


def begin(folder: Path, config: Config, layers: Sequence[str] = ()) -> None:
    """The settings, and the names of the layers whose shares of the score the history holds."""
    write_json(folder / "config.json", to_json(config))
    if layers:
        write_json(folder / "layers.json", list(layers))


def append(folder: Path, records: Sequence[Record], is_first: bool) -> bytes:
    """Adds lines to history.jsonl, and returns them."""
    text = "".join(json.dumps(r) + "\n" for r in records)
    files.append(folder / "history.jsonl", text, is_first)
    return text.encode()


def read(folder: Path) -> list[Record]:
    """The records of a run folder; a last line that a crash cut short is left out.

    Raises:
        UsageError: there is no history, or it is damaged.
    """
    try:
        return parse((folder / "history.jsonl").read_bytes())
    except OSError as error:
        raise UsageError(f"{folder} has no readable history.jsonl: {files.reason(error)}") from None
    except ValueError as error:
        raise UsageError(f"{folder / 'history.jsonl'} is damaged: {files.reason(error)}") from None


def count(folder: Path) -> int:
    """Lines of the history, 0 where there is none; they are not looked at."""
    path = folder / "history.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def parse(text: bytes) -> list[Record]:
    """The records in whole lines; ValueError if they are not those of rounds 1, 2, 3 ..."""
    records = [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]
    if any(not isinstance(r, dict) or r.get("round") != i + 1 for i, r in enumerate(records)):
        raise ValueError("its lines are not rounds 1, 2, 3 ...")
    return records


def write_json(path: Path, value: Any) -> None:
    """Readable JSON, whole or not at all."""
    files.replace(path, json.dumps(value, indent=2) + "\n")


def _exceptions(schedule, metrics) -> Record:
    """Ids of the clients that dropped out, and of those that diverged, where there are any."""
    dropped, diverged = schedule.clients[~schedule.heard].tolist(), schedule.clients[~metrics.finite].tolist()
    return ({"dropped": dropped} if dropped else {}) | ({"diverged": diverged} if diverged else {})


def _lists(detail: Mapping[str, Any]) -> Record:
    return {name: [_numbers(row) for row in value] for name, value in detail.items()}


def _numbers(values) -> list[float | None]:
    return [_number(v) for v in values]


def _number(value) -> float | None:
    """Nine digits hold every float32 exactly; JSON has no NaN, so what is not finite becomes null."""
    return float(f"{value:.9g}") if math.isfinite(value) else None
