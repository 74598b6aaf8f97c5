"""The table of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS
from benchmarks.pages.files import load_all
from benchmarks.pages.markdown import number


def render(results: Path = RESULTS) -> str:
    """Returns the tables of GPUs of docs/performance.md, one per device."""
    sessions = [run for file in load_all(results) for run in file.get("sessions", ())]
    cards: dict[str, list[dict[str, Any]]] = {}
    for run in sessions:
        if not run["smoke"]:
            cards.setdefault(run["machine"].get("accelerator", "GPU"), []).append(run)
    return "\n\n".join("\n".join(gpu(card, runs)) for card, runs in cards.items())


def gpu(card: str, runs: list[dict[str, Any]]) -> Iterator[str]:
    """Yields the lines on a card: of each section of `benchmarks.gpu` the newest results, and what has none."""
    sections: dict[str, Any] = {}
    for run in runs:
        for name, section in run["sections"].items():
            if "failed" not in section or name not in sections:
                sections[name] = section
    newest = runs[-1]["machine"]
    yield f"{card}, jax {newest['versions'].get('jax')}, {newest['date'][:10]}:"
    yield "\n| ResNet-18 at 32 pixels, batches of 32, 100 clients, 10 a round, alpha 0.05 | |\n|---|---|"
    of_whole, of_parts = _rows_of_rounds(sections), _rows_of_parts(sections)
    yield from (f"| {name} | {value} |" for name, value in (*of_whole, *of_parts))
    if failed := [name for name, section in sections.items() if "failed" in section]:
        yield f"\nWithout a result: {', '.join(failed)}."
    commands = dict.fromkeys(run["machine"]["command"] for run in runs)
    yield f"\nCommands: {', '.join(f'`{command}`' for command in commands)}"


def _rows_of_rounds(sections: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (name, value) of whole runs and rounds."""
    if "seconds of 200 rounds" in (run := sections.get("run", {})):
        how = "extrapolated from" if run["extrapolated"] else "measured over"
        yield f"200 rounds, {how} {run['rounds']}", f"{run['seconds of 200 rounds']:.0f} s"
        yield "compiling them", f"{run['compile_seconds']:.0f} s"
    for section, how in (("round", ""), ("round_chosen", ", fastest choices")):
        for phase, seconds in sections.get(section, {}).get("seconds", {}).items():
            if phase != "cpu":
                name = "a round" if phase == "round" else f"{phase} alone"
                yield name + how, f"{number(seconds['median'])} s"


def _rows_of_parts(sections: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (name, value) of steps, trained parts, scoring, and rounds in PyTorch."""
    steps = {
        f"a client's step{how}": sections.get(section, {}).get("milliseconds", {})
        for section, how in GRAPHS.items()
    }
    for network, ways in sections.get("models", {}).get("milliseconds", {}).items():
        steps[f"{network}, a client's step"] = ways
    for name, ways in steps.items():
        for way, milliseconds in ways.items():
            lanes, conv = way.split(" lanes, ")
            plural = "" if lanes == "1" else "s"
            yield f"{name}, {lanes} lane{plural}, --conv {conv}", f"{milliseconds} ms"
    for point in sections.get("adapters", {}).get("points", ()):
        if "seconds" in point:
            case = f"{point['model']}, cohort {point['cohort']}, {point['part']}"
            mib = f"{point['peak_bytes'] / 2**20:,.0f} MiB"
            yield f"{case}: a round, peak of memory", f"{number(point['seconds'])} s, {mib}"
    for conv, rates in sections.get("score", {}).get("rows per second", {}).items():
        for precision, of_rows in rates.items():
            rows = max(of_rows, key=of_rows.__getitem__)
            name = f"scoring one client, --conv {conv}, {precision}, {rows} rows a pass"
            yield name, f"{of_rows[rows]:,.0f} rows a second"
    ways = sections.get("torch", {}).get("ways", {})
    rounds = {way: seconds["round"] for way, seconds in ways.items() if "round" in seconds}
    if rounds:
        way = min(rounds, key=rounds.__getitem__)
        name = f"a round of PyTorch, the fastest of {len(ways)} ways: {way}"
        yield name, f"{number(rounds[way])} s"


GRAPHS = {"step": "", "step_off": ", no CUDA graphs", "step_while": ", CUDA graphs with WHILE"}
"""Section that measures steps -> how it launches them."""
