"""The paper's claims beside what runs show: a finding for every claim and study, and a verdict.

The verdict is that of the largest study that measures a claim: "holds on DATA", "does not hold on DATA", or "not
reached" where no study has what the claim is about.
"""

from __future__ import annotations

import io
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from benchmarks.studies.paper import measures
from benchmarks.studies.paper.measures import Finding, Values
from fedvg_jax.study.groups import Study
from fedvg_jax.study.run import Run

COMMAND = "python -m fedvg_jax.sweep --config configs/sweeps/paper/{}.toml"
NOT_REACHED = "not reached"
VERDICTS = {True: "holds", False: "does not hold"}
DATA_SETS = {"cifar10": "CIFAR-10", "organamnist": "OrganAMNIST", "tinyimagenet": "Tiny ImageNet"}
"""Data set -> its name in tables, where that differs."""


class Claim(NamedTuple):
    """One claim of the paper."""

    id: str
    statement: str
    measure: str
    """Name of a function of `measures`."""
    sweep: str
    """File of configs/sweeps/paper, without its suffix."""
    paper: str = ""
    """The paper's numbers; empty where the measure computes them from its tables."""
    options: str = ""
    """Further flags of the sweep."""


class Scale(NamedTuple):
    """What a study was run on, and how much of it."""

    images: int
    """Rows of the data set for training, validation and test."""
    dataset: str
    model: str
    rounds: str
    clients: str
    seeds: str
    runs: int

    @property
    def data(self) -> str:
        """Data set and number of its images."""
        return f"{DATA_SETS.get(self.dataset, self.dataset)}, {self.images:,} images"

    def __str__(self) -> str:
        return f"{self.data}, {self.model}, {self.clients} clients, {self.rounds} rounds, {self.seeds} seeds"


class Result(NamedTuple):
    """What one study shows of a claim."""

    claim: str
    """`Claim.id`."""
    scale: Scale
    finding: Finding


def claims() -> list[Claim]:
    """Returns the paper's claims."""
    text = Path(__file__).with_name("claims.toml").read_text(encoding="utf-8")
    return [Claim(**row) for row in tomllib.loads(text)["claim"]]


def results_of_study(study: Study) -> list[Result]:
    """Returns what a study shows of the claims that it measures."""
    scale = scale_of(study)
    of_runs = _results(scale, measures.OF_STUDY, study)
    return results_of_values(scale, measures.our_values(study)) + of_runs


def results_of_values(scale: Scale, values: Values) -> list[Result]:
    """Returns what mean accuracies show of the claims that they decide."""
    return _results(scale, measures.OF_VALUES, values)


def _results(scale: Scale, functions: Mapping[str, Callable], measured: Any) -> list[Result]:
    """Returns what these functions find for the claims that name them as measures."""
    results = []
    for claim in claims():
        measure = functions.get(claim.measure)
        if measure and (finding := measure(measured)):
            results.append(Result(claim.id, scale, finding))
    return results


def scale_of(study: Study) -> Scale:
    """Returns the scale of a study."""
    configs = [run.config for run in study.runs]
    images = max(map(_count_images, study.runs))
    dataset = " and ".join(sorted({config.dataset for config in configs}))
    model = " and ".join(sorted({config.model for config in configs}))
    rounds = _range({config.rounds for config in configs})
    clients = _range({config.clients for config in configs})
    seeds = _range({len(group.runs) for group in study.groups.values() if group.runs})
    return Scale(images, dataset, model, rounds, clients, seeds, len(configs))


def _count_images(run: Run) -> int:
    parts = ("samples", "val_samples", "test_samples")
    return sum(sum(run.partition.get(part) or ()) for part in parts)


def _range(values: set[int]) -> str:
    return str(min(values)) if len(values) == 1 else f"{min(values)} to {max(values)}"


def largest(results: Iterable[Result]) -> Result | None:
    """Returns the result of the study with the most images, and of equal ones with the most runs."""
    return max(results, key=_size, default=None)


def _size(result: Result) -> tuple[int, int]:
    return result.scale.images, result.scale.runs


def verdict(results: Sequence[Result]) -> str:
    """Returns the verdict on the claim that all results are of."""
    result = largest(results)
    return f"{VERDICTS[result.finding.holds]} on {result.scale.data}" if result else NOT_REACHED


def by_claim(results: Sequence[Result]) -> dict[Claim, list[Result]]:
    """Returns the results of every claim, one for each data set: that of its largest study, the smallest set first."""
    grouped = {}
    for claim in claims():
        by_set: dict[str, list[Result]] = {}
        for result in _from_smallest_set(results):
            if result.claim == claim.id:
                by_set.setdefault(result.scale.data, []).append(result)
        grouped[claim] = [max(of_set, key=_size) for of_set in by_set.values()]
    return grouped


def _from_smallest_set(results: Sequence[Result]) -> list[Result]:
    return sorted(results, key=lambda result: (result.scale.images, result.scale.data))


def table(results: Sequence[Result]) -> pd.DataFrame:
    """Returns a row for every claim with a column for every data set, the smallest first."""
    sets = dict.fromkeys(result.scale.data for result in _from_smallest_set(results))
    rows = []
    for claim, mine in by_claim(results).items():
        verdicts = dict.fromkeys(sets, "–")
        verdicts |= {result.scale.data: VERDICTS[result.finding.holds] for result in mine}
        rows.append({"claim": claim.statement, **verdicts, "verdict": verdict(mine)})
    return pd.DataFrame(rows)


def details(results: Sequence[Result]) -> list[tuple[str, list[str]]]:
    """Returns the statement of every claim with lines: what decides it, the paper's numbers, ours, and the sweep."""
    listed = []
    for claim, mine in by_claim(results).items():
        ours = [f"{result.scale}: {result.finding.text}" for result in mine]
        lines = [rule(claim), f"The paper: {papers_numbers(claim)}", *ours, command(claim)]
        listed.append((claim.statement, lines))
    return listed


def rule(claim: Claim) -> str:
    """Returns what decides a claim: the first sentence of its measure's docstring."""
    functions: dict[str, Callable] = {**measures.OF_VALUES, **measures.OF_STUDY}
    return (functions[claim.measure].__doc__ or "").strip().splitlines()[0]


def papers_numbers(claim: Claim) -> str:
    """Returns the paper's numbers on a claim, stated or computed from its tables."""
    printed = measures.printed(claim.measure) if not claim.paper else None
    return printed.text if printed else claim.paper


def command(claim: Claim) -> str:
    """Returns the command that makes the runs for a claim."""
    return f"{COMMAND.format(claim.sweep)} {claim.options}".strip()


# --- files


def as_csv(results: Sequence[Result]) -> str:
    """Returns a line for every result."""
    lines = [
        {"claim": result.claim}
        | result.scale._asdict()
        | {"verdict": VERDICTS[result.finding.holds], "text": result.finding.text}
        for result in results
    ]
    columns = ["claim", *Scale._fields, "verdict", "text"]
    return pd.DataFrame(lines, columns=columns).to_csv(index=False, lineterminator="\n")


def from_csv(text: str) -> list[Result]:
    """Returns the results in the text of `as_csv`."""
    results = []
    for line in pd.read_csv(io.StringIO(text), dtype=str).to_dict("records"):
        fields = {name: line[name] for name in Scale._fields}
        fields |= {name: int(line[name]) for name in ("images", "runs")}
        finding = Finding(line["verdict"] == VERDICTS[True], line["text"])
        results.append(Result(line["claim"], Scale(**fields), finding))
    return results
