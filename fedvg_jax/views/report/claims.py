"""The paper's claims with the verdict of given runs: statement, the paper's numbers, ours, and whether runs show it.

A verdict is computed: "seen", "not seen", or "not reached" where no run has what the claim is about.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple

from fedvg_jax.core import files
from fedvg_jax.core.types import one_line
from fedvg_jax.views.report import claim_measures
from fedvg_jax.views.report.claim_measures import Finding
from fedvg_jax.views.report.collect import collect
from fedvg_jax.views.report.markup import Column, Entry, Table, comma_separated, markdown
from fedvg_jax.views.report.study import Study, value_text

Verdict = Literal["seen", "not seen", "not reached"]
COMMAND = "python -m fedvg_jax.sweep --config configs/sweeps/paper/{}.toml"


class Claim(NamedTuple):
    """One claim of the paper."""

    id: str
    statement: str
    measure: str
    """Name of a function of `claim_measures`."""
    sweep: str
    """File of configs/sweeps/paper, without its suffix; empty where no run decides."""
    paper: str = ""
    """The paper's numbers; empty where the measure computes them from its tables."""
    options: str = ""
    """Further flags of the sweep."""


class Judged(NamedTuple):
    """A claim beside what runs say."""

    claim: Claim
    paper: str
    ours: str
    verdict: Verdict


def claims() -> list[Claim]:
    """Returns the paper's claims."""
    text = resources.files("fedvg_jax.paper").joinpath("claims.toml").read_text(encoding="utf-8")
    return [Claim(**row) for row in tomllib.loads(text)["claim"]]


def judge(studies: Sequence[Study]) -> list[Judged]:
    """Returns every claim with its verdict.

    A claim is seen if it holds in every study that has what it is about.

    Args:
        studies: of run folders; each is looked at for itself.
    """
    judged = []
    for claim in claims():
        of_values: Callable | None = claim_measures.OF_VALUES.get(claim.measure)
        of_study: Callable | None = claim_measures.OF_STUDY.get(claim.measure)
        findings: list[tuple[Study, Finding]] = []
        for study in studies:
            finding = (
                of_values(claim_measures.our_values(study)) if of_values else of_study(study) if of_study else None
            )
            if finding is not None:
                findings.append((study, finding))
        printed = claim_measures.printed(claim.measure) if of_values and not claim.paper else None
        verdict: Verdict = "not reached"
        if findings:
            verdict = "seen" if all(finding.holds for _, finding in findings) else "not seen"
        texts: dict[str, list[str]] = {}
        for study, finding in findings:
            texts.setdefault(scale(study), []).append(finding.text)
        ours = "; ".join(f"{name}: {'; '.join(several)}" for name, several in texts.items())
        left_out = [line for study in studies for line in claim_measures.ambiguities(study)] if of_values else []
        if left_out:
            more = f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
            ours = "; ".join(filter(None, (ours, f"left out: {left_out[0]}{more}")))
        judged.append(Judged(claim, claim.paper or (printed.text if printed else ""), ours or "–", verdict))
    return judged


def scale(study: Study) -> str:
    """Returns the data sets, models, rounds, clients and number of runs of a study."""
    configs = [run.config for run in study.runs]
    parts = [sorted({value_text(getattr(config, name)) for config in configs}) for name in ("dataset", "model")]
    rounds, clients = ({getattr(config, name) for config in configs} for name in ("rounds", "clients"))
    counts = [len(cell.runs) for cell in study.cells.values() if cell.runs]
    return (
        f"{', '.join(map(' and '.join, parts))}, {_range(rounds)} rounds, {_range(clients)} clients,"
        f" n = {_range(set(counts))}"
    )


def _range(values: set[int]) -> str:
    return str(min(values)) if len(values) == 1 else f"{min(values)} to {max(values)}"


def table(judged: Sequence[Judged]) -> Table:
    """Returns the claims as a table."""
    columns = ("claim", "the paper's numbers", "ours", "verdict", "command")
    rows = tuple(
        tuple(Entry(text) for text in (j.claim.statement, j.paper, j.ours, j.verdict, command(j.claim))) for j in judged
    )
    notes = (
        "Verdicts are computed from the final round of the runs. A claim is seen if it holds in every study that has"
        " what it is about. The paper's values are maxima over evaluations on the test set.",
    )
    return Table("paper", "The paper's claims", tuple(Column(c, (c,)) for c in columns), rows, notes)


def command(claim: Claim) -> str:
    """Returns the command whose runs decide a claim; a dash where there is none."""
    return f"{COMMAND.format(claim.sweep)} {claim.options}".strip() if claim.sweep else "–"


def write_claims(dirs: Sequence[Path | str], path: Path | str) -> list[Judged]:
    """Writes a row per claim; returns the verdicts.

    Args:
        dirs: sweep folders, run folders, or folders of these; each is a study of its own, which may be incomplete.
        path: of the file: CSV where it ends in .csv, else Markdown.

    Raises:
        UsageError: a folder holds no finished run, or the file cannot be written.
    """
    judged, path = judge([collect([folder], partial=True) for folder in dirs]), Path(path)
    if path.suffix == ".csv":
        text = comma_separated(table(judged))
    else:
        sources = ", ".join(f"`{one_line(str(folder)).replace('`', '')}`" for folder in dirs)
        text = f"# The paper's claims\n\nFrom the runs in {sources}.\n\n{markdown(table(judged))}\n{rules()}"
    with files.writing(path, "--claims"):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(path, text)
    return judged


def rules() -> str:
    """Returns a section, in Markdown, on what decides each claim: the first sentence of its measure's docstring."""
    measures = {**claim_measures.OF_VALUES, **claim_measures.OF_STUDY}
    lines = [f"- {c.statement}: {_first_line(measures[c.measure].__doc__)}" for c in claims()]
    return "\n".join(["## What decides a claim", "", *lines, ""])


def _first_line(text: str | None) -> str:
    line = (text or "").strip().splitlines()[0]
    return line[0].lower() + line[1:]
