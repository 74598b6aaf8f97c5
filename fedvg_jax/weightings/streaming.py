"""Weights as a sum of terms, which is what lets a round forget the models it has averaged.

    s_k = sum_t c_t s_k^t,   so   sum_k s_k x_k = sum_t c_t sum_k s_k^t x_k

A term's weights s^t keep their ratios when clients are left out, so its mean is a running one; the shares c_t may
depend on the whole cohort, for they are needed at the end. FedVG modelwise is one term, `mix` has those of both rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedvg_jax.core.types import Hyper, Returns, Term, Tree, Variables, Weigh


def alone(weigh: Weigh) -> tuple[Term, ...]:
    """A rule that is a term itself: its weights are raw_k / sum_j raw_j, with raw_k >= 0 of client k's signals only."""

    def whole(hyper: Hyper, measured: Tree, returns: Returns) -> Variables:
        return jax.tree.map(lambda leaf: jnp.ones((), leaf.dtype), returns.variables)

    return (Term(weigh, whole),)


def halves(*rules: tuple[Term, ...]) -> tuple[Term, ...]:
    """The terms of the mean of two rules, which measure a pair; () where either has none."""

    def half(i: int, term: Term) -> Term:
        def of_own(f: Callable[..., Any]) -> Callable[..., Any]:
            return lambda hyper, measured, returns: f(hyper, measured[i], returns)

        def share(*args) -> Variables:
            return jax.tree.map(lambda share: share / 2, of_own(term.share)(*args))

        return Term(of_own(term.weigh), share)

    return tuple(half(i, term) for i, rule in enumerate(rules) for term in rule) if all(rules) else ()


def split(weigh: Weigh, otherwise: Weigh, takes_first: Callable[[Hyper, Tree, Returns], Variables]) -> tuple[Term, ...]:
    """The terms of a rule that takes one of two for each tensor, where `takes_first` (bools []) says so."""

    def share(wanted: bool) -> Callable[[Hyper, Tree, Returns], Variables]:
        def chosen(hyper: Hyper, measured: Tree, returns: Returns) -> Variables:
            found = takes_first(hyper, measured, returns)
            return jax.tree.map(lambda first, leaf: (first == wanted).astype(leaf.dtype), found, returns.variables)

        return chosen

    return Term(weigh, share(True)), Term(otherwise, share(False))


def blended(shares: Sequence[Tree], of_terms: Sequence[Tree]) -> Tree:
    """sum_t c_t x^t; the shares may be a prefix of the trees, which may be (). One term alone has the share 1.

    >>> blended([{"w": 0.25}, {"w": 0.75}], [{"w": jnp.array([4.0])}, {"w": jnp.array([8.0])}])["w"].tolist()
    [7.0]
    """

    def added(*both: Tree) -> Tree:
        shares, trees = both[: len(both) // 2], both[len(both) // 2 :]
        return jax.tree.map(lambda *x: sum(c * leaf for c, leaf in zip(shares, x, strict=True)), *trees)

    is_one = len(of_terms) == 1 or not jax.tree.leaves(of_terms)
    return of_terms[0] if is_one else jax.tree.map(added, *shares, *of_terms)
