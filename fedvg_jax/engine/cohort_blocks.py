"""A cohort in blocks of H clients: what the server keeps of those it has seen, so that no model is kept.

Under weights that keep their ratios when clients are left out, a mean over the clients seen so far goes on to one block
b more without any model of before:

    u <- r u + sum_{k in b} s_k x_k,    r = sum_{k before b} s_k,    s the weights of all who were seen, b included

It is exact: before b the weights were s_k / r, in the same ratios and summing to 1, so that u was
(1 / r) sum_{k before b} s_k x_k. For models x_k = theta_g - theta_k and the mean kept is m = theta_g - u:

    m <- theta_g - sum_{k in b} s_k (theta_g - theta_k) - r (theta_g - m)

The weights are drawn from a table of the signals, a few scalars per client; those after the last block are the round's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.core import tree
from fedvg_jax.core.types import Schedule, SimState, Tree, UsageError, Variables, Weighting
from fedvg_jax.engine import robust
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.weightings import streaming


class Told(NamedTuple):
    """A table of the cohort, arrays [K, ...] of scalars."""

    measured: Tree
    probes: Tree
    loss: Array
    """sum over the steps"""
    finite: Array
    present: Array


class Seen(NamedTuple):
    """What the server keeps of the clients so far; tuples have an entry for every term of the weights."""

    told: Told
    weights: tuple[Variables, ...]
    """leaves [K], 0 for who has not been seen"""
    models: tuple[Variables, ...]
    """weighted means"""
    averaged: tuple[Tree, ...]
    """weighted means of messages"""
    summed: Tree
    """sums of messages"""
    clients: Tree
    """the memories of all N clients"""
    optimisers: Tree


Visit = Callable[[Seen | None, Schedule, Array], Seen]
"""(who was seen before, a block, its places in the cohort [H]) -> with the clients of the block"""


def is_whole(schedule: Schedule) -> bool:
    """Whether the cohort is one block."""
    return schedule.plan.length.ndim == 1


def fold(visit: Visit, state: SimState, schedule: Schedule, num_clients: int, num_terms: int) -> Seen:
    """All blocks, one after the other; for a cohort of one block there is no loop.

    Args:
        num_clients: N.
        num_terms: of the weights.
    """
    if is_whole(schedule):
        return visit(None, schedule, jnp.arange(len(schedule.clients), dtype=jnp.int32))
    each, places = cut(schedule, num_clients)

    def block(b) -> Schedule:
        return schedule._replace(**tree.take(each, b))

    shapes = jax.eval_shape(lambda: visit(None, block(0), places[0]))
    tables = jax.tree.map(lambda s: jnp.zeros((places.size, *s.shape[1:]), s.dtype), (shapes.told, shapes.weights))
    messages = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (shapes.averaged, shapes.summed))
    seen = Seen(*tables, num_terms * (state.variables,), *messages, state.clients, state.optimisers)
    seen = lax.scan(lambda seen, b: (visit(seen, block(b), places[b]), None), seen, jnp.arange(len(places)))[0]
    told, weights = jax.tree.map(lambda table: table[: len(schedule.clients)], (seen.told, seen.weights))
    return seen._replace(told=told, weights=weights)


def cut(schedule: Schedule, num_clients: int) -> tuple[dict[str, Tree], Array]:
    """What of a schedule differs between blocks, [blocks, H, ...], and the places in the cohort, int32 [blocks, H].

    In a place behind the last there is nobody: a client without steps that is not heard of. Its number is N, of which
    nothing is stored; what is read by it is another's, and is not used.
    """
    num_blocks, size = len(schedule.plan.length), schedules.block_size(schedule.plan)
    spare = num_blocks * size - len(schedule.clients)

    def blocks(field: Array, nobody: int | bool) -> Array:
        return jnp.pad(field, (0, spare), constant_values=nobody).reshape(num_blocks, size)

    nobodies = {"clients": num_clients, "num_samples": 0, "num_steps": 0, "start": 0, "probe_steps": 0, "heard": False}
    each = {name: blocks(getattr(schedule, name), nobody) for name, nobody in nobodies.items()}
    places = jnp.arange(num_blocks * size, dtype=jnp.int32).reshape(num_blocks, size)
    return each | {"plan": schedule.plan}, places


def noted(before: Seen | None, places: Array, told: Told) -> Told:
    """The table with the entries of a block."""
    return told if before is None else tree.put(before.told, places, told)


def at(before: Seen | None, places: Array, table: Tree) -> Tree:
    """The entries of a block, [H]."""
    return table if before is None else tree.take(table, places)


def gone_on(before: Seen, now: Seen, places: Array, theta: Variables, acted_on: Callable[[Tree], Tree]) -> Seen:
    """The means and sums over all who were seen, from those over who was seen before and those of the block."""

    def rest(weights: Variables) -> Variables:
        is_before = jnp.arange(len(now.told.present), dtype=jnp.int32) < places[0]
        return jax.tree.map(lambda w: jnp.where(is_before, w, 0).sum(), weights)

    rests = [rest(weights) for weights in now.weights]
    models = (scaled(r, tree.sub(m, theta)) for r, m in zip(rests, before.models, strict=True))
    averaged = (scaled(acted_on(r), m) for r, m in zip(rests, before.averaged, strict=True))
    return now._replace(
        models=tree.add(now.models, tuple(models)),
        averaged=tree.add(now.averaged, tuple(averaged)),
        summed=tree.add(before.summed, now.summed),
    )


def scaled(factors: Tree, means: Tree) -> Tree:
    """A scalar for each tensor, times what stands in its place; nothing where there are no means."""
    return jax.tree.map(tree.scale, factors, means) if jax.tree.leaves(means) else means


def summed(weights: Tree, stacked: Tree) -> Tree:
    """sum_k s_k x_k of what stands in the place of each tensor, leaves [H, ...]; nothing where there is none."""
    if not jax.tree.leaves(stacked):
        return stacked

    def total(s: Array, part: Tree) -> Tree:
        return jax.tree.map(lambda x: tree.weighted_sum(s, x, jnp.zeros((), x.dtype)), part)

    return jax.tree.map(total, weights, stacked)


def terms_of(weighting: Weighting, aggregate: robust.Rule, schedule: Schedule) -> tuple[streaming.Term, ...]:
    """The terms the weights are made of; a whole cohort takes the rule as it is.

    Raises:
        UsageError: a cohort in blocks, and a rule that needs all models at once.
    """
    if is_whole(schedule):
        return streaming.single_term(weighting.weigh)
    if aggregate is not robust.mean:
        raise UsageError(
            "a cohort in blocks takes the weighted mean, for a robust rule needs all models at once; use --hold 0 or"
            " robust.mean"
        )
    if not weighting.terms:
        raise UsageError(
            "a cohort in blocks takes weights that can be averaged client by client, and this weighting has no terms"
            " (types.Weighting.terms); use --hold 0, or samples, uniform, fedvg or a mean of two"
        )
    return weighting.terms
