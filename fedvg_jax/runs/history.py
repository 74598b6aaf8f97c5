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

import itertools
import json
import math
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedvg_jax.config import Config, method_name, to_json
from fedvg_jax.core import files
from fedvg_jax.core.types import UsageError, Variables
from fedvg_jax.runs import seals

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
    best_variables: Variables | None = None
    """The global model of the round best on validation, on the host: by accuracy, or by loss for a task without one.
    None before the first evaluation, and where a resumed run has no checkpoint of it."""

    def __repr__(self) -> str:
        """Three lines: rounds, results, folder."""
        counts = f"History of {len(self.records)} rounds"
        if self.summary.get("stopped_by"):
            counts += f", stopped by {self.summary['stopped_by']}"
        results = [f"{name} {value:.4g}" for name, value in self.summary.items() if _is_result(name, value)]
        return f"{counts}\n  {', '.join(results) or 'not evaluated'}\n  folder {self.folder}"

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


class DivergedError(UsageError):
    """A client's model, loss or score is not finite, and `nonfinite` is "raise"."""

    def __init__(self, message: str, history: History):
        super().__init__(message)
        self.history = history
        """the run up to and with the round that diverged; the same records are in its folder"""


def _is_result(name: str, value: Any) -> bool:
    return name.startswith(("test_", "best_val_")) and isinstance(value, (int, float))


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

    Rounds whose records are lost are listed as `lost_rounds`; numbers that need a lost evaluation are None.
    """
    lost = {"lost_rounds": rounds} if (rounds := [r["round"] for r in records if is_lost(r)]) else {}
    evaluated = [r for r in records if "test_loss" in r]
    if not evaluated:
        return lost
    known = [r for r in evaluated if not is_lost(r)]
    name, sign, extreme = judged((known or evaluated)[-1])

    def good(record: Record, part: str) -> float:
        value = record[f"{part}_{name}"]
        return -math.inf if value is None else sign * value

    final = evaluated[-1]
    if len(known) < len(evaluated):
        names = (f"test_{name}_at_best_val", "best_val_round", f"test_{name}_{extreme}")
        return {f"test_{name}_final": final.get(f"test_{name}")} | dict.fromkeys(names) | _majority(final) | lost
    best, most = (max(evaluated, key=lambda r, part=part: good(r, part)) for part in ("val", "test"))
    summary = {
        f"test_{name}_final": final[f"test_{name}"],
        f"test_{name}_at_best_val": best[f"test_{name}"],
        "best_val_round": best["round"],
        f"test_{name}_{extreme}": most[f"test_{name}"],
    }
    return summary | _majority(final) | lost


def _majority(final: Record) -> dict[str, Any]:
    return {"majority_accuracy": final["test_majority_accuracy"]} if "test_majority_accuracy" in final else {}


def judged(record: Record) -> tuple[str, int, str]:
    """What an evaluation is judged by: (name, 1 if more is better or -1, what the best is called)."""
    return ("accuracy", 1, "max") if "test_accuracy" in record else ("loss", -1, "min")


def lost_record(index: int, evaluated: bool) -> Record:
    """Stands for a round whose line of history.jsonl was damaged: no client, and None for every number."""
    empty = {name: [] for name in ("clients", "weights", "scores", "num_samples")}
    losses = dict.fromkeys(("val_loss", "test_loss")) if evaluated else {}
    return {"round": index, **empty, "train_loss": None, "seconds": None, "lost": True, **losses}


def is_lost(record: Record) -> bool:
    """Whether a record only stands for one that was damaged."""
    return record.get("lost") is True


def restored(lines: Mapping[int, bytes], evaluated: Sequence[int], count: int) -> bytes:
    """The text of a history from its intact lines, by round; each of the other rounds has a `lost_record`."""
    texts = (lines.get(i) or as_line(lost_record(i, i in evaluated)) for i in range(1, count + 1))
    return b"".join(texts)


def repaired_prefix(about: Mapping[str, Any], text: bytes) -> bytes | None:
    """The lines that a checkpoint goes with in a history that `restored` wrote; None if it is not such a one."""
    lines, crcs = seals.split_lines(text)[: about["round"]], seals.line_crcs(about)
    if len(lines) < about["round"] or len(crcs) != about["round"]:
        return None
    try:
        records = parse(b"".join(lines))
    except ValueError:
        return None
    sealed = (f"{zlib.crc32(line):08x}" == crc for line, crc in zip(lines, crcs, strict=True))
    is_known = all(fits or is_lost(record) for fits, record in zip(sealed, records, strict=True))
    return b"".join(lines) if is_known and len(records) == len(lines) else None


def round_ranges(numbers: Sequence[int]) -> str:
    """[3, 4, 5, 9] -> "rounds 3-5, 9"; of many the first ten ranges."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    listed = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    more = [f"and {len(listed) - 10} more"] if len(listed) > 10 else []
    return f"rounds {', '.join(listed[:10] + more)}" if listed else ""


def as_line(record: Record) -> bytes:
    """A record's line of history.jsonl."""
    return json.dumps(record).encode() + b"\n"


def move_aside(folder: Path, why: str) -> str:
    """Renames history.jsonl to history.WHY-N.jsonl, with the first N that is free; returns the name."""
    names = (f"history.{why}-{i}.jsonl" for i in itertools.count(1))
    name = next(name for name in names if not os.path.lexists(folder / name))
    os.replace(folder / "history.jsonl", folder / name)
    files.flush([folder])
    return name


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
    for name, text in documents(layers, partition).items():
        files.replace(folder / name, text)


def documents(layers: Sequence[str] = (), partition: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The texts of layers.json and partition.json."""
    found = {"layers.json": _readable(list(layers))} if layers else {}
    return found | ({"partition.json": _lines_of(partition)} if partition else {})


def append(folder: Path, records: Sequence[Record], is_first: bool) -> bytes:
    """Adds lines to history.jsonl, and returns them."""
    text = b"".join(map(as_line, records))
    files.append(folder / "history.jsonl", text.decode(), is_first)
    return text


def read(folder: Path) -> list[Record]:
    """The records of a run folder; a last line that a crash cut short is left out.

    Raises:
        UsageError: there is no history, or it is damaged.
    """
    try:
        return parse(files.read_regular(folder / "history.jsonl"))
    except OSError as error:
        raise UsageError(f"{folder} has no readable history.jsonl: {files.reason(error)}") from None
    except ValueError as error:
        raise UsageError(f"{folder / 'history.jsonl'} is damaged: {files.reason(error)}") from None


def count(folder: Path) -> int:
    """Lines of the history, 0 where there is none; they are not looked at."""
    path = folder / "history.jsonl"
    return files.read_regular(path).count(b"\n") if path.exists() else 0


def parse(text: bytes) -> list[Record]:
    """The records in whole lines; ValueError if they are not those of rounds 1, 2, 3 ..."""
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    records = [files.parse_json(line, f"line {i + 1}") for i, line in enumerate(lines)]
    if any(not isinstance(r, dict) or r.get("round") != i + 1 for i, r in enumerate(records)):
        raise ValueError("its lines are not rounds 1, 2, 3 ...")
    return records


def write_json(path: Path, value: Any) -> None:
    """Readable JSON, whole or not at all."""
    files.replace(path, _readable(value))


def _readable(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def _lines_of(value: Mapping[str, Any]) -> str:
    """JSON with a line for each name: long lists stay readable."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(part)}" for name, part in value.items())
    return f"{{\n{lines}\n}}\n"


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
