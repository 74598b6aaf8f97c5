"""Everything this machine's CPU can be asked, into one results file; then the tables of the pages (`benchmarks.table`).

    python -m benchmarks [--minutes 20] [...as benchmarks.rounds]

Rounds beside PyTorch first, then what is no race, and how costs grow. A case that no longer fits keeps the numbers it
had in the file. Run it on a quiet machine: the file says how busy it was.
"""

from __future__ import annotations

import sys

from benchmarks import costs, limits, machine, rounds, table


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 if any contestant disagreed."""
    name = machine.slug(machine.describe())
    given = sys.argv[1:] if argv is None else argv
    code = rounds.main(["--minutes", "20", "--out", str(table.RESULTS / f"{name}.json"), *given])
    limits.main(["--out", str(table.RESULTS / f"{name}-limits.json")])
    files = [str(table.RESULTS / f"{name}-costs{suffix}") for suffix in (".json", ".png")]
    costs.main(["--out", files[0], "--picture", files[1]])
    table.main([])
    return code


if __name__ == "__main__":
    sys.exit(main())
