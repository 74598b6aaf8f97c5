"""Bytes that are sent between the server and the clients, from shapes alone.

    down   theta_g with its running statistics, and those leaves of the server's state that the algorithm's functions
           on the client read: Scaffold's c, not FedAvgM's momentum
    up     theta_k with its running statistics, the messages of `report`, and the result of `probe`

Every client of a cohort receives; one that drops out sends nothing. Tensors that stay with clients (`--local`) and
personal models are not sent. Weights are computed from the models, so scores are not sent. Sample counts, seeds and
configs are not counted. All N clients send what a weighting describes before the first round, which counts it; what an
algorithm describes stays on the client. Arrays keep their dtypes; of theta_k, `Algorithm.send` counts what it
sends. Every message counts, also one that the server could compute from theta_k: FedDyn's -delta_k, and FedNova's
delta_k / D_k except the number D_k.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedvg_jax.core import tree
from fedvg_jax.core.checks import dependencies
from fedvg_jax.core.tree import num_bytes
from fedvg_jax.core.types import (
    Algorithm,
    Anchor,
    Data,
    Hyper,
    Probe,
    SimState,
    Tree,
    Variables,
    Waited,
)
from fedvg_jax.engine import contracts, local_training
from fedvg_jax.runs.assemble.programs import Bound, key_of_shapes
from fedvg_jax.runs.experiment import Experiment
from fedvg_jax.runs.record.history import BYTES_DOWN, BYTES_UP, Record


class Traffic(NamedTuple):
    """Bytes of a round: of one client, and of the candidates of a selection that measures losses."""

    down: int = 0
    up: int = 0
    candidates_down: int = 0
    """of all candidates of a selection together that are not in the cohort: theta_g"""
    candidates_up: int = 0
    """of all candidates together: their losses"""
    described: int = 0
    """of all clients together, up, before the first round: what the weighting describes"""

    def entries(self, record: Record, waited: Waited | None = None) -> Record:
        """Returns the entries of a round's record; the first has what is sent before it.

        Args:
            record: of the round.
            waited: with a clock, how many clients were asked and have sent.

        >>> Traffic(10, 20).entries({"round": 2, "clients": [3, 1, 4], "dropped": [1]})
        {'bytes_down': 30, 'bytes_up': 40}
        """
        num_asked = len(record["clients"])
        num_sent = num_asked - len(record.get("dropped", ()))
        if waited:
            num_asked, num_sent = waited.num_asked, waited.num_sent
        described = self.described if record["round"] == 1 else 0
        down = num_asked * self.down + self.candidates_down
        up = num_sent * self.up + self.candidates_up + described
        return {BYTES_DOWN: down, BYTES_UP: up}


def round_traffic(
    experiment: Experiment, program: Any, state: SimState, data: Data, hyper: Hyper
) -> Traffic:
    """Returns what clients and candidates receive and send in a round; the algorithm's client functions are traced.

    Args:
        experiment: of the run.
        program: a `Program`, or a simulation, which has its fields.
        state: arrays or shapes; of client states any number of rows.
        data: arrays or shapes; its pool and its frozen tensors.
        hyper: of the run.
    """
    method, local = experiment.method, program.local
    arguments = (
        state.server,
        tree.entry_shapes(state.clients),
        state.variables,
        data.pool,
        tree.arrays(dict(hyper), tree.wide_dtype(state.variables)),
        data.base,
        tree.entry_shapes(data.described.algorithm),
    )
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arguments)
    algorithm = contracts.checked(program.algorithm, "algorithm")
    trace = functools.partial(_trace_client, algorithm, program.bind, method.server_stats, shapes)
    is_read, messages = program.cached(("traffic", *key_of_shapes(shapes)), trace)
    received = jax.tree.map(lambda leaf, used: used * num_bytes(leaf), state.server, is_read)
    params = jax.tree.structure(state.variables.params)

    def size(part: Tree) -> int:
        """Returns a sum of bytes; of a part with an entry for every tensor, local tensors do not count."""
        try:  # FedNova's message has a pair for every tensor
            of_tensors = [jax.tree.leaves(entry) for entry in params.flatten_up_to(part)]
        except ValueError:
            return sum(jax.tree.leaves(part))
        return sum(jax.tree.leaves(local.sent(params.unflatten(map(sum, of_tensors)))))

    model = num_bytes(state.variables) - num_bytes(local.select(state.variables))
    up = model + sum(size(jax.tree.map(num_bytes, message)) for message in messages)
    if send := program.algorithm.send:
        sent = local.sent(state.variables.params)
        up += send.num_bytes(sent) - num_bytes(sent)
    num_candidates = method.selection.num_candidates if method.selection else 0
    others = max(0, num_candidates - experiment.cohorts.size)
    described = num_bytes(data.described.weighting)
    return Traffic(model + size(received), up, others * model, 4 * num_candidates, described)


def _trace_client(
    algorithm: Algorithm, bind: Callable[[Tree], Bound], stats_too: bool, shapes: tuple
) -> tuple[Tree, tuple]:
    """Returns which leaves of the server's state the client functions read, and the shapes of what is sent."""

    def on_client(
        server: Tree,
        client: Tree,
        model: Variables,
        pool: Tree,
        hyper: Hyper,
        base: Tree,
        described: Tree,
    ) -> dict[str, Tree]:
        task = bind(base).task
        theta = model if stats_too else model.params
        memory = client.algorithm if isinstance(client, local_training.ClientState) else client
        anchor = Anchor(theta, server, memory, described)
        minibatch = tree.gather(pool, jnp.zeros(2, jnp.int32))
        received = tree.params_of(anchor)
        computed = [algorithm.correct(hyper, model.params, model.params, received)]
        if algorithm.loss is not None:
            computed.append(
                algorithm.loss(hyper, task, *model, *minibatch, jax.random.key(0), received)
            )
        after, *messages = algorithm.report(hyper, theta, anchor, jnp.ones((), tree.dtype(model)))
        probe = Probe(
            task, model, lambda i: minibatch, jnp.int32(1), jnp.int32(0), local_training.counted
        )
        measured = algorithm.probe(hyper, probe)
        sent = (*messages, measured if stats_too else tree.params_of(measured))
        return {"all": (computed, after, sent)}

    is_read, returned = dependencies(on_client, *shapes)
    return is_read["all"][0], returned["all"][2]
