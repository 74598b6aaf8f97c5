"""Weightings that FedVG is measured against: placebos, cheaper rules, and other uses of the same validation set.

Where a rule has nothing to go by (no rows, nothing classified right, nobody trusted) its weights are uniform.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from fedvg_jax.core import norms, tree
from fedvg_jax.core.types import Data, Hyper, Hyperparameter, Report, Returns, Task, Tree, Variables, Weighting
from fedvg_jax.weightings import signals, streaming
from fedvg_jax.weightings.aggregation import aggregate
from fedvg_jax.weightings.basic import broadcast_weights, by_scalar, no_detail, reciprocal, shares
from fedvg_jax.weightings.fedvg import DEFAULTS as EPS

FITTED_DEFAULTS = (
    Hyperparameter("fit_rate", 1.0, 0.0, doc="rate of the exponentiated gradient steps", excludes_low=True),
)


def permuted(rule: Weighting) -> Weighting:
    """The placebo: the weights of `rule`, shuffled over the clients that are there. It shows the rule's scores."""

    def weigh(hyper: Hyper, measured: Tree, returns: Returns) -> Variables:
        absent = ~jnp.broadcast_to(returns.present, returns.shuffle.shape)
        giver = returns.shuffle[jnp.argsort(absent[returns.shuffle])]
        taker = jnp.argsort(absent)
        return jax.tree.map(lambda w: w.at[taker].set(w[giver]), rule.weigh(hyper, measured, returns))

    return rule._replace(weigh=weigh, terms=())


def inverse_samples() -> Weighting:
    """In proportion to 1 / n_k: small clients weigh more, as they tend to under FedVG. 0 for a client without rows,
    which has nothing to say."""

    def signal(hyper: Hyper, report: Report, data: Data) -> Array:
        rows = signals.num_samples(hyper, report, data)
        return jnp.where(rows > 0, 1 / jnp.maximum(rows, 1), 0)

    return by_scalar(signal)


def val_loss(task: Task) -> Weighting:
    """In proportion to 1 / (loss on D_val + eps); `eps` is read from `hyper["eps"]`. Its score is the loss."""

    def weigh(hyper: Hyper, loss: Array, returns: Returns) -> Variables:
        return broadcast_weights(shares(reciprocal(loss + hyper["eps"]), returns.present), returns)

    return Weighting(
        signals.validation_loss(task), weigh, lambda loss: loss, no_detail, streaming.single_term(weigh), EPS
    )


def val_accuracy(task: Task) -> Weighting:
    """In proportion to the accuracy on D_val."""
    return by_scalar(signals.validation_accuracy(task))


def fltrust(task: Task) -> Weighting:
    """The direction of FLTrust's update: clients that move as the server does on D_val are trusted.

        t_k = max(0, cos(delta_k, delta_0)),    s_k = (t_k / ||delta_k||) / sum_j (t_j / ||delta_j||)

    The server's delta_0 comes of one step of plain SGD at `hyper["lr"]` on every minibatch of D_val, from theta_g.
    FLTrust gives all updates the length of the server's: sum_k (t_k / sum_j t_j) (||delta_0|| / ||delta_k||) delta_k.
    These coefficients do not sum to 1, so the rescaling is no weighting; dividing by their sum keeps the direction
    of the update and the defence against long ones, but its length is then the harmonic mean of the clients' lengths
    (weights t_k) where they agree in direction, not ||delta_0||. Three more differences: cosines and lengths are those
    of the trained tensors; running statistics take the same weights; and where nobody is trusted, where FLTrust keeps
    theta_g, weights are uniform, for they must sum to 1. The score is ||delta_k||.

    Source: Cao et al., "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping", NDSS 2021.
    """

    def weigh(hyper: Hyper, lengths: Array, returns: Returns) -> Variables:
        trained = server_model(task, hyper, returns.variables, returns.data)
        own = tree.sub(returns.variables.params, trained.params)
        deltas = jax.tree.map(lambda p, c: p[None] - c, returns.variables.params, returns.clients.params)
        agreement = jax.vmap(lambda delta: optax.tree.vdot(delta, own))(deltas)
        # cos / length; ||delta_0|| is the same for all
        squared = lengths**2
        trust = jnp.where(squared > 0, jnp.maximum(agreement, 0) / jnp.where(squared > 0, squared, 1), 0)
        return broadcast_weights(shares(trust, returns.present), returns)

    return Weighting(_length, weigh, score=lambda lengths: lengths, detail=no_detail)


def server_model(task: Task, hyper: Hyper, variables: Variables, data: Data) -> Variables:
    """`variables` after one step of plain SGD at `lr` on each minibatch of D_val, BatchNorm in train mode."""
    gradient = jax.grad(task.loss, has_aux=True)

    def step(now: Variables, rows: Array) -> Variables:
        batch, mask = tree.gather(data.pool, rows)
        grads, stats = gradient(now.params, now.stats, batch, mask, True)
        return Variables(tree.sub(now.params, tree.scale(hyper["lr"], grads)), stats)

    def step_if_any(now: Variables, rows: Array) -> tuple[Variables, None]:
        return lax.cond((rows >= 0).any(), step, lambda now, rows: now, now, rows), None

    return lax.scan(step_if_any, variables, data.scoring)[0]


def fitted(task: Task, num_steps: int, rate: float | None = None) -> Weighting:
    """Weights fitted to D_val, by exponentiated gradient steps on the simplex from the uniform ones:

        s_k <- s_k exp(-rate dL/ds_k) / sum_j s_j exp(-rate dL/ds_j),    L(s) = loss of sum_k s_k theta_k on all D_val

    BatchNorm in evaluation mode; running statistics take the same weights. Every step costs a gradient of ONE model on
    D_val, where FedVG costs one of every client's. Its score is 1 for everybody.

    Args:
        rate: per unit of loss; a small one lowers the loss at every step, a large one need not. By default it is read
            from `hyper["fit_rate"]`.

    Source: Kivinen and Warmuth, "Exponentiated Gradient versus Gradient Descent for Linear Predictors", 1997.
    """

    def summed(model: Variables, returns: Returns, rows: Array) -> Array:
        batch, mask = tree.gather(returns.data.pool, rows)
        return task.loss(*model, batch, mask, False)[0] * mask.sum().astype(tree.dtype(model))

    def weigh(hyper: Hyper, ones: Array, returns: Returns) -> Variables:
        def averaged(s: Array) -> Variables:
            return aggregate(returns.variables, returns.clients, broadcast_weights(s, returns))

        def weights(logs: Array) -> Array:
            return shares(jax.nn.softmax(logs), returns.present)

        def step(_, logs: Array) -> Array:
            model, slope_of = jax.vjp(averaged, weights(logs))
            gradient = signals.mean_over(lambda rows: jax.grad(summed)(model, returns, rows), returns.data.val)
            return logs - (hyper["fit_rate"] if rate is None else rate) * slope_of(gradient)[0]

        return broadcast_weights(weights(lax.fori_loop(0, num_steps, step, jnp.zeros_like(ones))), returns)

    return Weighting(
        signals.nothing, weigh, score=lambda ones: ones, detail=no_detail, defaults=() if rate else FITTED_DEFAULTS
    )


def _length(hyper: Hyper, report: Report, data: Data) -> Array:
    return norms.l2(jnp.stack([norms.l2(x) for x in jax.tree.leaves(report.delta)]))
