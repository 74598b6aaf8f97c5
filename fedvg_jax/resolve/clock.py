"""The clock of a run, from settings, a table or a caller."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np

from fedvg_jax.config import Config
from fedvg_jax.config.options import choice, has_clock
from fedvg_jax.core.types import UsageError
from fedvg_jax.engine import virtual_time
from fedvg_jax.engine.virtual_time import Clock
from fedvg_jax.host import files

COLUMNS = ("step_seconds", "fixed_seconds", "upload", "download")
"""Columns of a table beside `client`, fields of `Clock`."""


def make_clock(config: Config, custom: Clock | None) -> Clock:
    """Returns how long clients take.

    Args:
        config: checked settings, which have a clock if `custom` is None.
        custom: in place of the settings.

    Raises:
        UsageError: the clock does not fit the clients, or its table cannot be read.
    """
    settings = config.clock
    if custom is not None:
        if has_clock(config):
            raise UsageError("clock= gives the durations, and so do settings; use one of them")
        return virtual_time.checked(custom, config.clients)
    if settings.file is not None:
        return read(settings.file, config.clients)._replace(jitter=settings.jitter)
    upload, download = (rate or math.inf for rate in (settings.upload, settings.download))
    clock = Clock(settings.step, settings.fixed, upload, download, settings.jitter)
    kind, parameters = choice(config, "clock.speeds")
    parameters = parameters if isinstance(parameters, tuple) else (parameters,)
    return virtual_time.scaled(
        clock, virtual_time.factors(kind, parameters, config.clients, config.seed)
    )


def read(path: Path, num_clients: int) -> Clock:
    """Returns the clock of a table in CSV, with a row for each client; an empty cell is the field's default.

    Raises:
        UsageError: it cannot be read, has other columns, a client is missing, or a value is no number.
    """
    columns = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = sorted(csv.DictReader(file), key=lambda row: int(row["client"]))
        if [int(row["client"]) for row in rows] != [*range(num_clients)]:
            raise ValueError("other clients")
        if not {"client"} < {*rows[0]} <= {"client", *COLUMNS}:
            raise ValueError(f"it has the columns {', '.join(map(str, rows[0]))}")
        for name in COLUMNS:
            default = Clock._field_defaults[name]
            columns[name] = np.array([float(row.get(name) or default) for row in rows])
    except (OSError, csv.Error, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"clock.file {path}: {files.reason(error)}; give a CSV file with the clients 0..{num_clients - 1} in rows,"
            f" and columns of numbers: client and some of {', '.join(COLUMNS)}"
        ) from None
    return virtual_time.checked(Clock(**columns), num_clients)
