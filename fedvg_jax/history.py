"""What a run leaves behind: one record per round, a summary, and the folder that holds them.

config.json      the resolved settings
layers.json      the names of the layers whose shares of the score are recorded
history.jsonl    one line per round
summary.json     the run in a few numbers
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

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

    def to_pandas(self, per: Literal["round", "client"] = "round"):
        """The records as a `pandas.DataFrame`.

        Args:
            per: "round": a row per round, indexed by it, with a column per number (evaluations are NaN between); or
                "client": a row per client of every round's cohort, with `weight`, `score` and `num_samples`.

        Raises:
            UsageError: without pandas, or for another `per`.
        """
        try:
            import pandas
        except ImportError:
            raise UsageError("History.to_pandas needs pandas; pip install 'fedvg_jax[pandas]'") from None
        if per not in _TABLES:
            raise UsageError(f"per must be round or client; got {per}")
        return pandas.DataFrame.from_records(_TABLES[per](self.records)).set_index("round")


def by_round(records: Sequence[Record]) -> list[Record]:
    """The numbers of every round."""
    return [{name: value for name, value in r.items() if not isinstance(value, list)} for r in records]


def by_client(records: Sequence[Record]) -> list[Record]:
    """The numbers of every client in every round."""
    names = {"clients": "client", "weights": "weight", "scores": "score", "num_samples": "num_samples"}
    columns = ([(r["round"], *row) for row in zip(*(r[name] for name in names), strict=True)] for r in records)
    return [dict(zip(("round", *names.values()), row, strict=True)) for rows in columns for row in rows]


_TABLES = {"round": by_round, "client": by_client}


def record(index: int, schedule, metrics, seconds: float) -> Record:
    """One round's record from its schedule and its metrics, all [K] on the host."""
    return {
        "round": index,
        "clients": schedule.clients.tolist(),
        "weights": _numbers(metrics.weights),
        "scores": _numbers(metrics.scores),
        "num_samples": schedule.num_samples.tolist(),
        "train_loss": number(np.mean(metrics.train_loss[metrics.finite])) if metrics.finite.any() else None,
        "seconds": number(seconds),
        **_lists(metrics.detail),
        **_exceptions(schedule, metrics),
    }


def evaluation(part: str, metrics: Mapping[str, float]) -> Record:
    """Named metrics of one part ("val" or "test") as record entries."""
    return {f"{part}_{name}": number(value) for name, value in metrics.items()}


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
    """UsageError if the folder already holds anything: nothing is overwritten."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"run folder {folder} is taken, and nothing is overwritten; name another with --out")


def create(folder: Path, config: Config, layers: Sequence[str] = ()) -> Path:
    """The run's folder with its config, and the names of the layers whose shares of the score the history holds."""
    refuse_taken(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "config.json", to_json(config))
        if layers:
            write_json(folder / "layers.json", list(layers))
    except OSError as error:
        raise UsageError(f"cannot write the run folder {folder}: {error.strerror}; name another with --out") from None
    return folder


def append(folder: Path | None, records: Sequence[Record]) -> None:
    """Adds lines to history.jsonl."""
    if folder is not None and records:
        with (folder / "history.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(r) + "\n" for r in records)


def read(folder: Path) -> list[Record]:
    """The records of a run folder."""
    return [json.loads(line) for line in (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()]


def write_json(path: Path, value: Any) -> None:
    """Readable JSON."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _exceptions(schedule, metrics) -> Record:
    """Ids of the clients that dropped out, and of those that diverged, where there are any."""
    dropped, diverged = schedule.clients[~schedule.heard].tolist(), schedule.clients[~metrics.finite].tolist()
    return ({"dropped": dropped} if dropped else {}) | ({"diverged": diverged} if diverged else {})


def _lists(detail: Mapping[str, Any]) -> Record:
    return {name: [_numbers(row) for row in value] for name, value in detail.items()}


def _numbers(values) -> list[float | None]:
    return [number(v) for v in values]


def number(value) -> float | None:
    """As written: nine digits hold every float32 exactly; JSON has no NaN, so what is not finite becomes null."""
    return float(f"{value:.9g}") if math.isfinite(value) else None
