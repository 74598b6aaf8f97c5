"""Docstrings are plain text with `names`, indented equations and Google sections; this makes them reStructuredText."""

from __future__ import annotations

import inspect
import re

SECTION = re.compile(r"(Args|Returns|Raises|Yields|Source|Example|Examples|Note|Notes):")
CODE = re.compile(r"(`+[^`]*`+)")


def convert(lines: list[str]) -> list[str]:
    r"""The same docstring: indented paragraphs become literal blocks, and stars and bars in prose are escaped.

    >>> convert(["A mean |x|:", "", "    a * b", "", "and no more."])
    ['A mean \\|x\\|:', '', '::', '', '    a * b', '', 'and no more.']
    """
    converted: list[str] = []
    in_section = in_literal = False
    for number, line in enumerate(lines):
        is_indented, starts = line.startswith(" "), number == 0 or not lines[number - 1].strip()
        if line.strip() and not is_indented:
            in_section, in_literal = bool(SECTION.match(line)), False
        if is_indented and starts and not in_section and not in_literal and number:
            converted += ["::", ""]
            in_literal = True
        is_code = in_literal or re.match(r"\s*(>>>|\.\.\. )", line)
        converted.append(line if is_code else escape(line))
    return converted


def escape(line: str) -> str:
    """Prose whose stars, bars and last underscores are no markup."""
    parts = CODE.split(line)
    parts[::2] = [re.sub(r"([*|]|(?<=\w)_(?=\W|$))", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def process(app, what, name, obj, options, lines: list[str]) -> None:
    """Before napoleon reads the sections.

    A tuple's field without a docstring has one from Python, which says nothing. A field's docstring begins with an
    empty line, because napoleon takes what stands before a colon in the first line for a type. A value's docstring is
    that of its type, which says nothing of the value.
    """
    if what == "data" and "\n".join(lines).strip() == (inspect.getdoc(type(obj)) or "").strip():
        lines.clear()
    if lines[:1] and lines[0].startswith("Alias for field number"):
        lines.clear()
    lines[:] = ([""] if what == "attribute" else []) + convert(lines)


def setup(app) -> dict[str, bool]:
    """Registers the conversion."""
    app.connect("autodoc-process-docstring", process, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
