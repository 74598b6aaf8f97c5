"""The clock of a run, from settings, a table or a caller."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np

from fedvg_jax.config import Config
from fedvg_jax.config.options import choice, has_clock
from fedvg_jax.core.types import UsageError
from fedvg_jax.engine import clock as clocks
from fedvg_jax.engine.clock import Clock
from fedvg_jax.host import files

COLUMNS = {"step_seconds": 0.0, "fixed_seconds": 0.0, "upload": math.inf, "download": math.inf}
"""Columns of a table beside `client`, as the fields of `Clock` -> value of an empty cell."""


def make_clock(config: Config, custom: Clock | None = None) -> Clock | None:
    """Returns how long clients take; None where nothing says it.

    Args:
        config: checked settings.
        custom: in place of the settings.

    Raises:
        UsageError: the clock does not fit the clients, or its table cannot be read.
    """
    settings = config.clock
    if custom is not None:
        if has_clock(config):
            raise UsageError("clock= gives the durations, and so do settings; use one of them")
        return clocks.checked(custom, config.clients)
    if not has_clock(config):
        if config.overselect > 1 or config.deadline is not None or config.buffered.size:
            raise UsageError(
                "overselect, deadline and buffered.size need a clock; give --clock.step SECONDS, or leave them out"
            )
        return None
    if settings.file is not None:
        return read(settings.file, config.clients)._replace(jitter=settings.jitter)
    upload, download = (rate or math.inf for rate in (settings.upload, settings.download))
    clock = Clock(settings.step, settings.fixed, upload, download, settings.jitter)
    kind, parameters = choice(config, "clock.speeds")
    parameters = parameters if isinstance(parameters, tuple) else (parameters,)
    return clocks.scaled(clock, clocks.factors(kind, parameters, config.clients, config.seed))


def read(path: Path, num_clients: int) -> Clock:
    """Returns the clock of a table in CSV, with a row for each client.

    Raises:
        UsageError: it cannot be read, has other columns, a client is missing, or a value is no number.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows, header = list(reader), reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"clock.file {path}: {files.reason(error)}; give a CSV file") from None
    if not {"client"} < {*header} <= {"client", *COLUMNS}:
        allowed = f"client and some of {', '.join(COLUMNS)}"
        raise UsageError(f"clock.file {path} has columns {', '.join(header)}; expected {allowed}")
    try:
        order = np.argsort([int(row["client"]) for row in rows])
        if [int(rows[i]["client"]) for i in order] != [*range(num_clients)]:
            raise ValueError("other clients")
        columns = {
            name: np.array([float(rows[i].get(name) or default) for i in order])
            for name, default in COLUMNS.items()
        }
    except (KeyError, TypeError, ValueError):
        raise UsageError(
            f"clock.file {path} must have the clients 0..{num_clients - 1}, each once, and numbers"
            f" {', '.join(COLUMNS)}; correct it"
        ) from None
    return clocks.checked(Clock()._replace(**columns), num_clients)
