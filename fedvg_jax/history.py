"""What a run leaves behind: one record per round, a summary, and the folder that holds them.

config.json      the resolved settings
manifest.json    what it was made from: data, partition, versions, machine
partition.json   samples and classes of every client, how skewed they are, and what the validation set is
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
from typing import Any, Literal, NamedTuple

import numpy as np

from fedvg_jax import files
from fedvg_jax.config import Config, method_name, to_json
from fedvg_jax.types import UsageError, Variables

Record = dict[str, Any]

OWN_NAMES = ("round", "clients", "weights", "scores", "num_samples", "train_loss", "seconds")
OWN_NAMES += ("dropped", "untrained", "diverged")


def is_own(name: str) -> bool:
    """Whether a record uses this name itself, so that neither a metric nor a weighting's detail may."""
    return name in OWN_NAMES or name.startswith(("val_", "test_"))


class History(NamedTuple):
    """A finished (or interrupted) run."""

    records: list[Record]
    """One per round: `round` (from 1), `clients`, `weights`, `scores`, `num_samples`, `train_loss`, `seconds`, and at
    evaluations `val_*` and `test_*`: loss and the task's other metrics, for classes accuracy, balanced_accuracy,
    macro_f1. `val_*` are of D_val, which FedVG's weights also use, or with `select` held_out of the half of it that
    they do not use."""
    summary: dict[str, Any]
    """The run in a few numbers. `*_at_best_val` are of the round best on `val_*`; `select` names those rows."""
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
        "train_loss": _mean_train_loss(schedule, metrics),
        "seconds": number(seconds),
        **{name: _numbers(value) for name, value in metrics.detail.items()},
        **_exceptions(schedule, metrics),
    }


def evaluation(part: str, metrics: Mapping[str, float]) -> Record:
    """Named metrics of one part ("val" or "test") as record entries.

    Raises:
        UsageError: if the task has no `loss` among them, or one that is no number.
    """
    if "loss" not in metrics:
        raise UsageError(f"task.metrics must give loss, whatever else; got {', '.join(metrics) or 'nothing'}")
    for name, value in metrics.items():
        if np.ndim(value):
            raise UsageError(f"task.metrics must give numbers, shape []; got {list(np.shape(value))} for {name}")
    return {f"{part}_{name}": number(value) for name, value in metrics.items()}


def summarise(records: Sequence[Record]) -> dict[str, Any]:
    """Test accuracy three ways: of the final round, of the round best on validation, and the maximum; of a task
    without accuracy its loss, and the minimum.

    The best round is chosen on D_val, which FedVG's weights also use, unless `select` is held_out.
    The maximum is selected on the test set itself: it is what the published code reports, and optimistic.
    """
    evaluated = [r for r in records if "test_loss" in r]
    if not evaluated:
        return {}
    name, sign, extreme = judged(evaluated[-1])

    def good(record: Record, part: str) -> float:
        value = record[f"{part}_{name}"]
        return -math.inf if value is None else sign * value

    best, most = (max(evaluated, key=lambda r, part=part: good(r, part)) for part in ("val", "test"))
    final = evaluated[-1]
    summary = {
        f"test_{name}_final": final[f"test_{name}"],
        f"test_{name}_at_best_val": best[f"test_{name}"],
        "best_val_round": best["round"],
        f"test_{name}_{extreme}": most[f"test_{name}"],
    }
    majority = {"majority_accuracy": final["test_majority_accuracy"]} if "test_majority_accuracy" in final else {}
    return summary | majority


def judged(record: Record) -> tuple[str, int, str]:
    """What an evaluation is judged by: (name, 1 if more is better or -1, what the best is called)."""
    return ("accuracy", 1, "max") if "test_accuracy" in record else ("loss", -1, "min")


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


def begin(folder: Path, config: Config, layers: Sequence[str] = (), partition: Mapping[str, Any] | None = None) -> None:
    """The settings, the names of the layers whose shares of the score the history holds, the partition in numbers."""
    write_json(folder / "config.json", to_json(config))
    if layers:
        write_json(folder / "layers.json", list(layers))
    if partition:
        write_lines(folder / "partition.json", partition)


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
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    records = [files.parse_json(line, f"line {i + 1}") for i, line in enumerate(lines)]
    if any(not isinstance(r, dict) or r.get("round") != i + 1 for i, r in enumerate(records)):
        raise ValueError("its lines are not rounds 1, 2, 3 ...")
    return records


def write_json(path: Path, value: Any) -> None:
    """Readable JSON, whole or not at all."""
    files.replace(path, json.dumps(value, indent=2) + "\n")


def write_lines(path: Path, value: Mapping[str, Any]) -> None:
    """JSON with a line for each name: long lists stay readable."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(part)}" for name, part in value.items())
    files.replace(path, f"{{\n{lines}\n}}\n")


def _mean_train_loss(schedule, metrics) -> float | None:
    """Mean over the clients that took a step and did not diverge; None without any."""
    trained = metrics.finite & (schedule.num_steps > 0)
    return number(np.mean(metrics.train_loss[trained])) if trained.any() else None


def _exceptions(schedule, metrics) -> Record:
    """Ids of the clients that dropped out, took no step, or diverged, by these names; a name without ids is absent."""
    absent = {"dropped": ~schedule.heard, "untrained": schedule.num_steps == 0, "diverged": ~metrics.finite}
    return {name: schedule.clients[mask].tolist() for name, mask in absent.items() if mask.any()}


def _numbers(values) -> Any:
    """An array of any rank as nested lists of numbers."""
    return [_numbers(row) for row in values] if np.ndim(values) else number(float(values))


def number(value) -> float | None:
    """As written: nine digits hold every float32 exactly; JSON has no NaN, so what is not finite becomes null."""
    return float(f"{value:.9g}") if math.isfinite(value) else None
