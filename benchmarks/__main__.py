"""Runs all CPU benchmarks and updates the tables of the documentation.

    python -m benchmarks [--minutes 20] [...as benchmarks.speed.rounds]

Runs, in this order: `speed.rounds` (federated rounds compared with PyTorch), `speed.limits` (start-up,
sweeps), `speed.costs` (how costs grow) and `table` (writes the tables of docs/performance.md and the README).
Writes benchmarks/results/MACHINE.json, MACHINE-limits.json, MACHINE-costs.json and MACHINE-costs.png, where MACHINE is
the processor's name. A case that is not started within --minutes keeps its earlier result. Run it on an idle machine:
the results record the load of other programs.
"""

from __future__ import annotations

import sys

from benchmarks import machine, table
from benchmarks.speed import costs, limits, rounds


def main(argv: list[str] | None = None) -> int:
    """Runs all benchmarks; exit code 1 if the result of any contestant differed from ours."""
    name = machine.slug(machine.describe())
    options = sys.argv[1:] if argv is None else argv
    code = rounds.main(
        ["--minutes", "20", "--out", str(machine.RESULTS / f"{name}.json"), *options]
    )
    limits.main(["--out", str(machine.RESULTS / f"{name}-limits.json")])
    files = [str(machine.RESULTS / f"{name}-costs{suffix}") for suffix in (".json", ".png")]
    costs.main(["--out", files[0], "--picture", files[1]])
    table.main([])
    return code


if __name__ == "__main__":
    sys.exit(main())
