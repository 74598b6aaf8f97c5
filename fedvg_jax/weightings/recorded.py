"""Measurements of the clients that the history records and that no weight depends on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import Array

from fedvg_jax.core.types import Signal, Task, Term, Tree, Weighting
from fedvg_jax.weightings import aggregation, signals


def client_joint_fisher(task: Task) -> Signal:
    """Returns the joint Fisher information of every tensor of one client's model on D_val: `joint_fisher` as a signal.

        J^t = mean over examples of ||grad_t loss(theta_k, example)||^2

    BatchNorm is in evaluation mode. The trace is the sum over tensors. The squared norm of the mean gradient is less.
    """
    return signals.normed(signals.fisher(task), jnp.sum)


MEASURES: dict[str, Callable[[Task], Signal]] = {
    "client_accuracy": signals.pooled_test_accuracy,
    "client_val_loss": signals.validation_loss,
    "client_drift": lambda task: signals.drift,
    "client_joint_fisher": client_joint_fisher,
}
"""Key of a record -> function of the task that returns the measurement of one client: a scalar, or one per tensor."""


def _stacked(values: Tree) -> Array:
    return values if isinstance(values, Array) else jnp.stack(jax.tree.leaves(values), -1)


def with_records(weighting: Weighting, measures: Mapping[str, Signal]) -> Weighting:
    """Returns a weighting with the same weights and scores, and with measurements of the clients in its details.

    A measurement that is not finite excludes no client.

    Args:
        weighting: the rule.
        measures: key of a record -> (hyper, one client's return, data) -> scalar [], or a pytree of several, which the
            details have in the order of its leaves, [K, leaves].
    """

    @functools.wraps(weighting.signal)
    def signal(hyper, client, data):
        signals_of_rule = weighting.signal(hyper, client, data)
        return signals_of_rule, {
            name: measure(hyper, client, data) for name, measure in measures.items()
        }

    of_rule = functools.partial(aggregation.with_signal, 0)
    return weighting._replace(
        signal=signal,
        weigh=of_rule(weighting.weigh),
        score=lambda measured: weighting.score(measured[0]),
        detail=lambda measured: (
            weighting.detail(measured[0])
            | {name: _stacked(value) for name, value in measured[1].items()}
        ),
        terms=tuple(Term(of_rule(term.weigh), of_rule(term.share)) for term in weighting.terms),
        decisive=lambda measured: weighting.decisive(measured[0]),
    )
