"""Where a run reports to: standard output, which may close without ending it, and what it writes beside its folder."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from fedvg_jax.host import files

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from fedvg_jax.data.arrays import Arrays
    from fedvg_jax.runs.assemble.simulation import Simulation
    from fedvg_jax.runs.record.history import History


Log = Callable[[str], None]
"""Takes a line for the user."""

Rows = dict[str, str]
"""Rows of a table for the terminal: name -> text."""


def say(console: Console, line: str) -> None:
    """Prints a line as it is, which no narrow terminal cuts."""
    console.print(line, highlight=False, soft_wrap=True, markup=False)


class LastingOutput:
    """A text stream that drops text once the underlying stream fails.

    A reader such as `head` has left (EPIPE), the terminal is gone (EIO), or the disk of a log file is full (ENOSPC).
    """

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes the text or drops it, and returns its length."""
        with closing_on_error(self._stream):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flushes the stream; does nothing once it has failed."""
        with closing_on_error(self._stream):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def closing_on_error(stream: TextIO) -> Iterator[None]:
    """Redirects the stream's descriptor to the null device when writing to it fails.

    Otherwise the interpreter would fail at exit, where it flushes the buffer.
    """
    try:
        yield
    except OSError:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Makes standard output and error tolerate being closed, within the context."""
    with contextlib.ExitStack() as stack:
        for stream, redirect in (
            (sys.stdout, contextlib.redirect_stdout),
            (sys.stderr, contextlib.redirect_stderr),
        ):
            if stream is not None:
                output = LastingOutput(stream)
                stack.callback(output.flush)
                stack.enter_context(redirect(output))
        yield


def check_targets(export: Path | None, track: str, has_folder: bool) -> None:
    """Raises UsageError if a run cannot write what it writes beside its folder: an exported model, records of trackers.

    Args:
        export: file of the model.
        track: names of trackers.
        has_folder: whether the run will have a folder.
    """
    if export:
        files.export_target(export)
    if track:
        from fedvg_jax.views import tracking

        tracking.require(track, has_folder)


def run_simulation(sim: Simulation, **observers: Any) -> History:
    """Runs a simulation as `loop.run_simulation` does, and reports it to the trackers that its settings name."""
    from fedvg_jax.runs import loop  # which no help needs

    if not sim.config.track:
        return loop.run_simulation(sim, **observers)
    from fedvg_jax.views import tracking

    return tracking.run_simulation(sim, **observers)


def duration(seconds: float) -> str:
    """Returns seconds as a text; from a minute on with hours, minutes and seconds.

    >>> duration(4.25), duration(75), duration(4320), duration(200_000)
    ('4.25 s', '0:01:15', '1:12:00', '2 days, 7:33:20')
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    return str(datetime.timedelta(seconds=round(seconds)))


def unit(arrays: Arrays) -> str:
    """Returns what labels are counted in: images, characters of sequences, or rows of a table.

    >>> from fedvg_jax import data
    >>> unit(data.load("digits")), unit(data.load("iris")), unit(data.load("literature"))
    ('images', 'rows', 'characters')
    """
    from fedvg_jax.data.arrays import is_images, is_sequences  # which no help needs

    if is_images(arrays):
        return "images"
    return "characters" if is_sequences(arrays) else "rows"
