"""Tables of the paper's claims, by every study that measures them."""

from __future__ import annotations

from typing import Any

from benchmarks.machine import RESULTS
from benchmarks.pages.files import source_of_folder
from benchmarks.pages.markdown import escape, table
from benchmarks.pages.studies import LISTED, studies
from benchmarks.studies import uses
from benchmarks.studies.paper import claims as claims_of_paper
from benchmarks.studies.paper.claims import Result, Scale
from benchmarks.studies.paper.measures import Finding

SCALES: dict[str, dict[str, Any]] = LISTED["scales"]
"""Folder of results -> the fields of `Scale`, of comparisons that count for the claims."""


def claims() -> str:
    """Returns the paper's claims with the evidence of the largest study and its verdict."""
    rows = []
    for claim, results in claims_of_paper.by_claim(results_of_claims()).items():
        largest = claims_of_paper.largest(results)
        ours = largest.finding.text if largest else "–"
        cells = (
            claim.statement,
            claims_of_paper.papers_numbers(claim),
            ours,
            claims_of_paper.verdict(results),
        )
        rows.append([escape(cell) for cell in cells])
    return table(["claim", "the paper", "largest study here", "verdict"], rows)


def claims_by_data_set() -> str:
    """Returns the paper's claims with the verdict of every data set, and the commands that computed them."""
    shown = claims_of_paper.table(results_of_claims()).drop(columns="verdict").map(escape)
    return f"{table([*shown], shown.to_numpy().tolist())}\n{source_of_folder('claims')}\n"


def claims_in_detail() -> str:
    """Returns what decides each of the paper's claims, and the numbers of every study."""
    lines = []
    for statement, (rule, *numbers, command) in claims_of_paper.details(results_of_claims()):
        lines += ["", f"**{escape(statement)}.** {escape(rule)}", ""]
        lines += [*(f"- {escape(line)}" for line in numbers), f"- Its sweep: `{command}`"]
    return "\n".join(lines[1:]) + "\n"


def results_of_claims() -> list[Any]:
    """Returns what committed runs show of the paper's claims."""
    text = (RESULTS / "claims" / "claims.csv").read_text(encoding="utf-8")
    return claims_of_paper.from_csv(text) + results_of_controls()


def results_of_controls() -> list[Any]:
    """Returns FedVG minus FedAvg at alpha 0.05 in the comparisons of `SCALES`, for the claim about it."""
    gaps = {}
    for study in studies():
        is_of_dirichlet = not study.what.startswith("equal sizes")
        if is_of_dirichlet and study.alpha == "0.05" and study.folder in SCALES:
            gaps[study.folder] = study.gaps["FedAvg"]
    for folder in (*uses.SETS, *uses.WHOLE):
        if contrast := uses.primary(uses.read(folder)).get(("H1", "0.05")):
            gaps[folder] = contrast
    results = []
    for folder, contrast in gaps.items():
        gap, low, high = contrast.interval
        text = f"FedVG minus FedAvg {gap:+.2f} points, 95 % interval {low:+.2f} to {high:+.2f}"
        scale = Scale(**SCALES[folder])
        results.append(Result("gain_over_fedavg", scale, Finding(gap > 0, text)))
    return results
