"""Baselines for FedVG: the permuted control, weightings without scoring, and other uses of the validation set.

Where a weighting has no information (no rows, no correct prediction, no trusted client), its weights are uniform.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from fedvg_jax.core import tree
from fedvg_jax.core.types import (
    Data,
    Hyper,
    Hyperparameter,
    NamedWeighting,
    ServerView,
    Task,
    Tree,
    UsageError,
    Variables,
    Weighting,
)
from fedvg_jax.weightings import aggregation, signals
from fedvg_jax.weightings.aggregation import aggregate
from fedvg_jax.weightings.basic import (
    broadcast_shares,
    broadcast_weights,
    by_scalar,
    reciprocal,
    shares,
)
from fedvg_jax.weightings.fedvg import EPS

RATE = Hyperparameter(
    "fitted.rate", 1.0, 0, doc="Learning rate, per unit of loss.", excludes_low=True
)


def permuted(rule: Weighting) -> Weighting:
    """Returns the placebo: the weights of `rule`, shuffled over participating clients. Its scores are the rule's."""

    def weigh(hyper, measured, view):
        dropped = ~jnp.broadcast_to(view.participating, view.shuffle.shape)
        source = view.shuffle[jnp.argsort(dropped[view.shuffle])]
        target = jnp.argsort(dropped)
        return jax.tree.map(
            lambda w: w.at[target].set(w[source]), rule.weigh(hyper, measured, view)
        )

    return rule._replace(weigh=weigh, terms=())


def inverse_samples() -> Weighting:
    """Returns weights proportional to 1 / n_k, so that small clients weigh more, as they tend to under FedVG.

    A client without rows has weight 0.
    """

    def signal(hyper, client, data):
        rows = signals.num_samples(hyper, client, data)
        return jnp.where(rows > 0, 1 / jnp.maximum(rows, 1), 0)

    return by_scalar(signal)


def val_loss(task: Task) -> Weighting:
    """Returns weights proportional to 1 / (loss on D_val + eps). It reads `hyper["fedvg.eps"]`. The score is the loss.

    It is for losses >= 0, such as the cross-entropy. Negative losses raise UsageError; under tracing they give negative
    weights, which the run reports.
    """

    def weigh(hyper, loss, view):
        shifted = loss + hyper[EPS.name]
        raw = reciprocal(shifted)
        return broadcast_shares(jnp.where(shifted < 0, -raw, raw), view)

    return Weighting(
        signals.validation_loss(task),
        weigh,
        terms=aggregation.single_term(weigh),
        hyperparameters=(EPS,),
    )


def val_accuracy(task: Task) -> Weighting:
    """Returns weights proportional to the accuracy on D_val."""
    return by_scalar(signals.validation_accuracy(task))


def fltrust(task: Task) -> Weighting:
    """Returns FLTrust's weights: from the cosine of a client's update with the server's update on D_val.

        t_k = max(0, cos(delta_k, delta_0)),    s_k = (t_k / ||delta_k||) / sum_j (t_j / ||delta_j||)

    The server's delta_0 is the result of one step of plain SGD at `hyper["lr"]` on every minibatch of D_val, from
    theta_g. The score is ||delta_k||.

    FLTrust scales all updates to the length of the server's:
    sum_k (t_k / sum_j t_j) (||delta_0|| / ||delta_k||) delta_k. These coefficients do not sum to 1, as weights must.
    Dividing by their sum keeps the direction of the update and the defence against long updates. For clients that agree
    in direction, its length is the harmonic mean of their lengths (weights t_k), not ||delta_0||.

    Three more differences from FLTrust: cosines and lengths are computed over the trained tensors; running statistics
    take the same weights; and if no client is trusted, weights are uniform, while FLTrust keeps theta_g.

    Source: Cao et al., "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping", NDSS 2021.
    """

    def weigh(hyper, lengths, view):
        trained = server_model(task, hyper, view.variables, view.data)
        server_delta = jax.tree.map(tree.wide, tree.sub(view.variables.params, trained.params))
        deltas = jax.tree.map(
            lambda p, c: tree.wide(p[None] - c), view.variables.params, _models(view).params
        )
        agreement = jax.vmap(lambda delta: optax.tree.vdot(delta, server_delta))(deltas)
        # cosine / length; ||delta_0|| is a common factor
        squared = lengths**2
        trust = jnp.where(
            squared > 0, jnp.maximum(agreement, 0) / jnp.where(squared > 0, squared, 1), 0
        )
        return broadcast_shares(trust, view)

    return Weighting(signals.drift, weigh)


def server_model(task: Task, hyper: Hyper, variables: Variables, data: Data) -> Variables:
    """Returns `variables` after `sgd_step` at `lr` on each minibatch of D_val."""

    def step_if_any(model, rows):
        step = functools.partial(sgd_step, task, hyper["lr"], model, data.pool, rows)
        return lax.cond((rows >= 0).any(), step, lambda: model), None

    return lax.scan(step_if_any, variables, jnp.asarray(data.scoring))[0]


def sgd_step(task: Task, rate: Array, model: Variables, pool: Tree, rows: Array) -> Variables:
    """Returns a model after a step of SGD on a minibatch of the pool, BatchNorm in train mode; the loss gets no key."""
    batch, mask = tree.gather(pool, rows)
    grads, stats = jax.grad(task.loss, has_aux=True)(model.params, model.stats, batch, mask, True)
    return tree.like(Variables(tree.sub(model.params, tree.scale(rate, grads)), stats), model)


def fitted(task: Task, num_steps: int = 10) -> Weighting:
    """Returns weights fitted to D_val by exponentiated gradient steps on the simplex, from uniform weights.

        s_k <- s_k exp(-rate dL/ds_k) / sum_j s_j exp(-rate dL/ds_j),    L(s) = loss of sum_k s_k theta_k on all D_val

    The rate is `hyper["fitted.rate"]`, per unit of loss; a large one may not lower the loss. BatchNorm is in evaluation
    mode; running statistics take the same weights. Every step costs the gradient of ONE model on D_val, while FedVG
    costs one for every client. The score is 1 for every client.

    Args:
        task: the model and its loss.
        num_steps: gradient steps.

    Source: Kivinen and Warmuth, "Exponentiated Gradient versus Gradient Descent for Linear Predictors", 1997.
    """

    def weigh(hyper, ones, view):
        def loss(model, rows):
            return signals.summed_loss(task, model, view.data.pool, rows)

        def averaged(s):
            return aggregate(view.variables, _models(view), broadcast_weights(s, view))

        def weights(logs):
            return shares(
                jax.nn.softmax(jnp.where(view.participating, logs, jnp.finfo(logs.dtype).min)),
                view.participating,
            )

        def step(_, logs):
            model, gradient_of_weights = jax.vjp(averaged, weights(logs))
            gradient = signals.mean_gradient(loss, model, view.data.val)
            return logs - hyper[RATE.name] * gradient_of_weights(tree.like(gradient, model))[0]

        return broadcast_weights(
            weights(lax.fori_loop(0, num_steps, step, jnp.zeros_like(ones))), view
        )

    return Weighting(signals.nothing, weigh, hyperparameters=(RATE,))


def _models(view: ServerView) -> Variables:
    """Returns the models of the cohort, stacked [K, ...].

    Raises:
        UsageError: the cohort is in several client chunks, so that its models are not held at once.
    """
    if view.clients is None:
        raise UsageError(
            "this weighting compares all models of a cohort at once; use --client-chunk 0"
        )
    return view.clients


# --- the server's training on D_val, which uses the same validation set as FedVG without its weights

Refine = Callable[[Hyper, Array, Variables, Data], Variables]
"""(hyper, number of the round, global model, data) -> global model"""


def server_steps(task: Task, num_steps: int) -> Refine:
    """Returns a few steps of plain SGD on the minibatches of D_val, with BatchNorm in train mode.

        theta <- theta - lr grad loss(theta, batch_i),   i = round x num_steps, ..., round x num_steps + num_steps - 1

    with i modulo the number of minibatches and the learning rate `tuning.lr`. D_val is then training data: loss and
    accuracy on it no longer estimate generalisation.

    Args:
        task: the model and its loss, which gets no key.
        num_steps: steps per round.
    """

    def refine(hyper, number, variables, data):
        num_used = (data.scoring >= 0).any(1).sum(dtype=number.dtype)

        def step(i, model):
            rows = data.scoring[(number * num_steps + i) % jnp.maximum(num_used, 1)]
            return sgd_step(task, hyper["tuning.lr"], model, data.pool, rows)

        return lax.cond(
            num_used > 0, lambda: lax.fori_loop(0, num_steps, step, variables), lambda: variables
        )

    return refine


BY_NAME = {
    "fitted": NamedWeighting(fitted, hyperparameters=(RATE,), streams=False),
    "inverse_samples": NamedWeighting(inverse_samples, takes=(), reads_rows=False),
    "val_loss": NamedWeighting(val_loss, hyperparameters=(EPS,)),
    "val_accuracy": NamedWeighting(val_accuracy),
    "fltrust": NamedWeighting(fltrust, streams=False, trains_on_rows=True),
}
"""The weightings of this file that settings name."""
