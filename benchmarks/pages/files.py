"""Files of results, and the command, commit, machine and date that each of them has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.machine import RESULTS


def load(name: str) -> Any:
    """Returns the contents of a results file."""
    return machine.read(RESULTS / f"{name}.json")


def load_all(results: Path) -> list[dict[str, Any]]:
    """Returns the contents of the JSON files of a folder, by name."""
    return [machine.read(path) for path in sorted(results.glob("*.json"))]


def source(about: dict[str, Any]) -> str:
    """Returns the command and the date of a measurement."""
    busy = " beside other work" if about["busy"] else ""
    return f"`{about['command']}`, measured{busy} on {about['date'][:10]}."


def parts_of_folder(name: str) -> list[dict[str, Any]]:
    """Returns command, commit, machine, date and number of runs of each part of a folder of results."""
    written = load(f"{name}/run")
    return written if isinstance(written, list) else [written]


def source_of_folder(name: str) -> str:
    """Returns the command, commit, machine and date of a folder of results, or of each of its parts."""
    lines = [
        f"`{p['command']}` at commit {short(p['commit'])} on {p['machine']}, {p['date']}."
        for p in parts_of_folder(name)
    ]
    return "\n".join(f"- {line}" for line in lines) if len(lines) > 1 else lines[0]


def short(commits: str) -> str:
    """Returns the first digits of a commit; several, which are named in words, as they are."""
    return commits[:7] if len(commits) == 40 else commits
