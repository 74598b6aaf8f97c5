"""Weightings whose weights are hyperparameters: those that the caller gives, or a chosen sum of several rules'."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fedvg_jax.core.types import Data, Hyper, Hyperparameter, Report, Returns, Tree, Variables, Weighting
from fedvg_jax.weightings import basic

GIVEN = Hyperparameter("given", 1.0, 0.0, doc="weights of the clients, in the order of the cohort")


def given(rule: Weighting | None = None) -> Weighting:
    """The weights `hyper["given"]` [K], in the order of the cohort; they need not sum to 1.

        s_k = given_k / sum_j given_j

    A single number is every client's, so the default is uniform weights.

    Args:
        rule: measures the clients: signals, scores and details are its own. None measures nothing.

    >>> weights = given()
    >>> model = Variables({"w": jnp.zeros(1)}, {})
    >>> returns = Returns(model, model, jnp.arange(2), None)
    >>> weights.weigh({"given": jnp.array([1.0, 3.0])}, jnp.ones(2), returns).params["w"].tolist()
    [0.25, 0.75]
    """
    rule = rule or basic.uniform()

    def weigh(hyper: Hyper, measured: Tree, returns: Returns) -> Variables:
        raw = jnp.broadcast_to(hyper["given"], returns.shuffle.shape)
        return basic.broadcast_weights(basic.shares(raw, returns.present), returns)

    return rule._replace(weigh=weigh, terms=(), defaults=(*rule.defaults, GIVEN))


def combined(rules: Sequence[Weighting]) -> Weighting:
    """The sum of rules' weights with the coefficients `hyper["rule"]` [rules], by default their mean.

        s_k = sum_i rule_i s_k^i,    sum_i rule_i = 1

    The score is the first rule's; there are no details.

    Args:
        rules: at least one.

    >>> weights = combined([basic.uniform(), given()])
    >>> model = Variables({"w": jnp.zeros(1)}, {})
    >>> returns = Returns(model, model, jnp.arange(2), None)
    >>> hyper = {"rule": jnp.array([0.0, 1.0]), "given": jnp.array([1.0, 3.0])}
    >>> weights.weigh(hyper, (jnp.ones(2), jnp.ones(2)), returns).params["w"].tolist()
    [0.25, 0.75]
    """
    coefficients = Hyperparameter("rule", 1 / len(rules), doc="coefficients of the rules, one of them 1 to choose it")

    def signal(hyper: Hyper, report: Report, data: Data) -> Tree:
        return tuple(rule.signal(hyper, report, data) for rule in rules)

    def weigh(hyper: Hyper, measured: Tree, returns: Returns) -> Variables:
        factors = jnp.broadcast_to(hyper["rule"], (len(rules),))
        parts = [rule.weigh(hyper, m, returns) for rule, m in zip(rules, measured, strict=True)]
        return jax.tree.map(lambda *ws: sum(c * w for c, w in zip(factors, ws, strict=True)), *parts)

    return Weighting(
        signal=signal,
        weigh=weigh,
        score=lambda measured: rules[0].score(measured[0]),
        detail=basic.no_detail,
        defaults=tuple(dict.fromkeys((*(own for rule in rules for own in rule.defaults), coefficients))),
    )
