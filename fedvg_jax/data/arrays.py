"""The container of a data set, the checks that every reader applies, and what settings require of the rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.host.files import reason

MAX_CLASSES = 2**16

Size = tuple[int, int]
"""Height and width of images, pixels."""

REMEDY = (
    "use .astype('float32'), .filled(...) or .toarray(), or data=frame, label=NAME for a DataFrame;"
    " .astype(int) makes classes of whole numbers, np.unique(y, return_inverse=True)[1] numbers labels [T], and"
    " y.argmax(1) one-hot rows"
)


class Table(NamedTuple):
    """A table with rows that are not encoded yet."""

    inputs: Any
    """DataFrame of pandas with T rows, the columns as the user gave them, with texts as names."""
    columns: Mapping[str, str | None]
    """Name -> form in which a transformer takes the column; see `table.normalised`."""
    label: str
    """Name of the column of labels."""
    transformer: Any = None
    """The user's transformer of scikit-learn, not fitted; None for the default."""


class Arrays(NamedTuple):
    """A data set as one pool of T rows: the official splits concatenated, training set first."""

    name: str
    x: np.ndarray
    """uint8 [T, H, W, D] images, floats [T, D] features, or int32 [T, L] sequences of characters; zeros [T, D] where
    `table` has the rows."""
    y: np.ndarray
    """int32 [T] labels, 0..C-1, or [T, L] next characters."""
    class_names: tuple[str, ...]
    """Names of the C classes or characters."""
    num_train: int
    """Rows of the official training set, which are the first."""
    groups: np.ndarray | None = None
    """int32 [T], the group (user, patient, lesion) of each row, numbered in sorted order; None if unknown."""
    table: Table | None = None
    """The columns of a table that is not encoded yet."""


def check(arrays: Arrays, source: object) -> Arrays:
    """Returns the arrays of a file in canonical shape and dtype.

    Args:
        arrays: `x` uint8 [T, H, W, D], grey [T, H, W], or features, floats [T, F]; `y` of any integer
            dtype, [T] or [T, 1].
        source: the file they came from, named in errors.

    Raises:
        UsageError: wrong dtype or rank; or as `check_values`.
    """
    x, y = arrays.x, column(arrays.y)
    is_image = x.dtype == np.uint8 and x.ndim in (3, 4)
    if not (is_image or is_features(x)) or y.dtype.kind not in "iu" or y.ndim != 1:
        raise UsageError(
            f"{source}: must hold images, uint8 [N, H, W] or [N, H, W, D], or features, floats [N, F], and labels,"
            f" integers [N] or [N, 1]; got {shape(x)} and {shape(arrays.y)}"
        )
    if x.dtype.itemsize == 8:
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
    x = x[..., None] if x.ndim == 3 else x
    return check_values(arrays._replace(x=x, y=y), source)


def check_values(arrays: Arrays, source: object) -> Arrays:
    """Returns the arrays in the byte order of this machine; labels of named classes are int32.

    Args:
        arrays: x and y [T, ...] of any rank and any boolean, integer or floating dtype.
        source: where they came from, named in errors.

    Raises:
        UsageError: no value, different numbers of rows, values that no device dtype can hold, or labels of named
            classes outside 0..C-1.
    """
    x = device_values(arrays.x, f"{source}: x")
    y = device_values(arrays.y, f"{source}: y")
    if len(x) != len(y) or not len(x):
        raise UsageError(
            f"{source}: x has {len(x)} rows and y {len(y)}; both need the same number, 1 or more"
        )
    if arrays.class_names:
        last = len(arrays.class_names) - 1
        if y.dtype.kind not in "iu" or not 0 <= y.min() <= y.max() <= last:
            raise UsageError(
                f"{source}: labels must be integers 0..{last}, one for each of class_names; got {y.dtype}"
                f" {y.min()}..{y.max()}"
            )
        y = y.astype(np.int32)
    return arrays._replace(x=x, y=y)


def device_values(array: np.ndarray, what: str) -> np.ndarray:
    """Returns an array in the byte order of this machine; raises UsageError for values that no device dtype holds."""
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype.itemsize < 8 and array.dtype.kind != "f":
        return array
    with np.errstate(over="ignore"):
        narrow = array.astype(f"{array.dtype.kind}4", copy=False)
    is_held = np.isfinite(narrow) if array.dtype.kind == "f" else narrow == array
    if not is_held.all():
        row = is_held.reshape(len(array), -1).all(1).argmin()
        raise UsageError(
            f"{what} is not finite in 32 bits, or an integer beyond them, in row {row}; correct or remove it"
        )
    return array


def column(values: np.ndarray) -> np.ndarray:
    """Returns values [T] of [T, 1]; others as they are."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def shape(array: np.ndarray) -> str:
    """Returns dtype and shape in words."""
    return f"{array.dtype} {list(array.shape)}"


def limited(arrays: Arrays, max_rows: int) -> Arrays:
    """Returns at most `max_rows` rows at equal distances, row floor(i T / max_rows) as row i.

    All classes keep their names and numbers; groups without a row are left out.

    Args:
        arrays: the data set, T rows.
        max_rows: the largest number of rows; 0, T and more return the data set as it is.

    Raises:
        UsageError: a class loses all its rows, as where the order of the rows is periodic.

    >>> whole = Arrays("ten", np.arange(10.0)[:, None], np.repeat([0, 1], 5), ("a", "b"), 6)
    >>> some = limited(whole, 4)
    >>> some.x[:, 0].tolist(), some.y.tolist(), some.num_train
    ([0.0, 2.0, 5.0, 7.0], [0, 0, 1, 1], 3)
    """
    if not 0 < max_rows < len(arrays.y):
        return arrays
    rows = np.arange(max_rows) * len(arrays.y) // max_rows
    num_train = int((rows < arrays.num_train).sum())
    some = arrays._replace(x=arrays.x[rows], y=arrays.y[rows], num_train=num_train)
    if arrays.groups is not None:
        some = with_groups(some, arrays.groups[rows], arrays.name)
    if arrays.table:
        some = some._replace(table=arrays.table._replace(inputs=arrays.table.inputs.iloc[rows]))
    if arrays.class_names and len(lost := np.setdiff1d(arrays.y, some.y)):
        name = arrays.class_names[lost[0]]
        raise UsageError(f"max_rows {max_rows} leaves no row of class {name}; use another number")
    return some


@contextlib.contextmanager
def reading(what: object, kind: str, remedy: str) -> Iterator[None]:
    """Raises UsageError in place of whatever error the first bad byte of a user's files leads to.

    Args:
        what: the files.
        kind: what they should be.
        remedy: what to do.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        where = getattr(error, "filename", None) or what
        raise UsageError(f"{where}: not {kind} ({reason(error)}); {remedy}") from error


def with_groups(arrays: Arrays, groups: np.ndarray, source: object) -> Arrays:
    """Returns `arrays` with numbered groups.

    Args:
        arrays: a data set; the result has other groups.
        groups: [T] or [T, 1], integers or strings, also as objects.
        source: the file they came from, named in errors.

    Raises:
        UsageError: another dtype, or not one group per row.
    """
    flat = np.array(column(groups).tolist())  # also of objects
    if flat.dtype.kind not in "biuSU" or flat.shape != (len(arrays.y),):
        raise UsageError(
            f"{source}: groups must be integers or strings [{len(arrays.y)}], one per row; got {shape(groups)};"
            " np.array([str(group) for group in groups]) makes strings"
        )
    return arrays._replace(groups=np.unique(flat, return_inverse=True)[1].astype(np.int32))


def is_features(x: np.ndarray) -> bool:
    """Returns whether x are features, floats [N, F] of at most 64 bits."""
    return x.ndim == 2 and x.dtype.kind == "f" and x.dtype.itemsize <= 8


def class_labels(arrays: Arrays, consumer: str, instead: str, of_rows: bool = True) -> np.ndarray:
    """Returns int32 class labels.

    Args:
        arrays: the data set.
        consumer: what needs the labels, for the error.
        instead: what to use without labels, for the error.
        of_rows: whether labels must be one for each row, [T], and not [T, L] as sequences have.

    Raises:
        UsageError: y has no such integers, or there are no names of classes.
    """
    has_integers = arrays.y.dtype.kind in "iu" and arrays.class_names
    if not has_integers or (of_rows and arrays.y.ndim != 1):
        raise UsageError(
            f"{consumer} needs class labels, integers [T] from 0 to {MAX_CLASSES - 1}; y of {arrays.name} is"
            f" {shape(arrays.y)}; {REMEDY}; otherwise {instead}"
        )
    return arrays.y.astype(np.int32)


def refuse_channels_first(arrays: Arrays, consumer: str) -> None:
    """Raises a UsageError for rows [1, S, S], [3, H, W] or [4, H, W], as few images are."""
    channels, height, width = arrays.x.shape[1:]
    is_grey = channels == 1 and height == width
    if (is_grey or channels in (3, 4)) and min(height, width) > 4:
        raise UsageError(
            f"{consumer} takes images [T, H, W, D], and the channels of x seem to be first, {shape(arrays.x)}; use"
            " np.moveaxis(x, 1, -1)"
        )


def is_images(arrays: Arrays) -> bool:
    """Returns whether the rows are images, uint8 [T, H, W, D]."""
    return arrays.x.ndim == 4 and arrays.x.dtype == np.uint8


def is_sequences(arrays: Arrays) -> bool:
    """Returns whether the rows are sequences of named characters with a label at every place, both integers [T, L]."""
    x, y = arrays.x, arrays.y
    has_integers = x.dtype.kind in "iu" and y.dtype.kind in "iu"
    return has_integers and x.ndim == 2 and x.shape == y.shape and bool(arrays.class_names)


def check_rows_are_images(arrays: Arrays, setting: str, instead: str) -> None:
    """Raises a UsageError if a setting changes pixels and there are none."""
    if not is_images(arrays):
        raise UsageError(
            f"{setting} is for images, uint8 [T, H, W, D]; {arrays.name} is {shape(arrays.x)}; {instead}"
        )
