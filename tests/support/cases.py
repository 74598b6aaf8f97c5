"""Laws over many cases in one test: a test of its own costs 5 ms, and more than once, as every worker collects it."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def naming(case: object) -> Iterator[None]:
    """Adds the case to the text of a failure within."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {case}")
        raise
