"""Standard output that may close: a run goes on when nobody reads it any more."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO


class LastingOutput:
    """A text stream that drops what it is given once the one behind it fails.

    A reader such as `head` has left (EPIPE), the terminal is gone (EIO), or the disk of a log file is full (ENOSPC).
    """

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes the text, or drops it; returns its length."""
        with closing_on_error(self._stream):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flushes the stream if it is still open."""
        with closing_on_error(self._stream):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def closing_on_error(stream: TextIO) -> Iterator[None]:
    """Sends the stream's descriptor to the null device when writing to it fails.

    The interpreter flushes what is left in its buffer at exit; that then fails no more.
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
    """Standard output and error that may close, for as long as this lasts."""
    with contextlib.ExitStack() as stack:
        if sys.stdout is not None:
            stack.enter_context(contextlib.redirect_stdout(LastingOutput(sys.stdout)))
        if sys.stderr is not None:
            stack.enter_context(contextlib.redirect_stderr(LastingOutput(sys.stderr)))
        yield
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with closing_on_error(stream):
                stream.flush()
