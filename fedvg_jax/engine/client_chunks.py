"""A cohort in client chunks of H clients, from which running means and sums are kept, and no client's model.

Weights of the form raw_k / sum_j raw_j keep their ratios when clients are added. Then a weighted mean over the clients
of earlier client chunks extends to a further client chunk b without any earlier model:

    u <- r u + sum_{k in b} s_k x_k,    r = sum_{k before b} s_k

where s are the weights over all clients up to and including b. This is exact: before b the weights were s_k / r, with
the same ratios and sum 1, so u was (1 / r) sum_{k before b} s_k x_k. For models, x_k = theta_g - theta_k. The running
mean that is stored is m = theta_g - u, so

    m <- theta_g - sum_{k in b} s_k (theta_g - theta_k) - r (theta_g - m)

The weights are computed from a table of a few scalars per client. The weights after the last client chunk are the
weights of the round. A client chunk takes the same steps as a whole cohort, see `round_steps`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.core import tree
from fedvg_jax.core.types import (
    Metrics,
    Schedule,
    SimState,
    Term,
    Tree,
    UsageError,
    Variables,
    Weigh,
)
from fedvg_jax.engine import lane_plan, robust, round_steps as steps
from fedvg_jax.engine.round_steps import Averages, RoundInputs, RoundParts

NUMBERS = ("clients", "state_rows")
"""Fields of a schedule that number clients."""

BY_CLIENT = (
    *NUMBERS,
    "num_samples",
    "num_steps",
    "start",
    "probe_steps",
    "participating",
    "received",
    "staleness",
    "keys",
)
"""Fields of a schedule that differ between client chunks, beside its plan."""


def run_chunks(parts: RoundParts, inputs: RoundInputs) -> tuple[SimState, Metrics]:
    """Returns the state after a round that visits the cohort in client chunks, and the round's metrics.

    Raises:
        UsageError: for a rule or weighting that needs all models at once, and for parameters of half precision, in
            which a running mean loses updates.
    """
    terms = _terms(parts, inputs.state.variables)
    fields, positions = split_schedule(inputs.schedule, parts.num_clients)
    rules = [term.weigh for term in terms]

    def chunk_inputs(b, client_states):
        schedule = inputs.schedule._replace(**tree.take(fields, b))
        state = inputs.state._replace(clients=client_states)
        return inputs._replace(state=state, schedule=schedule, positions=positions[b])

    def add_chunk(running, b):
        chunk = chunk_inputs(b, running.client_states)
        of_chunk = steps.average_clients(parts, rules, chunk, running.table)
        return _merge(parts, running, of_chunk, chunk), None

    empty = _empty(parts, rules, chunk_inputs(0, inputs.state.clients), positions.size)
    running = lax.scan(add_chunk, empty, jnp.arange(len(positions)))[0]

    columns = running.table, running.weights
    table, weights = jax.tree.map(lambda column: column[: len(inputs.positions)], columns)
    returned = steps.server_view(inputs, table)
    shares = [term.share(inputs.hyper, table.measured, returned) for term in terms]
    averages = running._replace(table=table, weights=weights)
    return steps.server_step(parts, inputs, averages, shares)


def _empty(
    parts: RoundParts, rules: Sequence[Weigh], chunk: RoundInputs, num_rows: int
) -> Averages:
    """Returns the averages before the first client chunk.

    Args:
        parts: the static parts of the round.
        rules: of the weights.
        chunk: the arrays of any client chunk.
        num_rows: rows of the table, a multiple of H.
    """
    shapes = jax.eval_shape(lambda: steps.average_clients(parts, rules, chunk))
    table, weights = jax.tree.map(
        lambda s: jnp.zeros((num_rows, *s.shape[1:]), s.dtype), (shapes.table, shapes.weights)
    )
    others = shapes.messages, shapes.message_sums, shapes.extremes
    messages, sums, extremes = tree.zeros_like(others)
    models = len(rules) * (steps.origin(parts, chunk.state.variables),)
    return Averages(table, weights, models, messages, sums, extremes, chunk.state.clients)


def split_schedule(schedule: Schedule, num_clients: int) -> tuple[dict[str, Tree], Array]:
    """Returns the fields of a schedule that differ between client chunks, and the clients' positions in the cohort.

    The last client chunk is padded with dummy clients: id and state row N, zero steps, `participating` False. Writes to
    row N are dropped; reads are clamped and ignored.

    Returns:
        Fields by name, leaves [chunks, H, ...]; and positions, int32 [chunks, H].
    """
    num_chunks, size = len(schedule.plan.length), lane_plan.client_chunk_size(schedule.plan)
    num_dummies = num_chunks * size - len(schedule.clients)

    def chunks(field, value):
        widths = [(0, num_dummies), *[(0, 0)] * (field.ndim - 1)]
        padded = jnp.pad(field, widths, constant_values=value)
        return padded.reshape(num_chunks, size, *field.shape[1:])

    fields: dict[str, Tree] = {
        name: chunks(getattr(schedule, name), num_clients if name in NUMBERS else 0)
        for name in BY_CLIENT
        if getattr(schedule, name) is not None
    }
    positions = jnp.arange(num_chunks * size, dtype=jnp.int32).reshape(num_chunks, size)
    return fields | {"plan": schedule.plan}, positions


def _merge(
    parts: RoundParts, earlier: Averages, of_chunk: Averages, chunk: RoundInputs
) -> Averages:
    """Merges a client chunk's means and sums into the running ones.

    Args:
        parts: the static parts of the round.
        earlier: the clients before this client chunk.
        of_chunk: this client chunk's means and sums; its table and weights already cover `earlier` too.
        chunk: the arrays of the client chunk.
    """
    is_earlier = jnp.arange(len(of_chunk.table.participating), dtype=jnp.int32) < chunk.positions[0]
    theta, weights = steps.origin(parts, chunk.state.variables), of_chunk.weights
    factors = jax.tree.map(lambda w: jnp.where(is_earlier, w, 0).sum(), weights)
    moves = [tree.sub(m, theta) for m in earlier.model]
    models = tuple(map(tree.scale_tensors, factors, moves))
    messages = tuple(map(tree.scale_tensors, parts.algorithm_part(factors), earlier.messages))
    return of_chunk._replace(
        model=tree.add(of_chunk.model, models),
        messages=tree.add(of_chunk.messages, messages),
        message_sums=tree.add(earlier.message_sums, of_chunk.message_sums),
    )


def _terms(parts: RoundParts, variables: Variables) -> tuple[Term, ...]:
    """Returns the terms; the sum of their weighted means is the global model. Raises as `run_chunks`."""
    dtype = tree.dtype(variables)
    if dtype != tree.wide_dtype(variables):
        raise UsageError(
            f"--client-chunk needs parameters in float32 or float64; got {dtype}: use --client-chunk 0"
        )
    if parts.aggregate is not robust.weighted_mean:
        raise UsageError(
            "a robust rule needs all models of a cohort at once; use --client-chunk 0 or robust.weighted_mean"
        )
    if not parts.weighting.terms:
        raise UsageError(
            "--client-chunk needs a weighting with terms; use --client-chunk 0, or samples, uniform or fedvg"
        )
    return parts.weighting.terms
