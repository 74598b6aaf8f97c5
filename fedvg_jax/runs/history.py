"""Results of a run: one record per round, a summary, and the run folder that holds them.

config.json      the settings
manifest.json    digests of data and partition; versions and machine of every part of the run
partition.json   samples and classes of every client, statistics of their skew, and of the validation set
layers.json      names of the layers whose shares of the score are recorded
history.jsonl    one line per round
checkpoints/     the newest states of the simulation
summary.json     results, seconds, versions
tracking/        what trackers wrote, and what identifies the tracked runs
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import html
import itertools
import json
import math
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedvg_jax import config as configs
from fedvg_jax.config import Config, method_name, to_json
from fedvg_jax.core import files
from fedvg_jax.core.types import UsageError, Variables
from fedvg_jax.runs import seals

Record = dict[str, Any]

TRACKING = "tracking"
"""Folder of the trackers in a run folder."""

RESERVED_NAMES = ("round", "clients", "weights", "scores", "num_samples", "train_loss", "seconds")
RESERVED_NAMES += ("dropped", "untrained", "diverged", "misweighed")


def is_reserved(name: str) -> bool:
    """Returns whether records use this name, so that no metric and no weighting's detail may have it."""
    return name in RESERVED_NAMES or name.startswith(("val_", "test_"))


class _Results(NamedTuple):
    """The fields of a `History` as stored: a model is its variables, or a function that reads them."""

    records: list[Record]
    summary: dict[str, Any]
    variables: Variables | Callable[[], Variables]
    folder: Path | None
    best_variables: Variables | Callable[[], Variables] | None = None
    config: Config | None = None


class History(_Results):
    """The results of a run that has finished or was stopped.

    Attributes:
        records: One dict per round: `round` (from 1), `clients`, `weights`, `scores`, `num_samples`, `train_loss`,
            `seconds`, and at evaluations `val_*` and `test_*`: loss and the task's other metrics, for classes accuracy,
            balanced_accuracy and macro_f1. `val_*` are measured on D_val, which FedVG's weights also use, or with
            `select` "held_out" on the half of it that the weights do not use.
        summary: The content of summary.json. `*_at_best_val` are of the round best on `val_*`; `select` names those
            rows.
        variables: The final global model. In a loaded history, the model of the newest intact checkpoint.
        folder: The run folder; None for a run without one.
        best_variables: The global model of the round best on validation, on the host: by accuracy, or by loss for a
            task without one. None before the first evaluation, and where a resumed run has no checkpoint of it.
        config: The settings of the run.
    """

    __slots__ = ()

    @classmethod
    def load(cls, folder: Path | str) -> History:
        """Returns the history of a run folder.

        Models are read from the newest intact checkpoint when they are first used, as nested dicts on the host. The
        config's `config` is None, so that it can be run again: the settings of that file are in it.

        Args:
            folder: a run folder; the run may still be going on, or have been killed. `summary` is then empty.

        Raises:
            UsageError: it is not a run folder, or config.json, history.jsonl or summary.json is damaged. Reading a
                model raises it where no checkpoint holds one.

        >>> History.load("nowhere")
        Traceback (most recent call last):
            ...
        fedvg_jax.UsageError: nowhere is not a run folder (it has no config.json); name the folder of a run
        """
        folder = Path(folder)
        config = dataclasses.replace(read_config(folder), config=None)
        records = read(folder) if (folder / "history.jsonl").exists() else []
        path = folder / "summary.json"
        stored = files.read_object(path) if path.exists() else {}
        summary = {name: value for name, value in stored.items() if name not in ("seal", seals.DIGEST)}
        return cls(records, summary, _model_reader(folder, "final"), folder, _model_reader(folder, "best"), config)

    @property
    def variables(self) -> Variables:  # pyright: ignore[reportIncompatibleVariableOverride]  reads the stored field
        """The final global model."""
        stored = self[2]
        return stored() if callable(stored) else stored

    @property
    def best_variables(self) -> Variables | None:  # pyright: ignore[reportIncompatibleVariableOverride]  as above
        """The global model of the round best on validation."""
        stored = self[4]
        return stored() if callable(stored) else stored

    def __repr__(self) -> str:
        """Three lines: rounds, results, folder."""
        results = [f"{name} {value}" for name, value in self._results()]
        return f"{self._title()}\n  {', '.join(results) or 'not evaluated'}\n  folder {self.folder}"

    def _repr_html_(self) -> str:
        """A small table and curves over rounds, which notebooks show without a script, style sheet or network."""
        entries = [*self._results(), ("run folder", str(self.folder))]
        rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in entries)
        return f"<table><caption>{html.escape(self._title())}</caption>{rows}</table>{_curves(self.records)}"

    def _title(self) -> str:
        stopped_by = self.summary.get("stopped_by")
        return f"History of {len(self.records)} rounds" + (f", stopped by {stopped_by}" if stopped_by else "")

    def _results(self) -> list[tuple[str, str]]:
        """Names and values of the summary's results."""
        return [(name, f"{value:.4g}") for name, value in self.summary.items() if _is_result(name, value)]

    def to_pandas(self, per: Literal["round", "client"] = "round"):
        """Returns the records as a `pandas.DataFrame`.

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


def _model_reader(folder: Path, which: Literal["final", "best"]) -> Callable[[], Variables]:
    """Returns a function that reads a model of the newest intact checkpoint once."""

    def read_model() -> Variables:
        from fedvg_jax.runs import checkpoint  # which imports jax

        return checkpoint.best_variables(folder) if which == "best" else checkpoint.final_variables(folder)

    return functools.cache(read_model)


class DivergedError(UsageError):
    """A client's model, loss or score is not finite, and `nonfinite` is "raise"."""

    def __init__(self, message: str, history: History):
        super().__init__(message)
        self.history = history
        """the rounds up to the one in which a client diverged, and that one; the run folder has the same records. Its
        model may be that of a later round."""


def _curves(records: Sequence[Record], width: int = 420, height: int = 140, most: int = 300) -> str:
    """Returns test and validation accuracy, or loss, over rounds as SVG; empty below two evaluations.

    Args:
        records: of a run.
        width, height: of the picture, pixels.
        most: points of one curve; of longer ones some are drawn.
    """
    metric = "accuracy" if any(r.get("test_accuracy") is not None for r in records) else "loss"
    lines, parts = [], {part: _finite(records, f"{part}_{metric}") for part in ("test", "val")}
    if len(parts["test"]) < 2:
        return ""
    values = [value for points in parts.values() for _, value in points]
    low, high, last = min(values), max(values), parts["test"][-1][0]
    for part, dashes in (("test", ""), ("val", ' stroke-dasharray="5 3"')):
        shown = parts[part][::-1][:: len(parts[part]) // most + 1]
        places = ((width * number / last, height * (high - v) / (high - low or 1)) for number, v in shown)
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        lines.append(f'<polyline points="{line}" fill="none" stroke="currentColor"{dashes}/>')
    box = f'viewBox="-2 -2 {width + 4} {height + 4}" width="{width}" height="{height}"'
    text = f"{metric} {low:.4g} to {high:.4g} over {last} rounds; test solid, validation dashed"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{"".join(lines)}</svg><div>{text}</div>'


def _finite(records: Sequence[Record], name: str) -> list[tuple[int, float]]:
    pairs = ((r["round"], r.get(name)) for r in records)
    return [(number, v) for number, v in pairs if isinstance(v, (int, float)) and math.isfinite(v)]


def _is_result(name: str, value: Any) -> bool:
    return name.startswith(("test_", "best_val_")) and isinstance(value, (int, float))


def by_round(records: Sequence[Record]) -> list[Record]:
    """Returns the numbers of every round."""
    return [{name: value for name, value in r.items() if not isinstance(value, list)} for r in records]


def by_client(records: Sequence[Record]) -> list[Record]:
    """Returns the numbers of every client in every round."""
    names = {"clients": "client", "weights": "weight", "scores": "score", "num_samples": "num_samples"}
    columns = ([(r["round"], *row) for row in zip(*(r[name] for name in names), strict=True)] for r in records)
    return [dict(zip(("round", *names.values()), row, strict=True)) for rows in columns for row in rows]


_TABLES = {"round": by_round, "client": by_client}


def record(index: int, schedule, metrics, seconds: float) -> Record:
    """Returns the record of one round from its schedule and its metrics, all [K] on the host."""
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
    """Returns the metrics of one part ("val" or "test") as entries of a record.

    Raises:
        UsageError: `loss` is not among the metrics, or a metric is not one number.
    """
    if "loss" not in metrics:
        raise UsageError(f"task.metrics must give loss, whatever else; got {', '.join(metrics) or 'nothing'}")
    for name, value in metrics.items():
        if np.ndim(value):
            raise UsageError(f"task.metrics must give numbers, shape []; got {list(np.shape(value))} for {name}")
    return {f"{part}_{name}": number(value) for name, value in metrics.items()}


def summarise(records: Sequence[Record], metric: str | None = None) -> dict[str, Any]:
    """Returns the test accuracy of the final round, of the round best on validation, and the maximum.

    For a task without accuracy, or if `metric` says so, it is the loss, and the minimum.

    The best round is chosen on D_val, which FedVG's weights also use, unless `select` is held_out.
    The maximum is selected on the test set itself: it is optimistic, and is what the published code reports.

    Rounds whose records are lost are listed as `lost_rounds`; results that need a lost evaluation are None.

    Args:
        records: of a run.
        metric: "accuracy" or "loss"; None for accuracy where the records have it.
    """
    lost = {"lost_rounds": rounds} if (rounds := [r["round"] for r in records if is_lost(r)]) else {}
    evaluated = [r for r in records if "test_loss" in r]
    if not evaluated:
        return lost
    intact = [r for r in evaluated if not is_lost(r)]
    name = metric or primary_metric((intact or evaluated)[-1])[0]
    sign, extreme = _METRICS[name]

    def quality(record: Record, part: str) -> float:
        value = record[f"{part}_{name}"]
        return -math.inf if value is None else sign * value

    final = evaluated[-1]
    if len(intact) < len(evaluated):
        names = (f"test_{name}_at_best_val", "best_val_round", f"test_{name}_{extreme}")
        return {f"test_{name}_final": final.get(f"test_{name}")} | dict.fromkeys(names) | _majority(final) | lost
    best, most = (max(evaluated, key=lambda r, part=part: quality(r, part)) for part in ("val", "test"))
    summary = {
        f"test_{name}_final": final[f"test_{name}"],
        f"test_{name}_at_best_val": best[f"test_{name}"],
        "best_val_round": best["round"],
        f"test_{name}_{extreme}": most[f"test_{name}"],
    }
    return summary | _majority(final) | lost


def _majority(final: Record) -> dict[str, Any]:
    return {"majority_accuracy": final["test_majority_accuracy"]} if "test_majority_accuracy" in final else {}


_METRICS = {"accuracy": (1, "max"), "loss": (-1, "min")}
"""Metric that compares evaluations -> 1 if more is better or -1, and the name of its best value."""


def primary_metric(record: Record) -> tuple[str, int, str]:
    """Returns the metric that compares evaluations: (name, 1 if more is better or -1, "max" or "min")."""
    name = "accuracy" if "test_accuracy" in record else "loss"
    return name, *_METRICS[name]


def lost_record(index: int, evaluated: bool) -> Record:
    """Returns the placeholder of a record whose line of history.jsonl was damaged: no client, None for every number."""
    empty = {name: [] for name in ("clients", "weights", "scores", "num_samples")}
    losses = dict.fromkeys(("val_loss", "test_loss")) if evaluated else {}
    return {"round": index, **empty, "train_loss": None, "seconds": None, "lost": True, **losses}


def is_lost(record: Record) -> bool:
    """Returns whether a record is a placeholder of one that was damaged."""
    return record.get("lost") is True


def text_with_lost_records(lines: Mapping[int, bytes], evaluated: Sequence[int], count: int) -> bytes:
    """Returns the text of a history of `count` rounds with a `lost_record` for every round without an intact line.

    Args:
        lines: intact lines by round.
        evaluated: rounds with an evaluation.
    """
    texts = (lines.get(i) or as_line(lost_record(i, i in evaluated)) for i in range(1, count + 1))
    return b"".join(texts)


def repaired_prefix(seal: Mapping[str, Any], text: bytes) -> bytes | None:
    """Returns the lines up to a checkpoint of a history with lost records; None if `text` is not such a history."""
    lines, crcs = seals.split_lines(text)[: seal["round"]], seals.line_crcs(seal)
    if len(lines) < seal["round"] or len(crcs) != seal["round"]:
        return None
    try:
        records = parse(b"".join(lines))
    except ValueError:
        return None
    if len(records) != len(lines):  # the last line has no end
        return None
    matches = (f"{zlib.crc32(line):08x}" == crc for line, crc in zip(lines, crcs, strict=True))
    is_complete = all(fits or is_lost(record) for fits, record in zip(matches, records, strict=True))
    return b"".join(lines) if is_complete else None


def round_ranges(numbers: Sequence[int]) -> str:
    """Returns [3, 4, 5, 9] as "rounds 3-5, 9"; of more than ten ranges the first ten and the number of others."""
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
    """Returns a record's line of history.jsonl."""
    return json.dumps(record).encode() + b"\n"


def move_aside(folder: Path, why: str) -> str:
    """Renames history.jsonl to history.WHY-N.jsonl, with the first unused N; returns the new name."""
    names = (f"history.{why}-{i}.jsonl" for i in itertools.count(1))
    name = next(name for name in names if not os.path.lexists(folder / name))
    os.replace(folder / "history.jsonl", folder / name)
    files.flush([folder])
    return name


def reserve_folder(config: Config) -> Path:
    """Makes the folder runs/<time>-<method>, with a number appended where that exists, and returns it.

    No other process gets the same one.

    Raises:
        UsageError: it cannot be made.
    """
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{method_name(config)}"
    paths = (Path("runs") / (name + (f"-{i}" if i else "")) for i in itertools.count())
    with files.writing("a run folder in runs", "--out"):
        Path("runs").mkdir(exist_ok=True)
        return next(path for path in paths if _make_folder(path))


def _make_folder(folder: Path) -> bool:
    """Makes a folder; returns whether it did not exist."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def remove_unused(folder: Path) -> None:
    """Removes a folder of `reserve_folder` if nothing was written to it."""
    with contextlib.suppress(OSError):  # of a folder that is not empty, or is gone
        folder.rmdir()


def read_config(folder: Path) -> Config:
    """Returns the settings of a run.

    Raises:
        UsageError: the folder has no config.json, or it is damaged.
    """
    path = folder / "config.json"
    if not path.is_file():
        refuse_sweep(folder)
        raise UsageError(f"{folder} is not a run folder (it has no {path.name}); name the folder of a run")
    return config_from_json(files.read_object(path), str(path))


def refuse_sweep(folder: Path) -> None:
    """Raises UsageError for the folder of a sweep where that of a run is needed."""
    if (folder / "sweep.json").is_file():
        raise UsageError(f"{folder} is a sweep; name the folders of its runs, {folder / 'points' / '*'}")


NO_SETTINGS = (("target", None),)
"""Entries of a config.json that are no settings, and had no effect at this value."""


def config_from_json(settings: dict, source: str) -> Config:
    """Returns the settings that `config.to_json` wrote.

    Args:
        source: name of the file, for messages.

    Raises:
        UsageError: they are not settings.
    """
    if not isinstance(settings, dict):
        raise UsageError(f"{source} is damaged (no table of settings); the run cannot be resumed")
    stored = {name: value for name, value in settings.items() if (name, value) not in NO_SETTINGS and name != "unused"}
    try:
        flat = configs.dotted(stored)
    except RecursionError:
        raise UsageError(f"{source} is damaged (tables in tables); the run cannot be resumed") from None
    return configs.apply(Config(), flat, source)


def refuse_taken(folder: Path) -> None:
    """Raises UsageError if the folder holds anything except a lock or a draft: nothing is overwritten.

    What trackers have written may stay: a point of a sweep that is started anew goes on in its tracked run.
    """
    if folder.exists() and (not folder.is_dir() or any(_is_of_a_run(path) for path in folder.iterdir())):
        raise UsageError(
            f"run folder {folder} is taken, and no run overwrites files; name another with --out, or continue its run"
            " with --resume"
        )


def _is_of_a_run(path: Path) -> bool:
    return path.name[0] != "." and path.name != TRACKING


def write_settings(
    folder: Path, config: Config, layers: Sequence[str] = (), partition: Mapping[str, Any] | None = None
) -> None:
    """Writes config.json, layers.json and partition.json.

    Args:
        layers: names of the layers whose shares of the score the history holds.
        partition: its statistics.
    """
    write_json(folder / "config.json", to_json(config))
    for name, text in document_texts(layers, partition).items():
        files.replace(folder / name, text)


def document_texts(layers: Sequence[str] = (), partition: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Returns the texts of layers.json and partition.json by file name, without those that have no content."""
    texts = {"layers.json": _readable(list(layers))} if layers else {}
    return texts | ({"partition.json": _lines_of(partition)} if partition else {})


def append(folder: Path, records: Sequence[Record], is_first: bool) -> bytes:
    """Appends the records to history.jsonl, and returns the new lines."""
    text = b"".join(map(as_line, records))
    files.append(folder / "history.jsonl", text.decode(), is_first)
    return text


def read(folder: Path) -> list[Record]:
    """Returns the records of a run folder, without a last line that a crash cut short.

    Raises:
        UsageError: there is no history, or it is damaged.
    """
    try:
        return parse(files.read_regular(folder / "history.jsonl"))
    except OSError as error:
        raise UsageError(f"{folder} has no readable history.jsonl: {files.reason(error)}") from None
    except ValueError as error:
        raise UsageError(f"{folder / 'history.jsonl'} is damaged: {files.reason(error)}") from None


def count_lines(folder: Path) -> int:
    """Returns the number of lines of the history, 0 where there is none. The lines are not parsed."""
    path = folder / "history.jsonl"
    return files.read_regular(path).count(b"\n") if path.exists() else 0


def parse(text: bytes) -> list[Record]:
    """Returns the records of all whole lines.

    Raises:
        ValueError: they are not the records of rounds 1, 2, 3 ...
    """
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    records = [files.parse_json(line, f"line {i + 1}") for i, line in enumerate(lines)]
    if any(not isinstance(r, dict) or r.get("round") != i + 1 for i, r in enumerate(records)):
        raise ValueError("its lines are not rounds 1, 2, 3 ...")
    return records


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON, atomically."""
    files.replace(path, _readable(value))


def _readable(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def _lines_of(value: Mapping[str, Any]) -> str:
    """Returns JSON with one line per name, so that long lists stay readable."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(part)}" for name, part in value.items())
    return f"{{\n{lines}\n}}\n"


def _mean_train_loss(schedule, metrics) -> float | None:
    """Returns the mean over the clients that took a step and did not diverge; None without any."""
    trained = metrics.finite & (schedule.num_steps > 0)
    return number(np.mean(metrics.train_loss[trained])) if trained.any() else None


def _exceptions(schedule, metrics) -> Record:
    """Returns the ids of clients under "dropped", "untrained" and "diverged", without names that have no client.

    "misweighed" has the sum and the least of wrong weights, see `Metrics.extremes`.
    """
    absent = {"dropped": ~schedule.heard, "untrained": schedule.num_steps == 0, "diverged": ~metrics.finite}
    misweighed = {"misweighed": np.asarray(metrics.extremes).tolist()} if _is_misweighed(metrics.extremes) else {}
    return {name: schedule.clients[mask].tolist() for name, mask in absent.items() if mask.any()} | misweighed


def _is_misweighed(extremes) -> bool:
    """Returns whether weights are negative, or do not sum to 1 in some tensor; bfloat16 rounds each by 0.2 %."""
    return len(extremes) > 0 and bool(abs(extremes[0] - 1) > 5e-3 or extremes[1] < -1e-6)


def _numbers(values) -> Any:
    """Returns an array of any rank as nested lists of numbers."""
    return [_numbers(row) for row in values] if np.ndim(values) else number(float(values))


def number(value) -> float | None:
    """Returns a number as records hold it.

    Nine digits hold every float32 exactly. JSON has no NaN, so None stands for what is not finite.
    """
    return float(f"{value:.9g}") if math.isfinite(value) else None
