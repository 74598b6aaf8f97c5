"""Draws FedVG minus its controls in every committed study, with intervals.

    python -m benchmarks.forest [--out docs/pictures/forest.png]

The rows are those of benchmarks/results/README.md: points of test accuracy in the final round,
means over paired seeds, and 95 % intervals.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
COLOURS = {"FedAvg": "#0072b2", "uniform": "#d55e00", "placebo": "#009e73"}
SHOWN = 12.0
"""Points on both sides of 0 that are drawn; longer intervals end in an arrow."""


def draw(path: Path) -> None:
    """Writes the picture."""
    import matplotlib.pyplot as plt

    sys.path.append(str(ROOT / "docs" / "_ext"))
    import result_tables

    studies = result_tables.studies()
    figure, panels = plt.subplots(1, len(COLOURS), sharey=True, figsize=(9, 5.6), layout="constrained")
    for panel, (name, colour) in zip(panels, COLOURS.items(), strict=True):
        for height, study in enumerate(reversed(studies)):
            if name not in study.gaps:
                continue
            gap, low, high, _ = study.gaps[name]
            panel.plot([max(low, -SHOWN), min(high, SHOWN)], [height, height], color=colour, lw=1.5)
            panel.plot([gap], [height], "o", color=colour, ms=5)
            for end, marker in ((low, "<"), (high, ">")):
                if abs(end) > SHOWN:
                    panel.plot([SHOWN if end > 0 else -SHOWN], [height], marker, color=colour, ms=4, clip_on=False)
        panel.axvline(0, color="0.6", lw=0.8, zorder=0)
        panel.set(xlim=(-SHOWN, SHOWN), title=f"FedVG minus {name}")
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(studies)), [f"{s.what}, {_setting(s.alpha)}" for s in reversed(studies)], fontsize=8)
    figure.supxlabel("points of test accuracy in the final round; right of 0 FedVG is ahead", fontsize=9)
    figure.savefig(path, dpi=130)


def _setting(alpha: str) -> str:
    return f"alpha {alpha}" if alpha[0].isdigit() else alpha


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures" / "forest.png", metavar="FILE.png")
    draw(parser.parse_args().out)


if __name__ == "__main__":
    main()
