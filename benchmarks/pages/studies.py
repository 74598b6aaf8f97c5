"""Tables of FedVG beside its controls, from the folders of results."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from benchmarks.machine import RESULTS
from benchmarks.pages.files import parts_of_folder, source_of_folder
from benchmarks.pages.markdown import interval, table
from benchmarks.studies.paper.values import mean_and_std
from benchmarks.studies.uses import Contrast, contrast_of
from fedvg_jax.config import method_title
from fedvg_jax.config.methods import method_of
from fedvg_jax.study import statistics

LARGEST_CLASS = "always the largest class"


class Row(NamedTuple):
    """Accuracies of one method in one setting, and its differences to the baseline."""

    setting: str
    method: str
    mean: float
    std: float = math.nan
    """nan for `LARGEST_CLASS`"""
    n: int = 0
    difference: Contrast | None = None
    """With p after Holm's correction; None for the baseline."""


def controls(name: str, baseline: str = "fedvg", choice: str = "final", setting: str = "") -> str:
    """Returns the accuracy under several weightings, and differences: FedVG minus each, or each minus another baseline.

    Args:
        name: folder of results.
        baseline: a method, such as `fedavg`; where the folder holds tables of a report, the baseline of that report.
        choice: evaluation that stands for a run, where the folder has a line for every run.
        setting: the only one to show.

    Returns:
        A table and its source.
    """
    listed = [
        row for row in rows_of_results(name, baseline, choice) if setting in ("", row.setting)
    ]
    has_settings = not setting and any(row.setting for row in listed)
    rows = []
    for row in listed:
        spread = "" if math.isnan(row.std) else f" ± {row.std:.2f}"
        effect = ["", ""]
        if difference := row.difference:
            shown = of_fedvg(difference) if baseline == "fedvg" else difference
            effect = [interval(shown.interval), p_text(shown.p)]
        accuracy = f"{row.mean:.2f}{spread}"
        shown = [row.setting, method_title(row.method), accuracy, row.n or "", *effect]
        rows.append(shown[not has_settings :])
    subject = f"these minus {method_title(baseline)}"
    if baseline == "fedvg":
        subject = "FedVG minus these"
    minus = f"{subject}, points (95 % interval)"
    columns = ["setting", "weights", "test accuracy, %", "runs", minus, "p, Holm"]
    chosen = "" if choice == "final" else f" --choice {choice}"
    source = source_of_folder(name).replace("--baseline fedvg`", f"--baseline {baseline}{chosen}`")
    return f"{table(columns[not has_settings :], rows)}\n\n{source}\n"


def of_fedvg(difference: Contrast) -> Contrast:
    """Returns the difference of FedVG to a method from that of the method to FedVG."""
    n, gap, low, high, p = difference
    return Contrast(n, -gap, -high, -low, p)


def p_text(p: float) -> str:
    """Returns a p value as text; a dash where one pair or equal differences have none."""
    if math.isnan(p):
        return "–"
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


class Study(NamedTuple):
    """A comparison of FedVG with its controls, in the final round."""

    what: str
    folder: str
    seeds: int
    alpha: str
    gaps: dict[str, Contrast]
    """control that was run -> FedVG minus it"""


CONTROLS = {"FedAvg": "fedavg", "uniform": "uniform", "placebo": "permuted(fedvg)"}
"""Control -> method. The placebo gives FedVG's weights to other clients of the cohort."""

LISTED = tomllib.loads(Path(__file__).with_name("studies.toml").read_text(encoding="utf-8"))
"""`study`: the comparisons; `scales`: of those that count for the paper's claims."""


def studies() -> list[Study]:
    """Returns FedVG minus its controls in every study."""
    listed = []
    for comparison in LISTED["study"]:
        folder = comparison["folder"]
        rows = rows_of_results(folder)
        for setting, alpha in comparison["settings"].items():
            of_setting = {row.method: row for row in rows if row.setting == setting}
            gaps = {
                name: of_fedvg(row.difference)
                for name, method in CONTROLS.items()
                if (row := of_setting.get(method)) and row.difference
            }
            seeds = of_setting["fedvg"].n
            listed.append(Study(comparison["what"], folder, seeds, alpha, gaps))
    return listed


def overview() -> str:
    """Returns FedVG minus FedAvg, uniform weights and the placebo in every study, in the final round."""
    rows = []
    for study in studies():
        gaps = (study.gaps.get(name) for name in CONTROLS)
        shown = (interval(gap.interval) if gap else "–" for gap in gaps)
        rows.append([study.what, study.alpha, study.seeds, *shown])
    minus = (f"FedVG minus {name}" for name in CONTROLS)
    return table(["data and network", "alpha", "seeds", *minus], rows)


def rows_of_results(name: str, baseline: str = "fedvg", choice: str = "final") -> list[Row]:
    """Returns the rows of a folder of results, see `controls`.

    Raises:
        ValueError: the tables of a report, which have another baseline.
    """
    folder = RESULTS / name
    if has_runs(folder):
        return rows_of_runs(folder / "runs.csv", choice, baseline)
    rows = rows_of_report(folder)
    if any(row.method == baseline and row.difference for row in rows):
        raise ValueError(f"{name}: its tables compare {baseline} with another baseline")
    return rows


def name_of_today(method: str) -> str:
    """Returns the name of a method today; a committed file may have "ALGORITHM, WEIGHTING".

    >>> name_of_today("fedavg, samples, tuning.steps 5"), name_of_today("fedavg, permuted(fedvg)")
    ('fedavg, tuning.steps 5', 'permuted(fedvg)')
    >>> name_of_today("uniform"), name_of_today("fedvg, norm l2")
    ('uniform', 'fedvg, norm l2')
    """
    algorithm, *rest = method.split(", ")
    if not rest or " " in rest[0]:
        return method
    return ", ".join([method_of(algorithm, rest[0]), *rest[1:]])


def has_runs(folder: Path) -> bool:
    """Returns whether a folder of results has a line for every run instead of the tables of a report."""
    return (folder / "runs.csv").exists()


def rows_of_report(folder: Path) -> list[Row]:
    """Returns the rows from the tables of a report, accuracy.csv and effects.csv."""
    accuracy, effects = (pd.read_csv(folder / f"{part}.csv") for part in ("accuracy", "effects"))
    settings = [column.removesuffix(" mean") for column in accuracy if column.endswith(" mean")]
    has_settings = "setting" in effects
    if not has_settings:
        effects["setting"] = settings[0]
    places = zip(effects.setting, effects.method.map(name_of_today), strict=True)
    columns = effects[["n", "difference", "t_low", "t_high", "t_p_holm"]]
    contrasts = map(Contrast._make, columns.itertuples(index=False))
    differences = dict(zip(places, contrasts, strict=True))
    rows = []
    for setting in settings:
        parts = [f"{setting} {part}" for part in ("mean", "std", "n")]
        means = accuracy[["method", *parts]].dropna(subset=parts[0]).fillna({parts[2]: 0})
        for method, mean, std, n in means.itertuples(index=False):
            today, label = name_of_today(method), setting if has_settings else ""
            rows.append(Row(label, today, mean, std, int(n), differences.get((setting, today))))
    return rows


def rows_of_runs(path: Path, choice: str, baseline: str = "fedvg") -> list[Row]:
    """Returns the rows from a runs.csv, by the statistics of a report; `baseline` is a method."""
    runs = pd.read_csv(path, dtype={"alpha": str})
    settings = [*runs][: [*runs].index("method")]
    titles = []
    for values in runs[settings].to_numpy().tolist():
        pairs = zip(settings, values, strict=True)
        titles.append(", ".join(f"{name} {value}" for name, value in pairs))
    runs["setting"] = titles
    runs["method"] = runs.method.map(name_of_today)
    by_place = runs.set_index(["seed", "partition_seed"]).groupby(["setting", "method"], sort=False)
    values = {place: of_place[choice].to_dict() for place, of_place in by_place}
    compared = {
        (setting, method): statistics.compare(by_seed, values[setting, baseline])
        for (setting, method), by_seed in values.items()
        if method != baseline
    }
    corrected = statistics.holm([comparison.t_p for comparison in compared.values()])
    contrasts = map(contrast_of, compared.values(), corrected)
    differences = dict(zip(compared, contrasts, strict=True))
    rows = []
    for place, by_seed in values.items():
        moments = mean_and_std(list(by_seed.values()))
        rows.append(Row(*place, *moments, len(by_seed), differences.get(place)))
    majority = runs.groupby("setting").majority.mean().dropna()
    rows += [Row(str(setting), LARGEST_CLASS, share) for setting, share in majority.items()]
    order = list(runs.setting.unique())
    return sorted(rows, key=lambda row: order.index(row.setting))


def index_of_studies() -> str:
    """Returns every folder of results with its title, its number of runs and its commands."""
    lines = []
    for page in (run.with_name("README.md") for run in sorted(RESULTS.glob("*/run.json"))):
        title, name = (
            page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# "),
            page.parent.name,
        )
        parts = parts_of_folder(name)
        commands = "; ".join(dict.fromkeys(f"`{part['command']}`" for part in parts))
        lines.append(
            f"- [{title}]({name}/README.md), {sum(part['runs'] for part in parts):,} runs: {commands}"
        )
    return "\n".join(lines) + "\n"
