"""A finished run, as reports read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config import Config
from fedvg_jax.config.checks import with_passed
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
    layers: Sequence[str] = ()
    """Names of the columns of `layer_shares`."""
    custom: Mapping[str, str] = {}
    """What the run got from Python in place of settings -> its name; "" for one without."""

    @property
    def weighting(self) -> str:
        """The weighting of the config, or "custom weighting" for one from Python."""
        return with_passed({"weighting": self.config.weighting}, self.custom)["weighting"]

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
    def seconds(self) -> float | None:
        """The seconds of all rounds; None where a record has none."""
        times = [record["seconds"] for record in self.records]
        return None if None in times else float(sum(times))

    @property
    def bytes_sent(self) -> int | None:
        """The bytes that clients received and sent in all rounds; None where no round has recorded them."""
        return sum(history.bytes_sent(self.records).values()) or None

    @property
    def majority(self) -> float | None:
        """The accuracy of always answering the largest class of the test rows, in percent; None without it."""
        value = self.records[-1].get("test_majority_accuracy")
        return None if value is None else 100 * value

    @property
    def epsilon(self) -> float | None:
        """The epsilon of a private run; None for another one."""
        return self.history.summary.get("epsilon")

    @property
    def stop(self) -> str:
        """How a run ended before its last round without a failure, such as by a callback; "" where it did not."""
        planned, count = self.config.rounds, len(self.records)
        if count >= planned:
            return ""
        reason = one_line(str(self.history.summary.get("stopped_early") or ""))
        text = f"stopped after {count} of {planned} rounds"
        return f"{text}: {reason}" if reason else text
