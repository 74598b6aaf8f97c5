"""Tables of rounds on CPUs beside PyTorch, and of starts and sweeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.machine import BUSY, RESULTS
from benchmarks.pages.files import load_all
from benchmarks.pages.markdown import number, table
from benchmarks.speed import cases


def render(results: Path = RESULTS) -> str:
    """Returns the tables of rounds on CPUs of docs/performance.md, one per machine."""
    return "\n\n".join("\n".join(rounds(file)) for file in load_all(results) if "cases" in file)


def summary(results: Path = RESULTS) -> str:
    """Returns the README's table: seconds of a round and ratios to PyTorch, on the machine with the most rounds."""
    files = [file for file in load_all(results) if "cases" in file]
    return "\n".join(short_rounds(max(files, key=lambda file: len(file["cases"]))))


def short_rounds(file: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of the README's table of a results file."""
    file = file | {"cases": {name: file["cases"][name] for name in SHOWN}}
    yield describe(file) + "\n"
    rows = []
    for name, case in file["cases"].items():
        ratios = [
            f"{case['ratio'][peer]:.1f} x" if peer in case["ratio"] else "-" for peer in SHORT
        ]
        seconds = (
            number(case["seconds"]["ours"]["round"]["median"]),
            f"{case['about']['ours']['compile_seconds']:.1f}",
        )
        rows.append([name + ("" if quiet(case) else " (busy)"), *seconds, *ratios])
    yield table(["round", "ours, s", "compiling, s", *SHORT.values()], rows).rstrip()


SHOWN = ("mlp64", "lenet5", "resnet18", "pfl_cnn", "efficientnet_lora")
"""Rounds of the README's table: of every size, the slowest against PyTorch among them."""

SHORT = {"lean": "PyTorch, lean", "loader": "PyTorch, DataLoader", "flower": "Flower"}
"""Contestants of the README's table; "-" where one is not measured."""


def describe(file: dict[str, Any]) -> str:
    """Returns the machine and the versions of a results file."""
    machine, peak = file["machine"], file["sgemm GF/s"]
    abouts = [about for case in file["cases"].values() for about in case["about"].values()]
    of_torch = " and ".join(sorted({about["torch"] for about in abouts if "torch" in about}))
    return (
        f"{machine['processor']}, {machine['cores']} cores ({peak['one core']:.0f} GF/s float32 on one,"
        f" {peak['all cores']:.0f} on all), {file['threads']} threads each, jax {machine['versions']['jax']},"
        f" torch {of_torch}; the latest row was measured on {machine['date'][:10]}."
    )


def rounds(file: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of the table of rounds on a CPU."""
    yield describe(file) + "\n"
    rows = []
    for name, case in file["cases"].items():
        ours, alpha = case["seconds"]["ours"]["round"], case["alpha"]
        rows.append([
            f"{name}: {cases.CASES[name].description}{'' if quiet(case) else ' (busy)'}",
            "equal" if alpha is None else f"{alpha:g}",
            f"{sum(case['world']['work'].values()) // case['world']['rounds']:,}",
            f"{number(ours['median'])} ({number(ours['min'])} to {number(ours['max'])})",
            cpu_seconds(case, "ours"),
            of_peak(case, file["sgemm GF/s"]["all cores"]),
            *(ratio_to_ours(case, peer) for peer in ("lean", "loader", "flower")),
            f"{case['about']['ours']['compile_seconds']:.1f}",
        ])  # fmt: skip
    head = [
        "round",
        "alpha",
        "images forward and back",
        "ours, s",
        "CPU s",
        "of peak",
        "PyTorch, lean",
        "DataLoader",
    ]
    yield table([*head, "Flower", "compile, s"], rows).rstrip()
    if not all(map(quiet, file["cases"].values())):
        yield "\nbusy: other work was running on the machine, so that these times are too long and their ratios rough."


LIMITS = {
    ("help",): ("`--help`", "1"),
    ("start", "digits"): ("a warm start on digits, with one round and an evaluation", "2"),
    ("start", "resnet18"): ("the same with ResNet-18", "5"),
    ("sweep", "empty"): ("30 runs of 100 rounds on digits, with their report", "90"),
    ("sweep", "full"): ("the same with a full compilation cache", "90"),
}
"""Place in a results file of `benchmarks.speed.limits` -> what was measured, and the target in seconds."""


def render_limits(results: Path = RESULTS) -> str:
    """Returns what `benchmarks.speed.limits` measured: seconds with their targets."""
    rows, commands = [], {}
    for file in (file for file in load_all(results) if "taken" in file):
        machine = f"{file['machine']['processor']}, {file['machine']['date'][:10]}"
        for (section, *part), (title, target) in LIMITS.items():
            if section in file:
                spread = file[section][part[0]] if part else file[section]
                rows.append([title, number(spread["median"]), target, machine])
                commands[file["taken"][section]["command"]] = None
    listed = "\n".join(f"- `{command}`" for command in commands)
    return f"{table(['measurement', 'seconds', 'target', 'machine'], rows)}\nCommands:\n\n{listed}"


def quiet(case: dict[str, Any]) -> bool:
    """Returns whether the machine was idle before and after a case."""
    return all((case.get(name) or 0) <= BUSY for name in ("others_before", "others_after"))


def cpu_seconds(case: dict[str, Any], contestant: str) -> str:
    """Returns the CPU seconds of a round as text, summed over threads and processes."""
    return number(case["seconds"][contestant]["cpu"]["median"])


def ratio_to_ours(case: dict[str, Any], peer: str) -> str:
    """Returns the ratio of a contestant's time to ours as text, with its CPU seconds where it counts them."""
    if peer not in case["ratio"]:
        return "-"
    if "cpu" not in case["seconds"][peer]:
        return f"{case['ratio'][peer]:.2f} x"
    return f"{case['ratio'][peer]:.2f} x ({cpu_seconds(case, peer)} CPU s)"


def of_peak(case: dict[str, Any], peak: float) -> str:
    """Returns our speed as a share of the machine's peak; "-" on a busy machine, where it would be meaningless."""
    flops = case["about"]["ours"].get("flops_per_image_gradient")
    if not flops or not quiet(case):
        return "-"
    return f"{100 * case['image_gradients_per_second'] * flops / (1e9 * peak):.0f} %"
