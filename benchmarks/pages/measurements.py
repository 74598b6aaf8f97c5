"""Tables of measurements: speed, memory, agreement with the published code."""

from __future__ import annotations

from benchmarks.machine import RESULTS
from benchmarks.pages.files import load, short, source
from benchmarks.pages.markdown import table
from benchmarks.speed.costs import AXES, TITLES

MIB = 2**20


def adapters() -> str:
    """Returns seconds, memory and bytes of rounds that train a whole model, adapters, or head and norms."""
    measured, rows = load("adapters"), []
    for case in measured["points"]:
        mib = f"{case['temporaries'] / MIB:,.0f}", f"{case['bytes_up'] / MIB:.2f}"
        rows.append([case["model"], case["cohort"], case["part"], f"{case['seconds']:.2f}", *mib])
    columns = [
        "model",
        "cohort",
        "trained",
        "s a round",
        "temporaries, MiB",
        "sent by a client, MiB",
    ]
    return table(columns, rows) + "\n\n" + source(measured["machine"])


def adapters_vit_b16() -> str:
    """Returns the memory of a round of ViT-B/16 in which a large cohort trains adapters."""
    measured = load("adapters_vit_b16")
    point = measured["points"][0]
    names = ("trained_bytes", "frozen_bytes", "temporaries")
    cells = [point["cohort"], *(f"{point[name] / 2**20:,.0f}" for name in names)]
    columns = ["cohort", "trained, MiB", "frozen, MiB", "temporaries of one device, MiB"]
    return table(columns, [cells]) + "\n\n" + source(measured["machine"])


def cohort_memory() -> str:
    """Returns MiB of a round's temporaries, by cohort and `--client-chunk`."""
    points = {
        (p["cohort"], p["client_chunk"]): f"{p['bytes'] / MIB:,.0f} MiB"
        for p in load("cohort_memory")["points"]
    }
    cohorts = sorted({cohort for cohort, _ in points})
    rows = []
    for size in sorted({size for _, size in points}, key=lambda size: (size > 0, -size)):
        setting = f"`--client-chunk {size}`" + ("" if size else " (the whole cohort)")
        rows.append([setting, *(points.get((cohort, size), "") for cohort in cohorts)])
    return table(["setting", *(f"cohort of {cohort}" for cohort in cohorts)], rows)


def hypergradient_memory() -> str:
    """Returns MiB that a hypergradient through k rounds holds."""
    sizes = load("hypergradient_memory")["bytes"]
    counts = list(next(iter(sizes.values())))
    rows = []
    for name, by_rounds in sizes.items():
        rows.append([name, *(f"{by_rounds[count] / MIB:,.1f}" for count in counts)])
    return table(["rounds", *counts], rows)


def parity() -> str:
    """Returns what `benchmarks/parity.py` measured, by method and round."""
    methods, rows = load("parity")["methods"], []
    for name, method in methods.items():
        chained = max(r["chained"] for r in method["rounds"])
        weights = [r["weights"] for r in method["rounds"] if r["weights"] is not None]
        values = [max(method["client_models"]), *(r["ratio"] for r in method["rounds"]), chained]
        rows.append(
            [f"`{name}`", *(f"{v:.1e}" for v in values), f"{max(weights):.1e}" if weights else ""]
        )
    count = max(len(method["rounds"]) for method in methods.values())
    return table(
        [
            "method",
            "client models",
            *(f"round {i + 1}" for i in range(count)),
            "chained",
            "weights",
        ],
        rows,
    )


COSTS = "amd-epyc-2-cores-costs"


def costs() -> str:
    """Returns how a round's time grows between the last two points of every axis."""
    measured, rows = load(COSTS), []
    for axis in AXES:
        points, key = measured["axes"][axis]["points"], "parameters" if axis == "width" else axis
        ends = [
            (f"{p[key]:,}", f"{1e3 * p['seconds']['median']:.3g} ms")
            for p in (points[0], points[-1])
        ]
        rows.append([TITLES[axis], *ends[0], *ends[1], f"{measured['axes'][axis]['growth']:.2f}"])
    note = "Growth is the exponent between the last two points: 1 is proportional."
    head = ["", "from", "a round", "to", "a round", "growth"]
    return f"{table(head, rows)}\n\n{note}\n\n{source(measured['machine'])}\n"


def planning() -> str:
    """Returns CPU time and memory of planning a round, by clients and cohort."""
    measured = load(COSTS)["planning"]
    rows = []
    for point in measured["points"]:
        counts = [f"{point['clients']:,}", f"{point['cohort']:,}"]
        seconds = f"{1e3 * point['seconds']['median']:.3g} ms"
        sizes = [f"{point[key] / MIB:,.1f} MiB" for key in ("partition_bytes", "plan_bytes")]
        rows.append([*counts, seconds, *sizes])
    head = ["clients", "cohort", "CPU time", "partition", "minibatches of a round"]
    return f"{table(head, rows)}\n\nWith 12 rows a client. {source(measured['machine'])}\n"


TABLES = (
    *(adapters, adapters_vit_b16, cohort_memory, hypergradient_memory),
    *(parity, costs, planning),
)
"""Tables, each with the name of its markers."""


def index_of_measurements() -> str:
    """Returns every JSON file of results with its command, and the commit where it was measured."""
    lines = []
    for path in sorted(RESULTS.glob("*.json")):
        measured = load(path.stem)
        machine = measured.get("machine", {})
        command = measured.get("command") or machine["command"]
        commit = f" at commit {short(machine['commit'])[:7]}" if "commit" in machine else ""
        lines.append(f"- `{path.name}`: `{command}`{commit}\n")
    return "".join(lines)
