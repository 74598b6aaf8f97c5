"""A cohort in blocks of H clients, from which running means and sums are kept, and no client's model.

Weights of the form raw_k / sum_j raw_j keep their ratios when clients are added. Then a weighted mean over the clients
of earlier cohort blocks extends to a further cohort block b without any earlier model:

    u <- r u + sum_{k in b} s_k x_k,    r = sum_{k before b} s_k

where s are the weights over all clients up to and including b. This is exact: before b the weights were s_k / r, with
the same ratios and sum 1, so u was (1 / r) sum_{k before b} s_k x_k. For models, x_k = theta_g - theta_k. The running
mean that is stored is m = theta_g - u, so

    m <- theta_g - sum_{k in b} s_k (theta_g - theta_k) - r (theta_g - m)

The weights are computed from a table of a few scalars per client. Those computed after the last cohort block are the
weights of the round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import NamedSharding

from fedvg_jax.core import tree
from fedvg_jax.core.hardware import Hardware
from fedvg_jax.core.types import Schedule, SimState, Term, Tree, UsageError, Variables, Weighting
from fedvg_jax.engine import lane_plan, robust
from fedvg_jax.weightings import streaming


class ClientTable(NamedTuple):
    """Scalars of each client of the cohort, leaves [K, ...]."""

    measured: Tree
    """Signals of the weighting."""
    probes: Tree
    """Results of the algorithm's probe."""
    loss: Array
    """[K] sum of the minibatch losses over the local steps."""
    finite: Array
    """bool [K] whether model, loss, signals and weights are finite."""
    present: Array
    """bool [K] whether the client is averaged."""


class RunningCohort(NamedTuple):
    """Means, sums and memories over the clients processed so far; each tuple has one entry per term of the weights."""

    table: ClientTable
    weights: tuple[Variables, ...]
    """Leaves [K], 0 for clients that are not processed yet."""
    models: tuple[Variables, ...]
    """Weighted means of the clients' models."""
    message_means: tuple[Tree, ...]
    """Weighted means of the messages to be averaged."""
    message_sums: Tree
    """Sums of the messages to be summed."""
    client_memories: Tree
    """The memories of clients, leaves [M, ...]; where devices divide them, [K, ...] of the cohort until the round ends.
    """
    optimiser_memories: Tree
    """Likewise of optimisers; () where they are fresh each round."""


ProcessBlock = Callable[[RunningCohort | None, Schedule, Array], RunningCohort]
"""(running cohort, schedule of a cohort block, its positions in the cohort int32 [H]) -> running cohort that includes
the block. The first argument is None for a cohort that is one block."""


def is_one_block(schedule: Schedule) -> bool:
    """Returns whether the whole cohort is one cohort block."""
    return schedule.plan.length.ndim == 1


def over_blocks(
    process: ProcessBlock, state: SimState, schedule: Schedule, num_clients: int, num_terms: int
) -> RunningCohort:
    """Returns the cohort after `process` has been applied to each cohort block in order; one block needs no loop.

    Args:
        num_clients: N.
        num_terms: number of terms of the weights.

    Raises:
        UsageError: for several cohort blocks and parameters of half precision, in which a running mean loses updates.
    """
    if is_one_block(schedule):
        return process(None, schedule, jnp.arange(len(schedule.clients), dtype=jnp.int32))
    dtype = tree.dtype(state.variables)
    if dtype != tree.wide_dtype(state.variables):
        raise UsageError(f"a cohort in blocks takes parameters of at least float32; got {dtype}: use --hold 0")
    fields, positions = split_schedule(schedule, num_clients)

    def schedule_of_block(b) -> Schedule:
        return schedule._replace(**tree.take(fields, b))

    def process_next(running: RunningCohort, b: Array) -> tuple[RunningCohort, None]:
        return process(running, schedule_of_block(b), positions[b]), None

    shapes = jax.eval_shape(lambda: process(None, schedule_of_block(0), positions[0]))
    running = _empty_cohort(shapes, state, positions.size, num_terms)
    running = lax.scan(process_next, running, jnp.arange(len(positions)))[0]
    table, weights = jax.tree.map(lambda column: column[: len(schedule.clients)], (running.table, running.weights))
    return running._replace(table=table, weights=weights)


def _empty_cohort(shapes: RunningCohort, state: SimState, num_rows: int, num_terms: int) -> RunningCohort:
    """Returns the running cohort before the first cohort block.

    Args:
        shapes: abstract result of one cohort block processed alone.
        num_rows: rows of the table, a multiple of H.
    """
    tables = jax.tree.map(lambda s: jnp.zeros((num_rows, *s.shape[1:]), s.dtype), (shapes.table, shapes.weights))
    messages = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (shapes.message_means, shapes.message_sums))
    return RunningCohort(
        table=tables[0],
        weights=tables[1],
        models=num_terms * (state.variables,),
        message_means=messages[0],
        message_sums=messages[1],
        client_memories=state.clients,
        optimiser_memories=state.optimisers,
    )


def split_schedule(schedule: Schedule, num_clients: int) -> tuple[dict[str, Tree], Array]:
    """Returns the fields of a schedule that differ between cohort blocks, and the clients' positions in the cohort.

    The last cohort block is padded with dummy clients: id and memory row N, zero steps, `heard` False. Writes to row N
    are dropped; reads are clamped and ignored.

    Returns:
        Fields by name, leaves [blocks, H, ...]; and positions, int32 [blocks, H].
    """
    num_blocks, size = len(schedule.plan.length), lane_plan.block_size(schedule.plan)
    num_dummies = num_blocks * size - len(schedule.clients)

    def blocks(field: Array, value: int | bool) -> Array:
        return jnp.pad(field, (0, num_dummies), constant_values=value).reshape(num_blocks, size)

    dummy = {"clients": num_clients, "num_samples": 0, "num_steps": 0, "start": 0, "probe_steps": 0, "heard": False}
    if schedule.memory_rows is not None:
        dummy["memory_rows"] = num_clients
    fields: dict[str, Tree] = {name: blocks(getattr(schedule, name), value) for name, value in dummy.items()}
    positions = jnp.arange(num_blocks * size, dtype=jnp.int32).reshape(num_blocks, size)
    return fields | {"plan": schedule.plan}, positions


def update_table(running: RunningCohort | None, positions: Array, rows: ClientTable) -> ClientTable:
    """Returns the cohort's table with the rows of a cohort block written; without a running cohort, `rows` itself."""
    return rows if running is None else tree.put(running.table, positions, rows)


def rows_of_block(running: RunningCohort | None, positions: Array, table: Tree) -> Tree:
    """Returns a cohort block's rows [H, ...] of leaves [K, ...]; without a running cohort, all rows."""
    return table if running is None else tree.take(table, positions)


def merge_block(
    earlier: RunningCohort,
    block: RunningCohort,
    positions: Array,
    theta: Variables,
    algorithm_part: Callable[[Tree], Tree],
) -> RunningCohort:
    """Merges a cohort block's means and sums into the running ones.

    Args:
        earlier: the clients before this cohort block.
        block: this cohort block's means and sums; its table and weights already cover `earlier` too.
        theta: theta_g.
        algorithm_part: selects what the algorithm acts on, of a tree like the variables.
    """

    def earlier_weight(weights: Variables) -> Variables:
        is_earlier = jnp.arange(len(block.table.present), dtype=jnp.int32) < positions[0]
        return jax.tree.map(lambda w: jnp.where(is_earlier, w, 0).sum(), weights)

    factors = [earlier_weight(weights) for weights in block.weights]
    models = (scale_tensors(r, tree.sub(m, theta)) for r, m in zip(factors, earlier.models, strict=True))
    means = (scale_tensors(algorithm_part(r), m) for r, m in zip(factors, earlier.message_means, strict=True))
    return block._replace(
        models=tree.add(block.models, tuple(models)),
        message_means=tree.add(block.message_means, tuple(means)),
        message_sums=tree.add(earlier.message_sums, block.message_sums),
    )


def scale_tensors(factors: Tree, means: Tree) -> Tree:
    """Returns each tensor's entry of `means`, a pytree, times the tensor's factor []; () stays ()."""
    return jax.tree.map(tree.scale, factors, means) if jax.tree.leaves(means) else means


def weighted_sums(
    weights: Tree, stacked: Tree, hardware: Hardware | None = None, sharding: NamedSharding | None = None
) -> Tree:
    """Returns sum_k s_k x_k for each tensor's entry of `stacked`; () stays ().

    Args:
        weights: tensor -> s, leaves [H].
        stacked: tensor -> pytree with leaves [H, ...].
        hardware: what it will run on; defaults to the hardware of this process.
        sharding: of axis H over devices; None if one device holds all entries.
    """
    if not jax.tree.leaves(stacked):
        return stacked

    def total(s: Array, part: Tree) -> Tree:
        return jax.tree.map(lambda x: tree.weighted_sum(s, x, jnp.zeros((), x.dtype), hardware, sharding), part)

    return jax.tree.map(total, weights, stacked)


def terms_of(weighting: Weighting, aggregate: robust.Rule, schedule: Schedule) -> tuple[Term, ...]:
    """Returns the terms whose weighted means make up the global model; for one cohort block, the rule itself.

    Raises:
        UsageError: for several cohort blocks and a rule that needs all models at once.
    """
    if is_one_block(schedule):
        return streaming.single_term(weighting.weigh)
    if not robust.is_mean(aggregate):
        raise UsageError(
            "a cohort in blocks takes the weighted mean; a robust rule needs all models at once: use --hold 0 or"
            " robust.mean"
        )
    if not weighting.terms:
        raise UsageError(
            "a cohort in blocks takes weights of the form raw_k / sum_j raw_j, and this weighting has no terms"
            " (types.Weighting.terms); use --hold 0, or samples, uniform, fedvg or a mean of two"
        )
    return weighting.terms
