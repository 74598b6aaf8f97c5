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
    cards: dict[str, list[dict[str, Any]]] = {}
    for run in (
        run for file in load_all(results) for run in file.get("sessions", ()) if not run["smoke"]
    ):
        cards.setdefault(run["machine"].get("accelerator", "GPU"), []).append(run)
    return "\n\n".join("\n".join(gpu(card, runs)) for card, runs in cards.items())


def gpu(card: str, runs: list[dict[str, Any]]) -> Iterator[str]:
    """Yields the lines on a card: of each section of `benchmarks.gpu` the newest results, and what has none."""
    sections: dict[str, Any] = {}
    for name, section in (
        (name, section) for run in runs for name, section in run["sections"].items()
    ):
        if "failed" not in section or name not in sections:
            sections[name] = section
    newest = runs[-1]["machine"]
    yield f"{card}, jax {newest['versions'].get('jax')}, {newest['date'][:10]}:"
    yield "\n| ResNet-18 at 32 pixels, batches of 32, 100 clients, 10 a round, alpha 0.05 | |\n|---|---|"
    if "seconds of 200 rounds" in (run := sections.get("run", {})):
        how = "extrapolated from" if run["extrapolated"] else "measured over"
        yield f"| 200 rounds, {how} {run['rounds']} | {run['seconds of 200 rounds']:.0f} s |"
        yield f"| compiling them | {run['compile_seconds']:.0f} s |"
    for name, how in (("round", ""), ("round_chosen", ", fastest choices")):
        for phase, seconds in sections.get(name, {}).get("seconds", {}).items():
            if phase != "cpu":
                label = "a round" if phase == "round" else f"{phase} alone"
                yield f"| {label}{how} | {number(seconds['median'])} s |"
    graphs = {"step": "", "step_off": ", no CUDA graphs", "step_while": ", CUDA graphs with WHILE"}
    steps = {
        f"a client's step{how}": sections.get(s, {}).get("milliseconds", {})
        for s, how in graphs.items()
    }
    networks = sections.get("models", {}).get("milliseconds", {})
    steps |= {f"{network}, a client's step": ways for network, ways in networks.items()}
    for name, way, milliseconds in (
        (name, way, ms) for name, ways in steps.items() for way, ms in ways.items()
    ):
        yield f"| {name}, {way.replace('lanes, ', 'lanes, --conv ').replace('1 lanes', '1 lane')} | {milliseconds} ms |"
    for point in sections.get("adapters", {}).get("points", ()):
        if "seconds" in point:
            name = f"{point['model']}, cohort {point['cohort']}, {point['part']}: a round, peak of memory"
            yield f"| {name} | {number(point['seconds'])} s, {point['peak_bytes'] / 2**20:,.0f} MiB |"
    for conv, rates in sections.get("score", {}).get("rows per second", {}).items():
        fastest = {
            precision: max(of_rows.items(), key=lambda row: row[1])
            for precision, of_rows in rates.items()
        }
        for precision, (rows, rate) in fastest.items():
            yield f"| scoring one client, --conv {conv}, {precision}, {rows} rows a pass | {rate:,.0f} rows a second |"
    ways = sections.get("torch", {}).get("ways", {})
    if rounds_of := {way: seconds["round"] for way, seconds in ways.items() if "round" in seconds}:
        way = min(rounds_of, key=rounds_of.__getitem__)
        yield f"| a round of PyTorch, the fastest of {len(ways)} ways: {way} | {number(rounds_of[way])} s |"
    if failed := [name for name, section in sections.items() if "failed" in section]:
        yield f"\nWithout a result: {', '.join(failed)}."
    commands = dict.fromkeys(run["machine"]["command"] for run in runs)
    yield f"\nCommands: {', '.join(f'`{command}`' for command in commands)}"
