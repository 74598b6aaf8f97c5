"""The files of the paper's figures and tables: every point can be built."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvg_jax import sweep as sweep_command

PAPER = Path(__file__).parents[2] / "configs" / "sweeps" / "paper"

RUNS = {
    "bars": 7 * 7,
    "class_imbalance": 6 * 2,
    "curves_resnet": 7 * 5 * 5,
    "curves_vit": 7 * 5 * 2,
    "external_validation": 3 * 2,
    "granularity": 3 * 5 * 7,
    "heat_map": 2,
    "integration": 13 * 5 * 3,
    "norms": 4,
}
"""File -> points of one seed."""


def points_of(name):
    """The points of a file with one seed."""
    return sweep_command.read_command_line(
        ["--config", str(PAPER / f"{name}.toml"), "--out", "out", "--seed", "0"]
    ).plan


@pytest.mark.parametrize("name", RUNS)
def test_every_point_of_the_papers_figures_can_be_built(name):
    plan = points_of(name)
    assert len(plan.points) == RUNS[name]
    assert {(p.config.rounds, p.config.eval_every, p.config.local_epochs) for p in plan.points} == {
        (200, 20, 5)
    }
    assert {p.config.partition_seed for p in plan.points} == {
        42
    }  # the published one, not the seed's


def test_folders_of_data_are_not_in_the_names_of_points():
    point = points_of("curves_vit").points[-1]
    assert point.name == "dataset=dermamnist,model=vit_b16,method=fedvg,alpha=0.05"
    assert point.config.data_dir == Path("data/dermamnist") and "data_dir" not in point.values
