"""Writes the generated parts of the README and of docs, from the code and the files in benchmarks/results.

python -m benchmarks.table            writes the parts between their markers
python -m benchmarks.table --check    compares them with the pages; exit code 1 if a page is out of date

`benchmarks.pages.pieces` lists the parts. They need the report extra.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from benchmarks import machine
from benchmarks.machine import RESULTS, ROOT
from benchmarks.pages import cpu, pieces

DOCS, README = ROOT / "docs", ROOT / "README.md"


def main(argv: list[str] | None = None) -> int:
    """Writes or checks the tables; exit code 1 if a checked page is out of date."""
    parser = machine.parser(__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    args = parser.parse_args(argv)
    stale = {}
    for path, tables in pages(pieces.pieces()).items():
        text = path.read_text(encoding="utf-8")
        if (expected := replace_tables(text, tables)) != text:
            stale[path] = expected
    if args.check:
        names = ", ".join(path.name for path in stale)
        print(f"{names} differs: python -m benchmarks.table" if stale else "up to date")
        return int(bool(stale))
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")
    return 0


def pages(texts: dict[str, str]) -> dict[Path, dict[str, str]]:
    """Returns page -> name of a marker -> text; the README's table of speeds is short."""
    of_pages = {README: {"speed": cpu.summary()}}
    written = (page for page in DOCS.rglob("*.md") if page.parent.name != "studies")
    for page in sorted([*written, *RESULTS.rglob("README.md")]):
        names = re.findall(r"^<!-- (\S+): begin -->$", page.read_text(encoding="utf-8"), re.M)
        of_pages[page] = {name: texts[name].strip("\n") for name in names if name in texts}
    return of_pages


def replace_tables(text: str, tables: dict[str, str]) -> str:
    """Returns a page with every table between its markers."""
    for name, table in tables.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, _, rest = text.partition(begin)
        _, marker, after = rest.partition(end)
        if not marker:
            raise SystemExit(f"the page needs the lines {begin} and {end}")
        text = f"{before}{begin}\n{table}\n{end}{after}"
    return text


if __name__ == "__main__":
    sys.exit(main())
