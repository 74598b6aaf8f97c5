"""Tables of measurements: speed, memory, faults, agreement with the published code."""

from __future__ import annotations

from benchmarks.machine import RESULTS
from benchmarks.pages.files import load, source
from benchmarks.pages.markdown import table
from benchmarks.speed.costs import AXES, TITLES


def compiling() -> str:
    """Returns the seconds that compiling costs on the clock, with an empty and with a full cache, and CPU seconds."""
    measured, rows = load("compile_time"), []
    for name, states in measured["networks"].items():
        clocks = [states.get(state) for state in ("here, empty cache", "here, full cache", "plain")]
        rows.append([_COMPILED[name], *(f"{clock[1]:.1f} ({clock[0]:.1f})" if clock else "" for clock in clocks)])
    columns = ["", "first process, s (CPU s)", "the next, s (CPU s)", "a plain scan of the steps, s (CPU s)"]
    return table(columns, rows) + "\n\n" + source(measured["machine"])


_COMPILED = {
    "cnn": "own network, two convolutions",
    "gru": "own GRU",
    "demo": "`python -m fedvg_jax.sim --alpha 0.05` as a whole",
    "mlp": "`--model mlp`",
    "lenet5": "`--model lenet5`",
    "resnet18": "`--model resnet18`",
}


def adapters() -> str:
    """Returns seconds, memory and bytes of rounds that train a whole model, adapters, or head and norms."""
    measured, rows = load("adapters"), []
    for case in measured["points"]:
        mib = f"{case['temporaries'] / 2**20:,.0f}", f"{case['bytes_up'] / 2**20:.2f}"
        rows.append([case["model"], str(case["cohort"]), case["part"], f"{case['seconds']:.2f}", *mib])
    columns = ["model", "cohort", "trained", "s a round", "temporaries, MiB", "sent by a client, MiB"]
    return table(columns, rows) + "\n\n" + source(measured["machine"])


def cohort_memory() -> str:
    """Returns MiB of a round's temporaries, by cohort and `--hold`."""
    measured = load("cohort_memory")
    points = {(p["cohort"], p["hold"]): p["bytes"] / 2**20 for p in measured["points"]}
    cohorts = sorted({cohort for cohort, _ in points})
    holds = sorted({hold for _, hold in points}, key=lambda hold: (hold > 0, -hold))
    rows = [
        [f"`--hold {hold}`" + ("" if hold else " (the whole cohort)")]
        + [f"{points[c, hold]:,.0f} MiB" if (c, hold) in points else "" for c in cohorts]
        for hold in holds
    ]
    return table(["setting", *(f"cohort of {cohort}" for cohort in cohorts)], rows)


def convolutions() -> str:
    """Returns the microseconds per image of a convolution with its gradients, by layer and `--conv`."""
    measured = load("amd-epyc-2-cores-convolutions")
    layers, machine = measured["layers"], measured["machine"]
    names = list(next(iter(layers.values())))
    rows = [[layer, *(f"{times[name]['median']:,.0f}" for name in names)] for layer, times in layers.items()]
    source = f"`{machine['command']}` on one core of {machine['processor']}, {machine['date'][:10]}."
    return table(["layer", *(f"`--conv {name}`" for name in names)], rows) + "\n\n" + source


def own_networks() -> str:
    """Returns the milliseconds of a local step of networks that a user writes, beside the shipped ones."""
    measured = load("own_networks")
    machine, rows = measured["machine"], []
    for name, times in measured["networks"].items():
        medians = {variant: spread["median"] for variant, spread in times.items()}
        ratio = f"{medians['run'] / medians['shipped']:.2f}" if "shipped" in medians else ""
        shown = [f"{medians[variant]:.2f}" if variant in medians else "" for variant in ("shipped", "written", "run")]
        rows.append([f"`{name}`", *shown, ratio])
    source = f"`{machine['command']}` on one core of {machine['processor']}, {machine['date'][:10]}."
    columns = ["own network", "shipped, ms", "as written, ms", "in a run, ms", "run / shipped"]
    return table(columns, rows) + "\n\n" + source


def host_pool() -> str:
    """Returns the time and memory of a run by `--placement`."""
    measured = load("host_pool")
    gib = 2**30
    rows = [
        [
            f"`--placement {run['pool']}`",
            f"{run['seconds_per_round']:.3f} s",
            f"{run['anonymous'] / gib:.2f} GiB",
            f"{run['resident'] / gib:.2f} GiB",
        ]
        for run in measured["runs"]
    ]
    size = f"memory, {measured['data_bytes'] / gib:.1f} GiB of data"
    return table(["setting", "one round", size, "with pages of the file"], rows)


def faults() -> str:
    """Returns the faults that were injected, how many runs were lost, and where that was measured."""
    measured = load("faults")
    found, machine = measured["found"], measured["machine"]
    kills, damage, caches = found["kill -9"], found["damage"], found["caches"]
    in_rounds = sum(count for name, count in kills.items() if name.startswith("killed in its rounds"))
    rows = [
        ["`kill -9` within a checkpoint", found["crash"]["died"], found["crash"]["lost"]],
        ["full disk", found["full disk"]["full"], found["full disk"]["lost"]],
        [f"`kill -9` of a run, {in_rounds} times in its rounds", kills["killed"], kills["lost"]],
        ["damaged run folder", damage["survived"] + damage["lost"], damage["lost"]],
        ["damaged cache, compiled programs included", caches["survived"] + caches["lost"], caches["lost"]],
    ]
    where = f"{machine['processor']}, {machine['cores']} cores, {measured['date']}"
    lines = table(["fault", "tries", "lost"], [[str(cell) for cell in row] for row in rows])
    return f"{lines}\n`{measured['command']}`; {where}."


def targets() -> str:
    """Returns the memory and kernels of shipped configs, compiled for other hardware."""
    rows = []
    for name, case in load("targets")["plans"].items():
        plan = case["plan"]
        kernels = [f"{plan['parts'][part]['kernels']:,}" for part in ("step", "scoring pass", "rest of a round")]
        rows.append([name, f"{plan['memory_bytes'] / 2**30:.2f} GiB", *kernels])
    return table(["config", "memory", "kernels of a step", "of a scoring pass", "of the rest of a round"], rows)


def hypergradient_memory() -> str:
    """Returns MiB that a hypergradient through k rounds holds."""
    sizes = load("hypergradient_memory")["bytes"]
    counts = list(next(iter(sizes.values())))
    rows = [[name, *(f"{by_rounds[c] / 2**20:,.1f}" for c in counts)] for name, by_rounds in sizes.items()]
    return table(["rounds", *counts], rows)


def parity() -> str:
    """Returns what `benchmarks/parity.py` measured, by method and round."""
    methods = load("parity")["methods"]
    count = max(len(method["rounds"]) for method in methods.values())
    rows = []
    for name, method in methods.items():
        ratios = [r["ratio"] for r in method["rounds"]]
        chained = max(r["chained"] for r in method["rounds"])
        weights = [r["weights"] for r in method["rounds"] if r["weights"] is not None]
        values = [max(method["client_models"]), *ratios, chained]
        rows.append([f"`{name}`", *(f"{v:.1e}" for v in values), f"{max(weights):.1e}" if weights else ""])
    head = ["method", "client models", *(f"round {i + 1}" for i in range(count)), "chained", "weights"]
    return table(head, rows)


COSTS = "amd-epyc-2-cores-costs"


def costs() -> str:
    """Returns how a round's time grows between the last two points of every axis."""
    measured = load(COSTS)
    rows = []
    for axis in AXES:
        points, key = measured["axes"][axis]["points"], "parameters" if axis == "width" else axis
        times = [f"{1e3 * point['seconds']['median']:.3g} ms" for point in (points[0], points[-1])]
        exponent = f"{measured['axes'][axis]['growth']:.2f}"
        rows.append([TITLES[axis], f"{points[0][key]:,}", times[0], f"{points[-1][key]:,}", times[1], exponent])
    head = ["", "from", "a round", "to", "a round", "growth"]
    note = "Growth is the exponent between the last two points: 1 is proportional."
    return f"{table(head, rows)}\n\n{note}\n\n{source(measured['machine'])}\n"


def planning() -> str:
    """Returns CPU time and memory of planning a round, by clients and cohort."""
    measured = load(COSTS)["planning"]
    rows = [
        [f"{p['clients']:,}", f"{p['cohort']:,}", f"{1e3 * p['seconds']['median']:.3g} ms"]
        + [f"{p[key] / 2**20:,.1f} MiB" for key in ("partition_bytes", "plan_bytes")]
        for p in measured["points"]
    ]
    head = ["clients", "cohort", "CPU time", "partition", "minibatches of a round"]
    return f"{table(head, rows)}\n\nWith 12 rows a client. {source(measured['machine'])}\n"


def experiments() -> str:
    """Returns the experiments per hour of a sweep, by network and by how its points are computed."""
    files = [load("experiments"), load("experiments_resnet18")]
    rows = []
    for name, modes in (item for measured in files for item in measured["nets"].items()):
        alone = modes["one after another"]["experiments_per_hour"]
        for mode, row in modes.items():
            low, high = row["range"]
            rate = row["experiments_per_hour"]
            times = f"{rate:,.1f}" if low == high else f"{rate:,.0f} ({low:,.0f} to {high:,.0f})"
            rows.append([name, mode, times, f"{rate / alone:.2f}"])
    head = ["network", "points", "experiments an hour (range)", "relative"]
    note = f"An experiment is {files[0]['rounds']} rounds of FedVG; compiling is not counted."
    sources = "\n".join(f"- {source(measured['machine'])}" for measured in files)
    return f"{table(head, rows)}\n\n{note}\n\n{sources}\n"


def index_of_measurements() -> str:
    """Returns every JSON file of results with its command."""
    lines = []
    for path in sorted(RESULTS.glob("*.json")):
        file = load(path.stem)
        command = file.get("command") or file["machine"]["command"]
        lines.append(f"- `{path.name}`: `{command}`")
    return "\n".join(lines) + "\n"
