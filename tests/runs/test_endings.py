"""Runs that end at a target, without improvement, or because clients diverged or the loss exploded."""

import dataclasses

import jax
import numpy as np
import pytest
from support.small_sweeps import BASE, timeless

import fedvg_jax
import fedvg_jax as fv
from fedvg_jax.runs import endings
from fedvg_jax.runs.record import digests, folder as run_folder
from fedvg_jax.runs.record.history import History

CONFIG = fv.Config(rounds=12, clients=4, eval_every=1, local_epochs=1, alpha=1.0, weighting="samples", model="linear")


@pytest.fixture(scope="module")
def whole():
    return fv.run(CONFIG)


def target_of(whole, round):
    """A target that the validation accuracy first reaches in that round, or before."""
    return whole.records[round - 1]["val_accuracy"]


def test_a_run_ends_at_the_first_evaluation_that_reaches_the_target(whole):
    target = target_of(whole, 5)
    found = fv.run(dataclasses.replace(CONFIG, stop_at=f"val_accuracy {target}"))
    first = next(r["round"] for r in whole.records if r["val_accuracy"] >= target)
    assert timeless(found.records) == timeless(whole.records[:first])
    assert found.summary["stopped_by"] is None
    assert not found.summary["interrupted"]
    assert found.summary["stopped_early"].endswith(f"in round {first}")


@pytest.mark.parametrize(
    ("losses", "patience", "rounds"),
    [
        ([3, 2, 2, 2], 2, 4),
        ([3, 2, 2.5, 1, 1, 1], 2, 6),
        ([3, None, None], 2, 3),
        ([None, 2, 1], 1, None),
        ([1], 1, None),
    ],
)
def test_patience_counts_evaluations_without_a_better_value(losses, patience, rounds):
    records = [{"round": i, "val_loss": loss, "test_loss": 0.0} for i, loss in enumerate(losses, 1)]
    config = fv.Config(patience=patience)
    ended = [i for i in range(len(records) + 1) if endings.stop_reason(config, records[:i])]
    assert ended[:1] == ([] if rounds is None else [rounds])


def test_a_run_that_ended_early_is_finished_and_goes_on_without_its_target(whole, tmp_path):
    config = dataclasses.replace(CONFIG, stop_at=f"val_accuracy {target_of(whole, 4)}", out=tmp_path / "run")
    first = fv.run(config)
    assert digests.check(config.out) == []
    written = (config.out / "summary.json").read_bytes()
    again = fv.run(dataclasses.replace(config, resume=str(config.out)))
    assert timeless(again.records) == timeless(first.records)
    assert (config.out / "summary.json").read_bytes() == written
    jax.tree.map(np.testing.assert_array_equal, again.variables, first.variables)
    assert run_folder.is_finished(config.out, config) and len(first.records) < CONFIG.rounds
    longer = fv.run(dataclasses.replace(config, stop_at="", resume=str(config.out)))
    assert timeless(longer.records) == timeless(whole.records)
    assert longer.summary["stopped_early"] is None


def test_a_target_ends_a_run_on_the_side_that_is_better_or_written():
    records = [{"round": i, "val_mae": v, "val_x": v, "test_loss": 0} for i, v in enumerate([3, 0.05], 1)]
    ends = {"val_mae 0.1": 2, "val_mae < 0.1": 2, "val_mae>0.1": 1, "val_x 0.1": 1, "val_x <= 0.1": 2, "val_x<0.01": 0}
    for target, round in ends.items():
        reason = endings.stop_reason(fv.Config(stop_at=target), records)
        assert reason.endswith(f"in round {round}") if round else not reason


# --- divergence


def losses(*values, **last):
    """Records of consecutive rounds with these training losses, the last one with further entries."""
    records = [{"round": i, "train_loss": value} for i, value in enumerate(values, 1)]
    return [*records[:-1], records[-1] | last]


@pytest.mark.parametrize(
    ("records", "is_own_task", "message"),
    [
        (losses(2.0, 1001.0), False, "round 2: the training loss 1e+03 is over 1000; use a smaller --lr"),
        (losses(2.0, 999.0), False, ""),
        (losses(4e9, 8.0), False, "round 1: the training loss 4e+09"),
        (losses(2.0, 2001.0), True, "round 2: the training loss 2e+03 is over 2000; use a smaller --lr"),
        (losses(2.0, 1999.0), True, ""),
        (losses(0.001, 999.0), True, ""),  # a warm start
        (losses(None, 1e6, 1e8), True, ""),  # a task whose loss has large units, whose first round averaged no client
        (losses(2.0, 2.0, val_loss=None, test_loss=None), False, "round 2: the loss of the global model is not finite"),
        (losses(2.0, 2.0, val_loss=1.0, test_loss=None), False, ""),  # of the test rows alone
    ],
)
def test_a_loss_that_explodes_is_named_with_its_round(records, is_own_task, message):
    limit = endings.loss_limit(records, is_own_task)
    found = endings.divergence(records, limit=limit)
    assert found.startswith(message) if message else not found


def test_a_run_whose_loss_explodes_is_marked_as_diverged(tmp_path):
    """At this rate the model ends constant, after a first round with a loss of 4e9; everything stays finite."""
    config = dataclasses.replace(BASE, rounds=6, lr=30.0, eval_every=6)
    whole = fedvg_jax.run(dataclasses.replace(config, nonfinite="skip"))
    assert not any("diverged" in record for record in whole.records) and whole.records[-1]["train_loss"] < 100
    with pytest.raises(fedvg_jax.DivergedError, match="round 1: the training loss") as caught:
        fedvg_jax.run(dataclasses.replace(config, out=tmp_path / "run"))
    assert len(caught.value.history.records) == 1
    assert History.load(tmp_path / "run").summary["stopped_by"] == "diverged"
