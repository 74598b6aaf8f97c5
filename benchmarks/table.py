"""Writes the generated parts of the README and of docs, from the code and the files in benchmarks/results.

python -m benchmarks.table            writes the parts between their markers
python -m benchmarks.table --check    compares them with the pages; exit code 1 if a page is out of date

Parts of docs are those of docs/_ext/generated.py. They need the report extra.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import cases
from benchmarks.demo import differences
from benchmarks.machine import BUSY

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"
RESULTS = Path(__file__).parent / "results"


def main(argv: list[str] | None = None) -> int:
    """Writes or checks the tables; exit code 1 if a checked page is out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    args = parser.parse_args(argv)
    stale = {}
    for path, tables in pages(RESULTS).items():
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


def pages(results: Path) -> dict[Path, dict[str, str]]:
    """Returns page -> name of a marker -> text: all speeds for the documentation, a short table for the README."""
    sys.path.append(str(DOCS / "_ext"))
    import generated

    pieces = {**generated.pieces(), "speed": render(results), "gpu": render_gpus(results)}
    pieces["limits"] = render_limits(results)
    of_pages = {README: {"speed": summary(results)}}
    written = (page for page in DOCS.rglob("*.md") if page.parent.name != "studies")
    for page in sorted([*written, *RESULTS.rglob("README.md")]):
        names = re.findall(r"^<!-- (\S+): begin -->$", page.read_text(encoding="utf-8"), re.M)
        of_pages[page] = {name: pieces[name].strip("\n") for name in names if name in pieces}
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


def demo(results: Path) -> str:
    """Returns a table of test accuracy on the digits demonstration, with FedVG's paired differences."""
    path = results / "demo.json"
    if not path.exists():
        return "Not measured yet (`python -m benchmarks.demo`, about half an hour)."
    result = json.loads(path.read_text(encoding="utf-8"))
    settings, machine = result["settings"], result["machine"]
    gaps = differences(result["accuracy"])
    lines = [
        "| weights | `--weighting` | test accuracy | FedVG minus these, points (95 % interval) |",
        "|---|---|---|---|",
    ]
    for name, runs in result["accuracy"].items():
        gap, mean = gaps.get(name), 100 * sum(runs["final"]) / len(runs["final"])
        difference = f"{gap.mean:+.2f} ({gap.low:+.2f} to {gap.high:+.2f})" if gap else ""
        lines.append(f"| {name} | `{result['weightings'][name]}` | {mean:.2f} % | {difference} |")
    counts = f"{settings['seeds']} seeds, {settings['partitions']} partition(s), {settings['rounds']} rounds"
    where = f"{machine['processor']}, {machine['cores']} cores, {machine['date'][:10]}"
    lines += ["", f"Means of the final round at alpha {settings['alpha']:g}: {counts}; {where}."]
    return "\n".join(lines)


def render(results: Path) -> str:
    """Returns the tables of rounds on CPUs of docs/performance.md, one per machine."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    return "\n\n".join("\n".join(rounds(file)) for file in files if "cases" in file)


def render_limits(results: Path) -> str:
    """Returns what `benchmarks.limits` measured, one list per machine."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    return "\n\n".join("\n".join(limits(file)) for file in files if LIMITS & set(file))


def render_gpus(results: Path) -> str:
    """Returns the tables of GPUs of docs/performance.md, one per device."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    cards: dict[str, list[dict[str, Any]]] = {}
    for run in (run for file in files for run in file.get("sessions", ()) if not run["smoke"]):
        cards.setdefault(run["machine"].get("accelerator", "GPU"), []).append(run)
    return "\n\n".join("\n".join(gpu(card, runs)) for card, runs in cards.items())


def summary(results: Path) -> str:
    """Returns the README's tables: seconds of a round and ratios to PyTorch, one table per machine."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    return "\n\n".join("\n".join(short_rounds(file)) for file in files if "cases" in file)


def short_rounds(file: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of the README's table of a results file."""
    yield describe(file)
    yield ""
    yield "| round | ours, s | PyTorch, lean | PyTorch, DataLoader |"
    yield "|---|---|---|---|"
    for name, case in file["cases"].items():
        ratios = [f"{case['ratio'][peer]:.1f} x" if peer in case["ratio"] else "-" for peer in ("lean", "loader")]
        busy = "" if quiet(case) else " (busy)"
        yield f"| {name}{busy} | {number(case['seconds']['ours']['round']['median'])} | {' | '.join(ratios)} |"


def describe(file: dict[str, Any]) -> str:
    """Returns the machine and the versions of a results file."""
    machine = file["machine"]
    of_torch: dict[str, list[str]] = {}
    for name, case in file["cases"].items():
        for version in {about["torch"] for about in case["about"].values() if "torch" in about}:
            of_torch.setdefault(version, []).append(name)
    names = [f"jax {machine['versions']['jax']}"]
    for version, measured in sorted(of_torch.items()):
        names.append(f"torch {version}" + (f" ({', '.join(measured)})" if len(of_torch) > 1 else ""))
    versions = ", ".join(names)
    peak, busy = file["sgemm GF/s"], ", busy" if machine["busy"] else ""
    return (
        f"{machine['processor']}, {machine['cores']} cores ({peak['one core']:.0f} GF/s float32 on one,"
        f" {peak['all cores']:.0f} on all{busy}), {file['threads']} threads each, {versions}, {machine['date'][:10]}."
    )


def rounds(file: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of the table of rounds on a CPU."""
    peak = file["sgemm GF/s"]
    yield describe(file)
    yield ""
    yield f"| {' | '.join(_COLUMNS)} |"
    yield "|---" * len(_COLUMNS) + "|"
    for name, case in file["cases"].items():
        ours = case["seconds"]["ours"]["round"]
        cells = [
            f"{name}: {cases.CASES[name].description}{'' if quiet(case) else ' (busy)'}",
            _alpha(case),
            f"{sum(case['world']['work'].values()) // case['world']['rounds']:,}",
            f"{number(ours['median'])} ({number(ours['min'])} to {number(ours['max'])})",
            cpu_seconds(case, "ours"),
            of_peak(case, peak["all cores"]),
            *(ratio_to_ours(case, peer) for peer in _PEERS),
            f"{case['about']['ours']['compile_seconds']:.1f}",
        ]
        yield f"| {' | '.join(cells)} |"
    if not all(map(quiet, file["cases"].values())):
        yield ""
        yield ("busy: other work was running on the machine, so that these times are too long and their ratios rough.")


def limits(file: dict[str, Any]) -> Iterator[str]:
    """Yields the lines on the results of `benchmarks.limits`, with their targets."""
    machine, sections = file["machine"], file["taken"].values()
    busy = ", busy" if any(section["busy"] for section in sections) else ""
    yield f"Other measurements on {machine['processor']}, {machine['date'][:10]}{busy}:"
    yield ""
    if "help" in file:
        yield f"- `--help`: {number(file['help']['median'])} s (target 1 s)."
    if "start" in file:
        seconds = ", ".join(f"{name} {number(file['start'][name]['median'])} s" for name in file["start"])
        yield f"- A warm start, to the end of its first round and an evaluation: {seconds} (targets 2 s and 5 s)."
    if "sweep" in file:
        empty, full = (number(file["sweep"][state]["median"]) for state in ("empty", "full"))
        yield (
            "- A sweep of five methods at two alphas with three seeds, 30 runs of 100 rounds on the digits, and its"
            f" report: {empty} s with an empty compilation cache, {full} s with a full one (target 90 s)."
        )
    if "schedule" in file:
        times = ", ".join(f"{number(spread['median'])} ms for {k}" for k, spread in file["schedule"].items())
        yield f"- Planning a round of 100,000 clients, by cohort: {times} (target 50 ms)."
    if "lanes" in file:
        ratios = [ratio for by_alpha in file["lanes"].values() for ratio in by_alpha.values()]
        counts = ", ".join(file["lanes"])
        yield (
            f"- Training on {counts} lanes at five alphas: {min(ratios):.2f} to {max(ratios):.2f} times as long as the"
            " same steps without a gap (target 1.15)."
        )
    if "plan" in file:
        yield ""
        yield "What `--dry-run` estimates, divided by what is measured (target: within 20 %):"
        yield ""
        yield "| run | seconds | memory |"
        yield "|---|---|---|"
        for name, plan in file["plan"].items():
            yield f"| {name} | {plan['time']:.2f} | {plan['memory']:.2f} |"
    yield ""
    yield "Commands of these measurements:"
    yield ""
    for command in dict.fromkeys(section["command"] for section in sections):
        yield f"- `{command}`"


LIMITS = {"help", "start", "sweep", "schedule", "lanes", "plan"}


def quiet(case: dict[str, Any]) -> bool:
    """Returns whether the machine was idle before and after a case."""
    return all((case.get(name) or 0) <= BUSY for name in ("others_before", "others_after"))


_PEERS = ("lean", "loader", "vmap", "pfl")


def _alpha(case: dict[str, Any]) -> str:
    """Returns the Dirichlet concentration of a case as text."""
    return "equal" if case["alpha"] is None else f"{case['alpha']:g}"


_COLUMNS = ("round", "alpha", "images forward and back", "ours, s", "CPU s", "of peak", "PyTorch, lean", "DataLoader")
_COLUMNS += ("vmap", "pfl", "compile, s")


def cpu_seconds(case: dict[str, Any], contestant: str) -> str:
    """Returns the CPU seconds of a round as text, summed over threads and processes."""
    return number(case["seconds"][contestant]["cpu"]["median"])


def ratio_to_ours(case: dict[str, Any], peer: str) -> str:
    """Returns the ratio of a contestant's time to ours as text, with its CPU seconds."""
    if peer not in case["ratio"]:
        return "-"
    return f"{case['ratio'][peer]:.2f} x ({cpu_seconds(case, peer)} CPU s)"


def of_peak(case: dict[str, Any], peak: float) -> str:
    """Returns our speed as a share of the machine's peak; "-" on a busy machine, where it would be meaningless."""
    flops = case["about"]["ours"].get("flops_per_image_gradient")
    if not flops or not quiet(case):
        return "-"
    return f"{100 * case['image_gradients_per_second'] * flops / (1e9 * peak):.0f} %"


def gpu(card: str, runs: list[dict[str, Any]]) -> Iterator[str]:
    """Yields the lines on a card: of each section of `benchmarks.gpu` the newest results, and what has none."""
    sections: dict[str, Any] = {}
    for name, section in ((name, section) for run in runs for name, section in run["sections"].items()):
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
    steps = {f"a client's step{how}": sections.get(s, {}).get("milliseconds", {}) for s, how in graphs.items()}
    networks = sections.get("models", {}).get("milliseconds", {})
    steps |= {f"{network}, a client's step": ways for network, ways in networks.items()}
    for name, way, milliseconds in ((name, way, ms) for name, ways in steps.items() for way, ms in ways.items()):
        yield f"| {name}, {way.replace('lanes, ', 'lanes, --conv ').replace('1 lanes', '1 lane')} | {milliseconds} ms |"
    for conv, rates in sections.get("score", {}).get("rows per second", {}).items():
        for precision, rows, rate in (
            (p, rows, rate) for p, of_rows in rates.items() for rows, rate in of_rows.items()
        ):
            yield f"| scoring one client, --conv {conv}, {precision}, {rows} rows a pass | {rate:,.0f} rows a second |"
    for way, seconds in sections.get("torch", {}).get("ways", {}).items():
        result = f"{number(seconds['round'])} s" if "round" in seconds else "no result"
        yield f"| a round of PyTorch: {way} | {result} |"
    if agree := sections.get("agree"):
        yield "\n| a CNN on digits | largest relative difference of a weight from the CPU's | the same bits twice |"
        yield "|---|---|---|"
        for way, rounds in agree["differences from the CPU, by round"].items():
            same = {True: "yes", False: "no", None: "not tried"}[agree["the same bits twice"].get(way)]
            yield f"| {way} | {rounds[0]['weights']:.0e} | {same} |"
    if failed := [name for name, section in sections.items() if "failed" in section]:
        yield f"\nWithout a result: {', '.join(failed)}."
    commands = dict.fromkeys(run["machine"]["command"] for run in runs)
    yield f"\nCommands: {', '.join(f'`{command}`' for command in commands)}"


def number(seconds: float) -> str:
    """Returns a number with three significant digits.

    >>> number(0.0012345), number(12.345)
    ('0.00123', '12.3')
    """
    return f"{seconds:.3g}"


if __name__ == "__main__":
    sys.exit(main())
