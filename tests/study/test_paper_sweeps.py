"""The files of the paper's figures and tables: every trial can be built."""

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
"""File -> trials of one seed."""


def trials_of(name):
    """The trials of a file with one seed."""
    return sweep_command.read_command_line(
        ["--config", str(PAPER / f"{name}.toml"), "--out", "out", "--seed", "0"]
    ).plan


@pytest.mark.parametrize("name", RUNS)
def test_every_trial_of_the_papers_figures_can_be_built(name):
    plan = trials_of(name)
    assert len(plan.trials) == RUNS[name]
    assert {(p.config.rounds, p.config.eval_every, p.config.local_epochs) for p in plan.trials} == {
        (200, 20, 5)
    }
    # the published one, not the seed's
    assert {p.config.partition_seed for p in plan.trials} == {42}


def test_folders_of_data_are_not_in_the_names_of_trials():
    trial = trials_of("curves_vit").trials[-1]
    assert trial.name == "dataset=dermamnist,model=vit_b16,method=fedvg,alpha=0.05"
    assert trial.config.data_dir == Path("data/dermamnist") and "data_dir" not in trial.values
