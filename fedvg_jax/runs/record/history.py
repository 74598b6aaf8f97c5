"""Records of the rounds of a run, their lines in history.jsonl, and the results of a run."""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError, Variables, named
from fedvg_jax.host import extras, files
from fedvg_jax.runs.record import folder as run_folder

Record = dict[str, Any]

BYTES_DOWN, BYTES_UP = "bytes_down", "bytes_up"
"""Bytes that a cohort receives and sends in a round; in the summary, over all rounds."""

CLIENT_ACCURACIES = {
    "accuracy_by_client": ("accuracy_by_client_mean", "worst_decile", "spread"),
    "personal_accuracy": ("personal_accuracy_mean", "personal_worst_decile", "personal_spread"),
}
"""Accuracies of all clients in a record -> keys of their mean, worst decile and standard deviation; the summary has the
values of the final round."""

BETTER = dict.fromkeys(("accuracy", "balanced_accuracy", "macro_f1"), "higher") | {"loss": "lower"}
"""Metric of the package -> which of its values are better; those over clients are added below."""

for _mean, _worst_decile, _spread in CLIENT_ACCURACIES.values():
    BETTER |= {_mean: "higher", _worst_decile: "higher", _spread: "lower"}

CONFUSION = "confusion"
"""Confusion matrix in `record`, and in what a task measures."""

RESERVED_NAMES = {
    *("round", "clients", "weights", "scores", "num_samples", "train_loss", "seconds"),
    *(BYTES_DOWN, BYTES_UP, "epsilon", "dropped", "late", "virtual_seconds", "staleness"),
    *("untrained", "diverged", "invalid_weights", *CLIENT_ACCURACIES),
    *itertools.chain(*CLIENT_ACCURACIES.values()),
}
"""Names that metrics of a user and details of a weighting may not have."""

OF_GLOBAL_MODEL = (
    "where tensors stay with the clients, accuracies are of the global model, whose local tensors keep their"
    " initial values; --record personal_accuracy has the clients' own"
)
"""What a run and a report say of accuracies if the clients' personal ones are not recorded."""


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
    config: run_folder.Config | None = None


class History(_Results):
    """The results of a run that has finished or was stopped.

    Attributes:
        records: One dict per round: `round` (from 1), `clients`, `weights`, `scores`, `num_samples`, `train_loss`,
            `seconds`, and at evaluations `val_*` and `test_*`: loss and the task's other metrics, for classes accuracy,
            balanced_accuracy and macro_f1. `val_*` are measured on D_val, which FedVG's weights also use.
        summary: The content of summary.json. `*_at_best_val` are the values of the round best on `val_*`.
        variables: The final global model. In a loaded history, the model of the newest intact checkpoint; with `train`
            the trained part, which is all that checkpoints keep.
        folder: The run folder; None for a run without one.
        best_variables: The global model of the round best on validation, on the host: by accuracy, or by loss for a
            task without one. None before the first evaluation, and if a resumed run has no checkpoint of it.
        config: The settings of the run.
    """

    __slots__ = ()

    @classmethod
    def load(cls, folder: Path | str) -> History:
        """Returns the history of a run folder.

        Models are read from the newest intact checkpoint when they are first used, as nested dicts on the host.

        Args:
            folder: a run folder; the run may still be going on, or have been killed. `summary` is then empty.

        Raises:
            UsageError: it is not a run folder, or config.json, history.jsonl or summary.json is damaged. Reading a
                model raises it if no checkpoint holds one.

        >>> History.load("nowhere")
        Traceback (most recent call last):
            ...
        fedvg_jax.UsageError: nowhere is not a run folder (it has no config.json); name the folder of a run
        """
        if not isinstance(folder, str | os.PathLike):
            raise UsageError(f"History.load takes the folder of a run, a path; got {folder!r:.99}")
        folder = files.user_path(folder)
        config = run_folder.read_config(folder)
        summary = files.read_object_if_any(folder / "summary.json")
        has_records = summary.get("rounds") or (folder / "history.jsonl").exists()
        records = read(folder) if has_records else []
        return cls(
            records,
            summary,
            _reader_of_model(folder, "final_variables"),
            folder,
            _reader_of_model(folder, "best_variables"),
            config,
        )

    @property
    def variables(self) -> Variables:  # pyright: ignore[reportIncompatibleVariableOverride]  reads the stored field
        """Returns the final global model."""
        stored = self[2]
        return stored() if callable(stored) else stored

    @property
    def best_variables(self) -> Variables | None:  # pyright: ignore[reportIncompatibleVariableOverride]  as above
        """Returns the global model of the round best on validation."""
        stored = self[4]
        return stored() if callable(stored) else stored

    def __repr__(self) -> str:
        """Returns the number of rounds, the folder and the summary, without records and models."""
        return f"History of {len(self.records)} rounds, folder {self.folder}: {self.summary}"

    def client_variables(self, client: int) -> Variables:
        """Returns a client's model from the newest intact checkpoint, on the host.

        It is the personal model of a method with one, and where tensors stay with the clients the global model with
        the client's.

        Raises:
            UsageError: the run has no folder, or no checkpoint holds such a model.

        >>> History([], {}, None, None).client_variables(0)
        Traceback (most recent call last):
            ...
        fedvg_jax.UsageError: models of clients are in the run folder, and this run has none; run it with out=FOLDER
        """
        if self.folder is None:
            raise UsageError(
                "models of clients are in the run folder, and this run has none; run it with out=FOLDER"
            )
        from fedvg_jax.runs.record import checkpoint  # which imports jax

        return checkpoint.client_variables(self.folder, client)

    def to_pandas(self, per: Literal["round", "client"] = "round"):
        """Returns the records as a `pandas.DataFrame`.

        Args:
            per: "round": a row per round, with a column per number (evaluations are NaN between); or "client": a row
                per client of every round's cohort, with `weight`, `score` and `num_samples`. The round is a column,
                and the index.

        Raises:
            UsageError: without pandas, or for another `per`.
        """
        pandas = extras.load("pandas", "pandas", "History.to_pandas")
        rows = named(_TABLES, per, "per")(self.records)
        table = pandas.DataFrame.from_records(rows, columns=None if rows else ["round"])
        # of one name, `groupby("round")` would be ambiguous
        return table.set_index("round", drop=False).rename_axis(index=None)


def _reader_of_model(folder: Path, function: str) -> Callable[[], Variables]:
    """Returns a function that reads a model once, by a function of `checkpoint`."""

    @functools.cache
    def read_model() -> Variables:
        from fedvg_jax.runs.record import checkpoint  # which imports jax

        return getattr(checkpoint, function)(folder)

    return read_model


class StopRun(Exception):
    """Raised by a callback or `on_records` to end the run; `summary["stopped_early"]` has the message."""

    __module__ = "fedvg_jax"


class DivergedError(UsageError):
    """A client's model, loss, score, weight or probe is not finite, and `nonfinite` is "raise"."""

    def __init__(self, message: str, history: History):
        super().__init__(message)
        self.history = history
        """the rounds up to the one in which a client diverged, and that one; the run folder has the same records. Its
        model may come from a later round."""


def by_round(records: Sequence[Record]) -> list[Record]:
    """Returns the numbers of every round."""
    rows = []
    for record in records:
        rows.append({k: v for k, v in record.items() if not isinstance(v, list)})
    return rows


def by_client(records: Sequence[Record]) -> list[Record]:
    """Returns the numbers of every client in every round."""
    columns = ("round", "client", "weight", "score", "num_samples")
    rows = []
    for record in records:
        of_cohort = (record[name] for name in ("clients", "weights", "scores", "num_samples"))
        for values in zip(*of_cohort, strict=True):
            rows.append(dict(zip(columns, (record["round"], *values), strict=True)))
    return rows


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
        **({} if schedule.staleness is None else {"staleness": schedule.staleness.tolist()}),
        **{name: _numbers(value) for name, value in metrics.detail.items()},
        **_exceptions(schedule, metrics),
    }


def evaluation(part: str, metrics: Mapping[str, float]) -> Record:
    """Returns the metrics of one part ("val" or "test") as entries of a record.

    Raises:
        UsageError: `loss` is not among the metrics, or a metric is not one number.
    """
    if "loss" not in metrics:
        raise UsageError(
            f"task.metrics must return loss among its metrics; got {', '.join(metrics) or 'nothing'}"
        )
    for name, value in metrics.items():
        if shape := np.shape(value):
            raise UsageError(
                f"task.metrics must give numbers, shape []; got {list(shape)} for {name}"
            )
    return {f"{part}_{name}": number(value) for name, value in metrics.items()}


def summarise(records: Sequence[Record]) -> dict[str, Any]:
    """Returns the test accuracy of the final round, of the round best on validation, and the maximum.

    For a task without accuracy it is the loss, and the minimum. The loss of the final round is there for every task.

    The best round is chosen on D_val, which FedVG's weights also use.
    The maximum is selected on the test set itself: it is optimistic, and is what the published code reports.
    """
    evaluated = [r for r in records if "test_loss" in r]
    if not evaluated:
        return {}
    final = evaluated[-1]
    name = primary_metric(final)
    best = max(evaluated, key=lambda record: quality(record, f"val_{name}"))
    metric, majority = f"test_{name}", "test_majority_accuracy"
    most = max(evaluated, key=lambda record: quality(record, metric))
    extreme = "max" if BETTER[name] == "higher" else "min"
    return {
        f"{metric}_final": final[metric],
        "test_loss_final": final["test_loss"],
        f"{metric}_at_best_val": best[metric],
        "best_val_round": best["round"],
        f"{metric}_{extreme}": most[metric],
        **({"majority_accuracy": final[majority]} if majority in final else {}),
        **{key: final[key] for keys in CLIENT_ACCURACIES.values() for key in keys if key in final},
    }


def bytes_sent(records: Sequence[Record]) -> dict[str, int]:
    """Returns the bytes of all rounds.

    >>> bytes_sent([{"bytes_down": 4, "bytes_up": 2}, {"bytes_down": 4, "bytes_up": 1}])
    {'bytes_down': 8, 'bytes_up': 3}
    """
    down = sum(record.get(BYTES_DOWN, 0) for record in records)
    up = sum(record.get(BYTES_UP, 0) for record in records)
    return {BYTES_DOWN: down, BYTES_UP: up}


def primary_metric(record: Record) -> str:
    """Returns the metric that compares evaluations: accuracy, or loss for a task without it."""
    return "accuracy" if "test_accuracy" in record else "loss"


def quality(record: Record, name: str | None = None) -> float:
    """Returns a number that is larger for a better evaluation; -inf where the metric is not finite or not measured.

    Args:
        record: of an evaluated round.
        name: of the entry, such as val_loss; None for the primary metric on D_val.

    >>> quality({"test_loss": 1.0, "val_loss": 2.0}), quality({"val_accuracy": 0.5}, "val_accuracy")
    (-2.0, 0.5)
    """
    name = name or f"val_{primary_metric(record)}"
    value = record.get(name)
    if value is None:
        return -math.inf
    metric = name.partition("_")[2]
    return value if BETTER[metric] == "higher" else -value


def append(folder: Path, records: Sequence[Record]) -> bytes:
    """Appends the records to history.jsonl, and returns the new lines."""
    text = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    with (folder / "history.jsonl").open("ab") as file:
        file.write(text)
    return text


def read(folder: Path) -> list[Record]:
    """Returns the records of a run folder, without a last line that a crash cut short.

    Raises:
        UsageError: there is no history, or it is damaged.
    """
    try:
        return parse((folder / "history.jsonl").read_bytes())
    except (OSError, ValueError) as error:
        path = folder / "history.jsonl"
        raise UsageError(f"{path} is missing or damaged: {files.reason(error)}") from None


def parse(text: bytes) -> list[Record]:
    """Returns the records of all whole lines; raises ValueError unless they are those of rounds 1, 2, 3 ..."""
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    records = [files.parse_json(line, f"line {number}") for number, line in enumerate(lines, 1)]
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict) or record.get("round") != number:
            raise ValueError(f"line {number} is not the record of round {number}")
    return records


def _mean_train_loss(schedule, metrics) -> float | None:
    """Returns the mean over the clients that took a step and did not diverge; None without any."""
    trained = metrics.finite & (schedule.num_steps > 0)
    # of a client over the largest staleness, the version may be gone
    if schedule.received is not None:
        trained &= schedule.participating
    return number(metrics.train_loss[trained].mean()) if trained.any() else None


def _exceptions(schedule, metrics) -> Record:
    """Returns the ids of clients under "dropped", "late", "untrained" and "diverged", without empty names.

    "invalid_weights" has the sum and the least of wrong weights, see `Metrics.extremes`.
    """
    late = schedule.waited.late if schedule.waited else ()
    reasons = {
        "dropped": ~schedule.participating & ~np.isin(schedule.clients, late),
        "untrained": schedule.num_steps == 0,
        "diverged": ~metrics.finite,
    }
    exceptions: Record = {
        name: schedule.clients[mask].tolist() for name, mask in reasons.items() if mask.any()
    }
    if len(late):
        exceptions["late"] = [int(client) for client in late]
    extremes = metrics.extremes  # bfloat16 rounds each weight by 0.2 %
    if len(extremes) and (abs(extremes[0] - 1) > 5e-3 or extremes[1] < -1e-6):
        exceptions["invalid_weights"] = list(map(float, extremes))
    return exceptions


def _numbers(values) -> Any:
    """Returns an array of any rank as nested lists of numbers."""
    is_scalar = getattr(values, "shape", ()) == ()
    return number(float(values)) if is_scalar else [_numbers(row) for row in values]


def number(value) -> float | None:
    """Returns a number as records store it.

    Nine digits hold every float32 exactly. JSON has no NaN, so None stands for what is not finite.
    """
    return float(f"{value:.9g}") if math.isfinite(value) else None
