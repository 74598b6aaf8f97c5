"""A finished run, as reports read it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config import Config
from fedvg_jax.host.errors import one_line
from fedvg_jax.runs.record import history
from fedvg_jax.runs.record.history import History, Record


class Run(NamedTuple):
    """A finished run: its folder, or a name in memory, and what it recorded."""

    folder: Path
    history: History
    partition: Mapping[str, Any] = {}
    """partition.json; empty where the folder has none."""
    manifest: Mapping[str, Any] = {}
    custom: Mapping[str, str] = {}
    """What the run got from Python in place of settings -> its name; "" for one without."""

    @property
    def config(self) -> Config:
        """The settings of the run."""
        assert self.history.config is not None
        return self.history.config

    @property
    def records(self) -> list[Record]:
        """The records, one per round."""
        return self.history.records

    @property
    def costs(self) -> dict[str, Any]:
        """What the rounds took: their number, seconds, bytes that clients received and sent, epsilon, virtual seconds.

        `majority` is the accuracy of always answering the largest class of the test rows, in percent.
        """
        last, times = self.records[-1], [record["seconds"] for record in self.records]
        majority = last.get("test_majority_accuracy")
        values = {
            "majority": majority and 100 * majority,
            "rounds": len(times),
            "seconds": None if None in times else float(sum(times)),
            "bytes_sent": sum(history.bytes_sent(self.records).values()) or None,
        }
        some = {
            "epsilon": self.history.summary.get("epsilon"),
            "virtual_seconds": last.get("virtual_seconds"),
        }
        return values | {name: value for name, value in some.items() if value is not None}

    @property
    def stop(self) -> str:
        """How a run ended before its last round without a failure, such as by a callback; "" where it did not."""
        planned, count = self.config.rounds, len(self.records)
        if count >= planned:
            return ""
        reason = one_line(str(self.history.summary.get("stopped_early") or ""))
        return f"stopped after {count} of {planned} rounds: {reason}".removesuffix(": ")
