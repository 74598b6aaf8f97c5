"""Tables from results files and from the tables of the paper."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from option_lists import escape, table

from fedvg_jax import config
from fedvg_jax.study import statistics
from fedvg_jax.study.scenarios import base_name
from fedvg_jax.views.labels import method_label

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def load(name: str) -> Any:
    """A results file; None where it has not been measured."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def cohort_memory() -> str:
    """MiB of a round's temporaries, by cohort and `--hold`."""
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
    """Microseconds per image of a convolution with its gradients, by layer and `--conv`."""
    measured = load("amd-epyc-2-cores-convolutions")
    layers, machine = measured["layers"], measured["machine"]
    names = list(next(iter(layers.values())))
    rows = [[layer, *(f"{times[name]['median']:,.0f}" for name in names)] for layer, times in layers.items()]
    source = f"`{machine['command']}` on one core of {machine['processor']}, {machine['date'][:10]}."
    return table(["layer", *(f"`--conv {name}`" for name in names)], rows) + "\n\n" + source


def own_networks() -> str:
    """Milliseconds of a local step of networks that a user writes, beside the shipped ones."""
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
    """Time and memory of a run by `--placement`."""
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
    """Faults that were injected, how many runs were lost, and where that was measured."""
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
    """Memory, kernels and bytes of shipped configs, compiled for other hardware."""
    rows = []
    for name, case in load("targets")["plans"].items():
        plan = case["plan"]
        parts = [plan["parts"][part] for part in ("step", "scoring pass", "round")]
        work = [f"{part['kernels']:,}; {part['bytes'] / 1e6:,.0f} MB" for part in parts]
        rows.append([name, f"{plan['memory_bytes'] / 2**30:.2f} GiB", *work])
    return table(["config", "memory", "kernels and bytes of a step", "of a scoring pass", "of a round"], rows)


def hypergradient_memory() -> str:
    """MiB that a hypergradient through k rounds holds."""
    sizes = load("hypergradient_memory")["bytes"]
    counts = list(next(iter(sizes.values())))
    rows = [[name, *(f"{by_rounds[c] / 2**20:,.1f}" for c in counts)] for name, by_rounds in sizes.items()]
    return table(["rounds", *counts], rows)


def fidelity() -> str:
    """One row for every difference between the paper, the published code and the defaults here."""
    from fedvg_jax.paper.fidelity import DEPARTURES

    defaults = config.flatten(config.Config())
    rows = [
        [
            *(escape(cell) for cell in (row.subject, row.paper, row.published, row.ours)),
            published_behaviour(row, defaults),
            ", ".join(
                f"{side}: {evidence}"
                for side, evidence in (("paper", row.paper_evidence), ("code", row.published_evidence))
                if evidence not in ("read", "run")
            ),
        ]
        for row in DEPARTURES
    ]
    return table(["", "paper", "published code", "default here", "published behaviour", "doubt"], rows)


def published_behaviour(row, defaults: dict[str, Any]) -> str:
    """The flags of a row, whether they are the default or in the profile, and the row's reason."""
    settings = {"departures": row.id} if row.is_switch else row.settings
    flags = " ".join(f"`--{name.replace('_', '-')} {value}`" for name, value in settings.items())
    is_default = row.by_default or (flags and all(defaults.get(name) == value for name, value in settings.items()))
    note = " (default)" if is_default else " (official)" if row.official else ""
    return "; ".join(filter(None, [flags + note, escape(row.reason)]))


def parity() -> str:
    """What `benchmarks/parity.py` measured, by method and round."""
    result = load("parity")
    if result is None:
        return "Not measured yet.\n"
    methods = result["methods"]
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


LARGEST_CLASS = "always the largest class"


class Row(NamedTuple):
    """Accuracies of one method in one setting, and its differences to the baseline."""

    setting: str
    method: str
    mean: float
    std: float = math.nan
    """nan for `LARGEST_CLASS`"""
    n: int = 0
    difference: tuple[float, float, float, float] | None = None
    """Mean, limits of the 95 % t interval and p after Holm's correction; None for the baseline."""


BASELINES = ("fedvg", "fedavg", "uniform")
"""Methods that others are compared with."""


def controls(name: str, baseline: str = "fedvg", choice: str = "final") -> str:
    """Accuracy under several weightings, and differences: FedVG minus each, or each minus another baseline.

    Args:
        name: folder of results.
        baseline: one of `BASELINES`; where the folder holds tables of a report, the baseline of that report.
        choice: evaluation that stands for a run, where the folder has a line for every run.

    Returns:
        A table and its source.
    """
    listed = rows_of_results(name, baseline, choice)
    has_settings = any(row.setting for row in listed)
    rows = []
    for row in listed:
        spread = "" if math.isnan(row.std) else f" ± {row.std:.2f}"
        shown = [row.setting, method_label(row.method), f"{row.mean:.2f}{spread}", str(row.n or "")]
        if row.difference:
            shown += _shown_difference(*(of_fedvg(row.difference) if baseline == "fedvg" else row.difference))
        rows.append((shown + [""] * (6 - len(shown)))[not has_settings :])
    subject = "FedVG minus these" if baseline == "fedvg" else f"these minus {method_label(baseline)}"
    minus = f"{subject}, points (95 % interval)"
    columns = ["setting", "weights", "test accuracy, %", "runs", minus, "p, Holm"]
    chosen = "" if choice == "final" else f" --choice {choice}"
    source = _source_of_run(name).replace("--baseline fedvg`", f"--baseline {baseline}{chosen}`")
    return f"{table(columns[not has_settings :], rows)}\n\n{source}\n"


def of_fedvg(difference: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    """Turns the difference of a method to FedVG into that of FedVG to the method."""
    gap, low, high, p = difference
    return -gap, -high, -low, p


class Study(NamedTuple):
    """A comparison of FedVG with its controls, in the final round."""

    what: str
    folder: str
    seeds: int
    alpha: str
    gaps: dict[str, tuple[float, float, float, float]]
    """control, of those that were run -> FedVG minus it: mean, limits of the 95 % interval, p"""


CONTROLS = {"FedAvg": "fedavg", "uniform": "uniform", "placebo": "permuted(fedvg)"}
"""Control -> method. The placebo gives FedVG's weights to other clients of the cohort."""

_EQUAL = "partition dirichlet_equal"

STUDIES = (
    ("CIFAR-10, LeNet-5, 100 clients, 200 rounds", "controls_cifar10_lenet5_full", {"": "0.05"}),
    ("CIFAR-10, 12,000 images, LeNet-5", "controls_cifar10_lenet5", {"partition dirichlet": "0.05"}),
    ("CIFAR-10, 12,000 images, LeNet-5", "controls_cifar10_lenet5_alpha_0.1", {"partition dirichlet": "0.1"}),
    ("CIFAR-10, 12,000 images, LeNet-5", "controls_cifar10_lenet5_alpha_0.5", {"partition dirichlet": "0.5"}),
    ("CIFAR-10, 6,000 images, ResNet-18, BatchNorm", "controls_cifar10_resnet18_batch", {"norm batch": "0.05"}),
    ("CIFAR-10, 6,000 images, ResNet-18, GroupNorm", "controls_cifar10_resnet18_group", {"": "0.05"}),
    ("digits, MLP", "controls_digits", {f"alpha {a}": a for a in ("0.05", "0.1", "0.5")}),
    ("digits, tiny CNN", "controls_digits_tinycnn", {"": "0.05"}),
    ("digits, tiny CNN", "controls_digits_tinycnn_milder", {f"alpha {a}": a for a in ("0.1", "0.5")}),
    ("breast cancer, MLP", "controls_breast_cancer", {"": "0.05"}),
    ("texts, GRU", "controls_literature", {"": "by author"}),
    ("equal sizes: CIFAR-10, 12,000 images, LeNet-5", "controls_cifar10_lenet5", {_EQUAL: "0.05"}),
    *(
        ("equal sizes: CIFAR-10, 12,000 images, LeNet-5", f"controls_cifar10_lenet5_alpha_{alpha}", {_EQUAL: alpha})
        for alpha in ("0.1", "0.5")
    ),
    *(
        (f"equal sizes: digits, {network}", folder, {f"alpha {a}": a for a in ("0.05", "0.1", "0.5")})
        for network, folder in (("MLP", "controls_digits_equal"), ("tiny CNN", "controls_digits_tinycnn_equal"))
    ),
)
"""(data set and network, folder of results, its settings -> alpha). With clients of one size FedAvg's weights are
uniform."""


def studies() -> list[Study]:
    """FedVG minus its controls in every study."""
    listed = []
    for what, folder, settings in STUDIES:
        rows = rows_of_results(folder)
        for setting, alpha in settings.items():
            of_setting = {row.method: row for row in rows if row.setting == setting}
            differences = {name: of_setting[m].difference for name, m in CONTROLS.items() if m in of_setting}
            gaps = {name: of_fedvg(difference) for name, difference in differences.items() if difference}
            listed.append(Study(what, folder, of_setting["fedvg"].n, alpha, gaps))
    return listed


def overview() -> str:
    """FedVG minus FedAvg, uniform weights and the placebo in every study, in the final round."""
    rows = [
        [s.what, s.alpha, str(s.seeds)]
        + [_shown_difference(*s.gaps[name])[0] if name in s.gaps else "–" for name in CONTROLS]
        for s in studies()
    ]
    return table(["data and network", "alpha", "seeds", *(f"FedVG minus {name}" for name in CONTROLS)], rows)


def outcomes(sets: Mapping[str, str]) -> str:
    """The outcome of every hypothesis in folders of results, folder -> title."""
    from benchmarks import uses

    rows = []
    for folder, title in sets.items():
        found = uses.primary(uses.read(folder, "final"))
        cells = ([c for (name, _), c in found.items() if name == hypothesis] for hypothesis in uses.CONTROLS)
        rows.append([title, *map(uses.verdict, cells)])
    return table(["data", *_hypotheses()], rows)


def contrasts(sets: Mapping[str, str], choice: str = "final", decides: bool = True) -> str:
    """FedVG minus its four controls in folders of results, folder -> title.

    If it decides, with the outcome of every contrast; otherwise exploratory, without correction.
    """
    from benchmarks import uses

    rows = []
    for folder, title in sets.items():
        found = uses.primary(uses.read(folder, choice))
        for alpha in uses.ALPHAS:
            of_alpha = [found.get((name, alpha)) for name in uses.CONTROLS]
            shown = [_interval(*c[1:4]) + f", {c.outcome}" * decides if c else "–" for c in of_alpha]
            rows += [[title, alpha, str(max(c.n for c in of_alpha if c)), *shown]] if any(of_alpha) else []
    return table(["data", "alpha", "seeds", *_hypotheses()], rows)


def pretraining() -> str:
    """The four contrasts with pretrained weights minus the same with random ones."""
    from benchmarks import uses

    rows = []
    for folder, title in uses.RANDOM.items():
        effects = uses.effects_of_pretraining(folder)
        for alpha in dict.fromkeys(alpha for _, alpha in effects):
            rows.append([title, alpha, *(_interval(*effects[name, alpha][1:4]) for name in uses.CONTROLS)])
    return table(["data", "alpha", *_hypotheses()], rows)


def _hypotheses() -> list[str]:
    """Titles of the columns of the primary contrasts."""
    from benchmarks import uses

    controls = ("FedAvg", "uniform", "placebo", "FedAvg with server steps")
    return [f"{name}: minus {control}" for name, control in zip(uses.CONTROLS, controls, strict=True)]


def uses_of_validation(folder: str) -> str:
    """Accuracies of every use of D_val on one data set, and their differences to FedAvg, with the source."""
    from benchmarks import uses

    values, balanced, inequality, rates = (
        uses.read(folder, column) for column in ("final", "balanced", "inequality", "lr")
    )
    rows, alphas = [], [alpha for alpha in uses.ALPHAS if (alpha, uses.FEDVG) in values]
    for method, title in {"fedavg": "FedAvg (no use)", **uses.USES}.items():
        if not any((alpha, method) in values for alpha in alphas):
            continue
        cells = []
        for alpha in alphas:
            if (alpha, method) not in values:
                cells += ["–"] * 2
                continue
            gap = uses.against(values, alpha, method) if method != "fedavg" else None
            mean, *others = (
                np.mean(list(v.get((alpha, method), {0: math.nan}).values())) for v in (values, balanced, rates)
            )
            shown = f"{mean:.1f}" if method == uses.CHOSEN else f"{mean:.1f} / {others[0]:.1f} ({others[1]:g})"
            cells += [shown, _interval(gap.mean, gap.low, gap.high) if gap else ""]
        ratios = [np.median(list(inequality[a, method].values())) for a in alphas if (a, method) in inequality]
        rows.append([title, *cells, f"{np.median(ratios):.3g}" if ratios else "–"])
    head = ["use of D_val"]
    for alpha in alphas:
        head += [f"alpha {alpha}: accuracy / balanced, % (rate)", "minus FedAvg, points"]
    return f"{table([*head, 'largest / smallest weight'], rows)}\n\n{_source_of_run(folder)}\n"


def methods_on_features(folder: str) -> str:
    """Accuracies of the paper's methods on one data set, and what FedVG's weights add to each, with the source."""
    from benchmarks import uses

    values, rates = (uses.read(folder, column) for column in ("final", "lr"))
    rows, alphas = [], list(dict.fromkeys(alpha for alpha, _ in values))
    for method in dict.fromkeys(method for _, method in values if method != uses.CHOSEN):
        base = {uses.FEDVG: "fedavg"}.get(method, method.removesuffix("+fedvg"))
        cells = []
        for alpha in alphas:
            mean, rate = (np.mean(list(v[alpha, method].values())) for v in (values, rates))
            gap = uses.against(values, alpha, method, base) if method != base else None
            cells += [f"{mean:.1f} ({rate:g})", _interval(gap.mean, gap.low, gap.high) if gap else ""]
        rows.append([method_label(method), *cells])
    head = ["method"]
    for alpha in alphas:
        head += [f"alpha {alpha}: accuracy, % (rate)", "minus its base, points"]
    return f"{table(head, rows)}\n\n{_source_of_run(folder)}\n"


def _interval(mean: float, low: float, high: float) -> str:
    return f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"


def _shown_difference(gap: float, low: float, high: float, p: float) -> list[str]:
    """A difference with its interval, and p; a dash for what one pair or equal differences do not give."""
    interval = "–" if math.isnan(low) else f"{low:+.2f} to {high:+.2f}"
    return [f"{gap:+.2f} ({interval})", "–" if math.isnan(p) else f"{p:.3f}" if p >= 0.001 else "< 0.001"]


def rows_of_results(name: str, baseline: str = "fedvg", choice: str = "final") -> list[Row]:
    """Rows of a folder of results, see `controls`.

    Raises:
        ValueError: the tables of a report, which have another baseline.
    """
    folder = RESULTS / name
    if has_runs(folder):
        return rows_of_runs(csv_rows(folder / "runs.csv"), choice, baseline)
    rows = rows_of_report(folder)
    if any(row.method == baseline and row.difference for row in rows):
        raise ValueError(f"{name}: its tables compare {baseline} with another baseline")
    return rows


def name_of_today(method: str) -> str:
    """Name that a report gives today to a method of a committed file, where it may be "ALGORITHM, WEIGHTING".

    >>> name_of_today("fedavg, samples, tuning.steps 5"), name_of_today("fedavg, permuted(fedvg)")
    ('fedavg, tuning.steps 5', 'permuted(fedvg)')
    >>> name_of_today("uniform"), name_of_today("fedvg, norm l2")
    ('uniform', 'fedvg, norm l2')
    """
    algorithm, *rest = method.split(", ")
    if not rest or " " in rest[0]:
        return method
    return ", ".join([base_name(algorithm, rest[0]), *rest[1:]])


def has_runs(folder: Path) -> bool:
    """Whether a folder of results has a line for every run instead of the tables of a report."""
    return (folder / "runs.csv").exists()


def rows_of_report(folder: Path) -> list[Row]:
    """Rows from the tables of a report, accuracy.csv and effects.csv."""
    accuracy, effects = (csv_rows(folder / f"{part}.csv") for part in ("accuracy", "effects"))
    settings = [column.removesuffix(" mean") for column in accuracy[0] if column.endswith(" mean")]
    has_settings = "setting" in effects[0]
    against = {(name_of_today(row["method"]), row["setting"] if has_settings else settings[0]): row for row in effects}
    rows = []
    for setting in settings:
        label = setting if has_settings else ""
        for row in (row for row in accuracy if row[f"{setting} mean"]):
            mean, std, count = (row[f"{setting} {part}"] for part in ("mean", "std", "n"))
            method = name_of_today(row["method"])
            effect = against.get((method, setting))
            difference = effect and tuple(float(effect[key]) for key in ("difference", "t_low", "t_high", "t_p_holm"))
            rows.append(Row(label, method, float(mean), float(std or "nan"), int(count or 0), difference or None))
    return rows


def rows_of_runs(runs: list[dict[str, str]], choice: str, baseline: str = "fedvg") -> list[Row]:
    """Rows from the lines of runs.csv, by the statistics of a report; `baseline` is a method."""
    names = list(runs[0])
    settings = names[: names.index("method")]
    cells: dict[tuple[str, str], dict[tuple[int, int], float]] = {}
    largest: dict[str, list[float]] = {}
    for run in runs:
        key = ", ".join(f"{name} {run[name]}" for name in settings), name_of_today(run["method"])
        cells.setdefault(key, {})[int(run["seed"]), int(run["partition_seed"])] = float(run[choice])
        largest.setdefault(key[0], []).extend([float(run["majority"])] if run["majority"] else [])
    compared = {
        (setting, method): statistics.compare(values, cells[setting, baseline])
        for (setting, method), values in cells.items()
        if method != baseline
    }
    corrected = dict(zip(compared, statistics.holm([c.t_p for c in compared.values()]), strict=True))
    rows = []
    for setting in dict.fromkeys(setting for setting, _ in cells):
        for key, values in cells.items():
            if key[0] == setting:
                effect = compared.get(key)
                difference = (effect.mean, *effect.t_interval, corrected[key]) if effect else None
                rows.append(Row(*key, *statistics.mean_and_std(list(values.values())), len(values), difference))
        if shares := largest[setting]:
            rows.append(Row(setting, LARGEST_CLASS, float(np.mean(shares))))
    return rows


def _source_of_run(name: str) -> str:
    """Command, commit, machine and date of a folder of results, or of each of its parts."""
    written = load(f"{name}/run")
    parts = written if isinstance(written, list) else [written]
    lines = [f"`{p['command']}` at commit {_short(p['commit'])} on {p['machine']}, {p['date']}." for p in parts]
    return "\n".join(f"- {line}" for line in lines) if len(lines) > 1 else lines[0]


def index_of_studies() -> str:
    """Every folder of results with its title, its number of runs and its commands."""
    lines = []
    for page in (run.with_name("README.md") for run in sorted(RESULTS.glob("*/run.json"))):
        title, name = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# "), page.parent.name
        written = load(f"{name}/run")
        parts = written if isinstance(written, list) else [written]
        commands = "; ".join(dict.fromkeys(f"`{part['command']}`" for part in parts))
        lines.append(f"- [{title}]({name}/README.md), {sum(part['runs'] for part in parts):,} runs: {commands}")
    return "\n".join(lines) + "\n"


def index_of_measurements() -> str:
    """Every JSON file of results with its command."""
    lines = []
    for path in sorted(RESULTS.glob("*.json")):
        file = load(path.stem)
        command = file.get("command") or file.get("machine", {}).get("command", f"python -m benchmarks.{path.stem}")
        lines.append(f"- `{path.name}`: `{command}`")
    return "\n".join(lines) + "\n"


def _short(commits: str) -> str:
    """The first digits of a commit; several, which are named in words, as they are."""
    return commits[:7] if len(commits) == 40 else commits


SCALES = {
    "controls_cifar10_lenet5_full": (60_000, "cifar10", "lenet5", "200", "100", "10", 40),
    "controls_cifar10_lenet5": (12_000, "cifar10", "lenet5", "100", "20", "10", 80),
    "controls_digits": (1_797, "digits", "mlp", "100", "20", "30", 540),
    "whole_network": (12_000, "CIFAR-10 from ImageNet weights", "efficientnet_lite0", "15", "20", "5", 50),
    "features_cifar10": (60_000, "features of CIFAR-10", "linear", "200", "100", "10", 150),
    "features_dermamnist": (10_015, "features of DermaMNIST", "linear", "200", "25", "10", 360),
    "features_tinyimagenet": (5_500, "features of Tiny ImageNet", "linear", "200", "20", "10", 360),
    "features_covid": (2_991, "features of chest X-rays", "linear", "200", "20", "10", 360),
}
"""Folder of results -> the fields of `benchmarks.paper.claims.Scale`, of comparisons that count for the claims."""


def claims() -> str:
    """The paper's claims with the evidence of the largest study and its verdict."""
    from benchmarks.paper import claims as judged

    rows = []
    for claim, results in judged.by_claim(results_of_claims()).items():
        largest = judged.largest(results)
        ours = largest.finding.text if largest else "–"
        cells = (claim.statement, judged.papers_numbers(claim), ours, judged.verdict(results))
        rows.append([escape(cell) for cell in cells])
    return table(["claim", "the paper", "largest study here", "verdict"], rows)


def claims_by_data_set() -> str:
    """The paper's claims with the verdict of every data set, and the commands that computed them."""
    from benchmarks.paper import claims as judged

    columns, rows = judged.table(results_of_claims())[2:4]
    shown = [[escape(entry.text) for entry in row[:-1]] for row in rows]
    return f"{table([column.title for column in columns[:-1]], shown)}\n{_source_of_run('claims')}\n"


def claims_in_detail() -> str:
    """What decides each of the paper's claims, and the numbers of every study."""
    from benchmarks.paper import claims as judged

    lines = []
    for statement, (rule, *numbers, command) in judged.details(results_of_claims()):
        lines += ["", f"**{escape(statement)}.** {escape(rule)}", ""]
        lines += [*(f"- {escape(line)}" for line in numbers), f"- Its sweep: `{command}`"]
    return "\n".join(lines[1:]) + "\n"


def results_of_claims() -> list[Any]:
    """What committed runs show of the paper's claims."""
    from benchmarks.paper import claims as judged

    text = (RESULTS / "claims" / "claims.csv").read_text(encoding="utf-8")
    return judged.from_csv(text) + results_of_controls()


def results_of_controls() -> list[Any]:
    """FedVG minus FedAvg at alpha 0.05 in the comparisons of `SCALES`, for the claim about it."""
    from benchmarks import uses
    from benchmarks.paper.claims import Result, Scale
    from benchmarks.paper.measures import Finding

    of_dirichlet = [s for s in studies() if not s.what.startswith("equal sizes")]
    gaps = {s.folder: s.gaps["FedAvg"] for s in of_dirichlet if s.folder in SCALES and s.alpha == "0.05"}
    for folder in (*uses.SETS, *uses.WHOLE):
        if contrast := uses.primary(uses.read(folder)).get(("H1", "0.05")):
            gaps[folder] = contrast[1:]
    results = []
    for folder, (gap, low, high, _) in gaps.items():
        text = f"FedVG minus FedAvg {gap:+.2f} points, 95 % interval {low:+.2f} to {high:+.2f}"
        results.append(Result("gain_over_fedavg", Scale(*SCALES[folder]), Finding(gap > 0, text)))
    return results


COSTS = "amd-epyc-2-cores-costs"


def costs() -> str:
    """How a round's time grows between the last two points of every axis, and on more cores."""
    from benchmarks.costs import AXES, TITLES

    measured = load(COSTS)
    rows = []
    for axis in AXES:
        points, key = measured["axes"][axis]["points"], "parameters" if axis == "width" else axis
        times = [f"{1e3 * point['seconds']['median']:.3g} ms" for point in (points[0], points[-1])]
        exponent = f"{measured['axes'][axis]['growth']:.2f}"
        rows.append([TITLES[axis], f"{points[0][key]:,}", times[0], f"{points[-1][key]:,}", times[1], exponent])
    if "cores" in measured:
        points = measured["cores"]["points"]
        ends = [(f"{p['cores']}", f"{1e3 * p['seconds']['median']:.3g} ms") for p in (points[0], points[-1])]
        rows.append(["cores", *ends[0], *ends[1], ""])
    head = ["", "from", "a round", "to", "a round", "growth"]
    note = "Growth is the exponent between the last two points: 1 is proportional."
    return f"{table(head, rows)}\n\n{note}\n\n{_source(measured['machine'])}\n"


def planning() -> str:
    """CPU time and memory of planning a round, by clients and cohort."""
    measured = load(COSTS).get("planning")
    if measured is None:
        return "Not measured yet: `python -m benchmarks.costs --only planning`.\n"
    rows = [
        [f"{p['clients']:,}", f"{p['cohort']:,}", f"{1e3 * p['seconds']['median']:.3g} ms"]
        + [f"{p[key] / 2**20:,.1f} MiB" for key in ("partition_bytes", "plan_bytes")]
        for p in measured["points"]
    ]
    head = ["clients", "cohort", "CPU time", "partition", "minibatches of a round"]
    return f"{table(head, rows)}\n\nWith 12 rows a client. {_source(measured['machine'])}\n"


def _source(machine: dict[str, Any]) -> str:
    busy = " beside other work" if machine["busy"] else ""
    return f"`{machine['command']}`, measured{busy} on {machine['date'][:10]}."


def experiments() -> str:
    """Experiments per hour of a sweep, by network and by how its points are computed."""
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
    sources = "\n".join(f"- {_source(measured['machine'])}" for measured in files)
    return f"{table(head, rows)}\n\n{note}\n\n{sources}\n"


def client_values(name: str = "client_values") -> str:
    """Rank correlations with the value of a client, and accuracies after one round of other weights."""
    from benchmarks import client_values as values

    measured = load(name)
    head, spans = ["measurement of the client", *values.SPANS], values.SPANS
    correlations = [
        [title, *(values.format_interval(measured["correlations"][name][span]) for span in spans)]
        for name, title in values.MEASUREMENTS.items()
    ]
    rounds = [
        [title, *(values.format_interval(measured["accuracy"][name][span]) for span in spans)]
        for name, title in values.WEIGHTS.items()
    ]
    settings, machine = measured["settings"], measured["machine"]
    source = _source_of_seeds(settings, machine)
    first = f"Rank correlation with the value of a client:\n\n{table(head, correlations)}"
    second = (
        f"Test accuracy after one round minus that of uniform weights, points:\n\n{table(['weights', *spans], rounds)}"
    )
    return f"{first}\n\n{second}\n\n{source}\n"


def lasting_weights() -> str:
    """Final accuracies under the lasting and the changing part of FedVG's weights."""
    from benchmarks import lasting_weights as lasting
    from benchmarks.client_values import format_interval
    from benchmarks.demo import interval

    measured = load("lasting_weights")
    settings, machine = measured["settings"], measured["machine"]
    mean, low, high = measured["explained"]
    finals = {name: np.array([curve[-1] for curve in runs]) for name, runs in measured["runs"].items()}
    gap = format_interval(interval((finals["lasting"] - finals["dealt"]).tolist()))
    rows_of_clients = format_interval(measured["correlations"]["samples"])
    lines = [
        f"- Share of the variance of log weights within rounds that the lasting part explains: {mean:.2f}"
        f" ({low:.2f} to {high:.2f}).",
        f"- Rank correlation of the lasting part with the clients' training rows: {rows_of_clients}.",
        f"- Lasting part minus the lasting part permuted over clients: {gap} points.",
    ]
    source = _source_of_seeds(settings, machine)
    listed = "\n".join(lines)
    return f"{table(list(lasting.HEADER), lasting.rows(measured))}\n\n{listed}\n\n{source}\n"


def _source_of_seeds(settings: dict[str, Any], machine: dict[str, Any]) -> str:
    """Command, settings, commit, machine and date of an experiment over seeds."""
    size = f"{settings['seeds']} seeds, {settings['rounds']} rounds, alpha {settings['alpha']}"
    where = f"{machine['processor']}, {machine['cores']} cores, {machine['date'][:10]}"
    return f"`{machine['command']}`: {size}; at commit {machine['commit'][:7]} on {where}."


def csv_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def demo() -> str:
    """Test accuracy on the digits demonstration, and FedVG's paired differences."""
    from benchmarks import table as tables

    return tables.demo(RESULTS) + "\n"
