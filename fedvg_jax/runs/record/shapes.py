"""Whether a run folder's records and documents have the shapes that a report reads; a damaged file is one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedvg_jax.runs.record.history import Record

PER_CLIENT = ("clients", "weights", "scores", "num_samples")
IDS = ("dropped", "untrained", "diverged")
RECORDED = ("client_accuracy", "client_val_loss", "client_drift", "client_fisher_trace")
MATRIX, BINS = "test_confusion", "test_calibration"
BY_CLIENT = "accuracy_by_client"
NUM_COLUMNS = 3
"""Of a bin of confidence: number of labels, mean confidence and accuracy."""

BOUND = 1e39
"""Records hold float32 numbers, which are smaller; squares of larger ones could not be drawn."""


def damage(records: Sequence[Record], documents: Mapping[str, Any]) -> str:
    """Returns what is wrong with a run folder; empty for an intact one.

    Args:
        records: of history.jsonl.
        documents: content of partition.json, manifest.json, layers.json and failure.json by stem; None for a file that
            is not there.
    """
    for record in records:
        if name := _damaged_entry(record):
            return f"history.jsonl is damaged: {name} of round {record['round']}"
    shapes = {"partition": _is_partition, "manifest": _is_manifest, "layers": _is_texts, "failure": _is_object}
    for stem, is_intact in shapes.items():
        if documents.get(stem) is not None and not is_intact(documents[stem]):
            return f"{stem}.json is damaged"
    counts = (documents.get("partition") or {}).get("counts")
    clients = max((client for record in records for client in record["clients"]), default=-1)
    if counts is not None and clients >= len(counts):
        return f"partition.json is damaged: it has {len(counts)} clients, and client {clients} took part"
    return ""


def _damaged_entry(record: Record) -> str:
    """Returns the name of an entry of another type or length than it must have; empty where there is none."""
    for name in PER_CLIENT:
        if not _is_numbers(record.get(name)) or len(record[name]) != len(record["clients"]):
            return name
    for name in ("clients", "num_samples", *(name for name in IDS if name in record)):
        if not _is_counts(record[name]):
            return name
    for name, value in record.items():
        if name in RECORDED and not (_is_numbers(value) and len(value) == len(record["clients"])):
            return name
        if name.startswith(("val_", "test_")) and name not in (MATRIX, BINS) and not _is_number(value):
            return name
    for name in ("layer_shares", "client_joint_fisher"):
        if name in record and not _is_table(record[name], len(record["clients"])):
            return name
    if MATRIX in record and not (_is_table(record[MATRIX]) and len(record[MATRIX]) == len(record[MATRIX][0])):
        return MATRIX
    if BINS in record and not (_is_table(record[BINS]) and len(record[BINS][0]) == NUM_COLUMNS):
        return BINS
    if BY_CLIENT in record and not _is_numbers(record[BY_CLIENT]):
        return BY_CLIENT
    return next((name for name in ("train_loss", "seconds", "worst_decile") if not _is_number(record.get(name))), "")


def _is_partition(content: Any) -> bool:
    if not isinstance(content, dict) or not isinstance(content.get("validation", {}), dict):
        return False
    validation, counts, names = content.get("validation", {}), content.get("counts"), content.get("class_names")
    if names is None and "class_names" in content:
        return False
    has_counts = counts is None or (_is_table(counts) and all(map(_is_counts, counts)))
    size = validation.get("samples")
    return (
        has_counts
        and (names is None or (isinstance(names, list) and (counts is None or len(names) == len(counts[0]))))
        and ("counts" not in validation or _is_counts(validation["counts"]))
        and (size is None or _is_count(size))
        and (names is None or "counts" not in validation or len(validation["counts"]) == len(names))
    )


def _is_manifest(content: Any) -> bool:
    if not isinstance(content, dict) or not isinstance(content.get("given", {}), dict):
        return False
    parts = content.get("runs", [])
    return isinstance(parts, list) and all(
        isinstance(part, dict)
        and isinstance(part.get("versions", {}), dict)
        and isinstance(part.get("git") or {}, dict)
        for part in parts
    )


def _is_object(content: Any) -> bool:
    return isinstance(content, dict)


def _is_texts(content: Any) -> bool:
    return isinstance(content, list) and all(isinstance(name, str) for name in content)


def _is_number(value: Any) -> bool:
    """Returns whether a value is a finite number, or None, which stands for one that is not."""
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < BOUND)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _is_table(value: Any, rows: int | None = None) -> bool:
    """Returns whether a value is a list of at least one list of numbers, all of one length; `rows` of them if given."""
    is_table = isinstance(value, list) and all(map(_is_numbers, value))
    return is_table and (rows is None or len(value) == rows) and len({len(row) for row in value}) == 1
