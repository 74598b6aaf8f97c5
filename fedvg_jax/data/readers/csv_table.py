"""Reads a table of numbers and categories from a .csv file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import table
from fedvg_jax.data.arrays import Arrays, reading
from fedvg_jax.data.readers.sources import Reading, only_file
from fedvg_jax.host import extras


def load(place: Path, _name: str, columns: Mapping[str, str] = {}) -> Reading:
    """Reads the .csv file `place`, or the only .csv file of the folder `place`.

    Args:
        place: a .csv file with a line of column names, or a folder with one such file.
        columns: role, label or group -> name of its column.

    Raises:
        UsageError: no file, several files, a file that is no table, or as `table.from_frame`.
    """
    pandas = extras.load("pandas", "pandas", "dataset csv")
    file = only_file(place, ".csv")
    with reading(file, "a table", "it must be a .csv file with a line of column names"):
        frame = _read(pandas, file)
    roles = columns.get("label"), columns.get("group")

    def decode() -> Arrays:
        try:
            return table.from_frame(frame, *roles, name=file.stem)
        except UsageError as error:
            raise UsageError(f"{file}: {error}") from error

    return Reading((), decode)


def _read(pandas: Any, file: Path) -> Any:
    """Returns the table of a file, with its names of columns as they are.

    An empty field is missing. In a column of numbers so are the texts that pandas takes for missing, such as NaN and
    NA; in a column of texts these are texts, such as the country NA.
    """
    names = pandas.read_csv(file, header=None, nrows=1, dtype=str, keep_default_na=False)
    numbers = pandas.read_csv(file).select_dtypes("number").dropna(axis=1, how="all")
    texts = pandas.read_csv(file, low_memory=False, keep_default_na=False, na_values=[""])
    return texts.assign(**numbers).set_axis(names.iloc[0], axis=1)
