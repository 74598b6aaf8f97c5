"""Runs that end because the loss exploded."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from support import linear
from support.files import usage_error
from support.small_sweeps import BASE

import fedvg_jax
from fedvg_jax.runs import endings
from fedvg_jax.runs.record.history import History


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"train_loss": 1001.0}, "the training loss 1e+03 is over 1000"),
        ({"train_loss": 999.0}, ""),
        ({"train_loss": None}, ""),
        (
            {"train_loss": 2.0, "val_loss": None, "test_loss": None},
            "the loss of the global model is not finite",
        ),
        ({"train_loss": 2.0, "val_loss": 1.0, "test_loss": None}, ""),  # of the test rows alone
        ({"train_loss": 2.0, "diverged": [3]}, "clients [3] diverged"),
    ],
)
def test_a_round_that_diverged_is_found(record, message):
    found = endings.divergence(record, endings.EXPLOSION)
    assert found.startswith(message) if message else not found
    records = [{"train_loss": 2.0}, record, {"train_loss": 2.0}]
    assert len(endings.until_first(records, endings.EXPLOSION)[0]) == (2 if message else 3)


def test_a_run_whose_loss_explodes_is_marked_as_diverged(tmp_path):
    """At this rate the model ends constant, after a first round with a loss of 4e9; everything stays finite."""
    config = dataclasses.replace(BASE, rounds=6, lr=30.0, eval_every=6, partition_seed=42)
    whole = fedvg_jax.run(dataclasses.replace(config, nonfinite="skip"))
    assert (
        not any("diverged" in record for record in whole.records)
        and whole.records[-1]["train_loss"] < 100
    )
    with pytest.raises(fedvg_jax.DivergedError, match="round 1: the training loss") as caught:
        fedvg_jax.run(dataclasses.replace(config, out=tmp_path / "run"))
    assert len(caught.value.history.records) == 1
    assert History.load(tmp_path / "run").summary["stopped_by"] == "diverged"


SMALL = fedvg_jax.Config(
    rounds=2, clients=2, join_ratio=1.0, partition="iid", local_epochs=1, devices="1"
)
PROPORTIONAL = fedvg_jax.weightings.by_scalar(
    lambda hyper, client, data: client.num_samples.astype(float)
)
NOT_FINITE = {
    "signal": PROPORTIONAL._replace(signal=lambda hyper, client, data: jnp.nan * client.num_samples.astype(float)),
    "weights": PROPORTIONAL._replace(weigh=lambda hyper, raw, view: jax.tree.map(
        lambda leaf: jnp.nan * leaf, PROPORTIONAL.weigh(hyper, raw, view)), terms=()),
}  # fmt: skip


@pytest.mark.parametrize("part", NOT_FINITE)
def test_a_weighting_that_is_not_finite_ends_the_run(part):
    with usage_error("round 1", "clients [0, 1]", "weighting"):
        fedvg_jax.run(SMALL, **linear.GIVEN, weighting=NOT_FINITE[part])
