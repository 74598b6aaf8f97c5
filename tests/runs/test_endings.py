"""Runs that end because the loss exploded."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest
from support import linear
from support.files import usage_error
from support.small_sweeps import BASE

import fedvg_jax
from fedvg_jax.runs import endings
from fedvg_jax.runs.record.history import History

# --- divergence


def losses(*values, **last):
    """Records of consecutive rounds with these training losses, the last one with further entries."""
    records = [{"round": i, "train_loss": value} for i, value in enumerate(values, 1)]
    return [*records[:-1], records[-1] | last]


@pytest.mark.parametrize(
    ("records", "is_own_task", "message"),
    [
        (
            losses(2.0, 1001.0),
            False,
            "round 2: the training loss 1e+03 is over 1000; use a smaller --lr",
        ),
        (losses(2.0, 999.0), False, ""),
        (losses(4e9, 8.0), False, "round 1: the training loss 4e+09"),
        (
            losses(2.0, 2001.0),
            True,
            "round 2: the training loss 2e+03 is over 2000; use a smaller --lr",
        ),
        (losses(2.0, 1999.0), True, ""),
        (losses(0.001, 999.0), True, ""),  # a warm start
        # a task whose loss has large units, whose first round averaged no client
        (
            losses(None, 1e6, 1e8),
            True,
            "",
        ),
        (
            losses(2.0, 2.0, val_loss=None, test_loss=None),
            False,
            "round 2: the loss of the global model is not finite",
        ),
        (losses(2.0, 2.0, val_loss=1.0, test_loss=None), False, ""),  # of the test rows alone
    ],
)
def test_a_loss_that_explodes_is_named_with_its_round(records, is_own_task, message):
    limit = endings.loss_limit(records, is_own_task)
    found = endings.divergence(records, limit=limit)
    assert found.startswith(message) if message else not found


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
def test_a_weighting_that_is_not_finite_is_named_and_no_learning_rate(part):
    with usage_error("round 1", "weighting=", "clients [0, 1]") as caught:
        fedvg_jax.run(SMALL, **linear.GIVEN, weighting=NOT_FINITE[part])
    assert "--lr" not in str(caught.value)
    assert caught.value.history.records[0]["unweighed"] == [0, 1]


class TwoOutputs(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(x)


@pytest.mark.parametrize("cause", ["two outputs for three classes", "initial model"])
def test_a_loss_that_is_not_finite_before_any_step_is_no_matter_of_the_learning_rate(cause):
    if cause == "initial model":
        given = {**linear.GIVEN, "initial": fedvg_jax.Variables({"w": jnp.full(3, jnp.nan)}, {})}
    else:
        loss = optax.softmax_cross_entropy_with_integer_labels
        given = {
            "data": linear.data(),
            "task": fedvg_jax.linen_task(TwoOutputs(), loss, linear.data()[0][:1]),
        }
    with usage_error("before any step", "3 outputs") as caught:
        fedvg_jax.run(SMALL, **given)
    assert "--lr" not in str(caught.value)


def test_a_weighting_that_measures_0_for_all_says_that_its_weights_are_uniform(caplog):
    zero = PROPORTIONAL._replace(
        signal=lambda hyper, client, data: 0.0 * client.num_samples.astype(float)
    )
    history = fedvg_jax.run(SMALL, **linear.GIVEN, weighting=zero)
    assert history.records[0]["weights"] == [0.5, 0.5]
    assert len([message for message in caplog.messages if "uniform" in message]) == 1
    caplog.clear()
    fedvg_jax.run(SMALL, **linear.GIVEN, weighting=PROPORTIONAL)
    assert not [message for message in caplog.messages if "uniform" in message]
