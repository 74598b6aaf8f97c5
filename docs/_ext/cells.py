"""Executes code of pages that stay plain Markdown: fences "```python run" and "```sh run" become cells."""

from __future__ import annotations

import re

FENCE = re.compile(r"^```(python|sh) run\n(.*?)^```$", re.S | re.M)
HEAD = """---
file_format: mystnb
kernelspec:
  name: python3
---

```{code-cell}
:tags: [remove-cell]

import os

os.environ.pop("FORCE_COLOR", None)  # the kernel sets it, and terminal codes would be shown
```

"""


def as_notebook(text: str) -> str:
    """Returns a page in the format of myst-nb, or unchanged where it executes nothing."""
    cells = FENCE.sub(lambda match: "```{code-cell}\n" + _code(*match.groups()) + "```", text)
    return text if cells == text else HEAD + cells


def _code(language: str, code: str) -> str:
    """Returns the code of a cell. Output of a command goes through a pipe, so that it has no progress bar."""
    if language == "python":
        return code
    return "".join(f"!{line}{'' if '|' in line else ' | cat'}\n" for line in code.splitlines())


def setup(app) -> dict[str, bool]:
    """Registers the step."""

    def read(app, name, source):
        source[0] = as_notebook(source[0])

    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
