"""The files of the paper's figures and tables: every point can be built, at full and at tiny size."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvg_jax.study import sweep_arguments

PAPER = Path(__file__).parents[2] / "configs" / "sweeps" / "paper"

RUNS = {
    "bars": (7 * 7, 7),
    "class_imbalance": (6 * 2, 6 * 2),
    "curves_resnet": (7 * 5 * 5, 7 * 2),
    "curves_vit": (7 * 5 * 2, 7 * 2),
    "external_validation": (3 * 2, 3 * 2),
    "granularity": (3 * 5 * 7, 3 * 2),
    "heat_map": (2, 2),
    "integration": (13 * 5 * 3, 13),
    "norms": (4, 4),
}
"""File -> points of one seed at full size and at the tiny size."""


def points_of(name, scale, *words):
    """The points of a file, with the seeds of the file unless others are given."""
    words = ["--config", str(PAPER / f"{name}.toml"), "--scale", scale, "--out", "out", *words]
    return sweep_arguments.read_command_line(words).points


@pytest.mark.parametrize("name", RUNS)
def test_every_point_of_the_papers_figures_can_be_built_at_both_sizes(name):
    full, tiny = (points_of(name, scale, "--seed", "0") for scale in ("full", "tiny"))
    assert (len(full.points), len(tiny.points)) == RUNS[name] and not full.merged and not tiny.merged
    assert {(p.config.rounds, p.config.eval_every, p.config.local_epochs) for p in full.points} == {(200, 20, 5)}
    assert {p.config.partition_seed for p in (*full.points, *tiny.points)} == {42}  # the published one, not the seed's
    assert {p.config.dataset for p in tiny.points} == {"digits"} and max(p.config.rounds for p in tiny.points) <= 20


def test_folders_of_data_are_not_in_the_names_of_points():
    point = points_of("curves_vit", "full", "--seed", "0").points[-1]
    assert point.name == "dataset=dermamnist,model=vit_b16,method=fedvg,alpha=0.05"
    assert point.config.data_dir == Path("data/dermamnist") and "data_dir" not in point.values
