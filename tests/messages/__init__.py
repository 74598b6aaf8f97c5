"""Mistakes by area: each module has `CASES`, a list of (id, call, the name that the message must have)."""

import tempfile
from pathlib import Path


def scratch(use, name="mine.toml"):
    """Returns the call of a function with the path of a file in a folder of its own."""

    def call():
        with tempfile.TemporaryDirectory() as folder:
            use(Path(folder, name))

    return call
