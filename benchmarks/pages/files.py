"""Files of results, and the command, commit, machine and date that each of them has."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS


def load(name: str) -> Any:
    """Returns the contents of a results file."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def load_all(results: Path) -> list[dict[str, Any]]:
    """Returns the contents of the JSON files of a folder, by name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]


def csv_rows(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def source(machine: dict[str, Any]) -> str:
    """Returns the command and the date of a measurement."""
    busy = " beside other work" if machine["busy"] else ""
    return f"`{machine['command']}`, measured{busy} on {machine['date'][:10]}."


def source_of_folder(name: str) -> str:
    """Returns the command, commit, machine and date of a folder of results, or of each of its parts."""
    written = load(f"{name}/run")
    parts = written if isinstance(written, list) else [written]
    lines = [
        f"`{p['command']}` at commit {short(p['commit'])} on {p['machine']}, {p['date']}."
        for p in parts
    ]
    return "\n".join(f"- {line}" for line in lines) if len(lines) > 1 else lines[0]


def short(commits: str) -> str:
    """Returns the first digits of a commit; several, which are named in words, as they are."""
    return commits[:7] if len(commits) == 40 else commits
