"""Errors of users, and texts that print as one line."""

from __future__ import annotations


class UsageError(ValueError):
    """A user's mistake in one line: what was got, what is allowed, what to do. The command line exits with code 2.

    Control characters in the values that it names are escaped, so it always prints as one line.
    """

    __module__ = "fedvg_jax"  # its public place, which tracebacks show

    def __str__(self) -> str:
        return one_line(super().__str__())

    def add_note(self, note: str, /) -> None:
        """Adds nothing: jax's note on its hidden frames would be a second line."""


def one_line(text: str) -> str:
    r"""Returns the text with control characters, line separators and lone surrogates as escapes, such as \n.

    >>> print(one_line("out a\nb is taken"))
    out a\nb is taken
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
