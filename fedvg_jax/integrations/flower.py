"""FedVG as a strategy of Flower's message API (`flwr.serverapp.strategy`).

    strategy = FedVG(gradient=validation_gradient(model, loss, loader))
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=10)

Clients reply as in Flower's FedAvg: a reply to a train message has one ArrayRecord, and one MetricRecord with the
number of training examples. The server measures every reply on D_val; clients need nothing new.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict  # pyright: ignore[reportMissingImports]
from flwr.serverapp import Grid  # pyright: ignore[reportMissingImports]
from flwr.serverapp.strategy import FedAvg, Strategy  # pyright: ignore[reportMissingImports]

from fedvg_jax.config import Config, check
from fedvg_jax.core.types import UsageError
from fedvg_jax.integrations import named_arrays
from fedvg_jax.integrations.named_arrays import Client, Gradient

__all__ = ["FedVG", "RoundOfWeights"]

NO_MEAN = {
    "Bulyan",
    "Krum",
    "MultiKrum",
    "FedMedian",
    "FedTrimmedAvg",
    "QFedAvg",
    "FedXgbBagging",
    "FedXgbCyclic",
}
"""Flower's strategies that replace the weighted mean of the replies, so that no weights of ours can reach it."""

log = logging.getLogger("flwr")


class RoundOfWeights(NamedTuple):
    """The weights of one round, in the order of `nodes`."""

    round: int
    """Flower's number of the round, from 1."""
    nodes: list[int]
    """ids of the K clients that replied."""
    weights: np.ndarray
    """[K] a client's weight averaged over the trained tensors; 0 for a client with anything non-finite."""
    scores: np.ndarray
    """[K] FedVG's G_k, or another weighting's score; NaN for a client with anything non-finite."""
    of_tensors: dict[str, np.ndarray]
    """name of a floating array -> [K]."""


class FedVG(Strategy):
    """Averages the clients' replies with weights that are measured on the server's D_val.

    Another strategy may do everything but the average: FedVG's mean then reaches it as the mean of the replies.

    Args:
        config: its `weighting` and `fedvg` are used, as `Config(weighting="samples+fedvg")` for FedAvg + FedVG or
            `Config(fedvg={"granularity": "layerwise"})`.
        gradient: the floating arrays of a model -> gradient of its loss on D_val, by name of the trained tensors;
            `integrations.torch.validation_gradient` makes one.
        block_of: name of a tensor -> name of its block, for blockwise weights; by default its first
            component, such as "layer1".
        server: a strategy derived from Flower's FedAvg, such as FedAdam, that samples the clients, aggregates metrics,
            and steps from the mean; by default `FedAvg(**options)`.
        seed: of the permutations of the weighting permuted(...).
        **options: arguments of Flower's FedAvg, such as `fraction_train`.

    Attributes:
        rounds: the `RoundOfWeights` of every round so far.

    Raises:
        UsageError: settings that cannot work together, or a server without a weighted mean.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        gradient: Gradient,
        block_of: Callable[[str], str] | None = None,
        server: FedAvg | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self.config = check(Config() if config is None else config)
        if self.config.algorithm != "fedavg":
            raise UsageError(
                f"FedVG got algorithm {self.config.algorithm}; Flower's strategy is the algorithm: leave it"
                " at fedavg and give server, such as flwr.serverapp.strategy.FedAvgM(...)"
            )
        self.server = _server(server, options)
        self.rounds: list[RoundOfWeights] = []
        self._seed = seed
        self._model: dict[str, np.ndarray] = {}
        self._scheme: named_arrays.Scheme | None = None
        self._make_scheme = functools.partial(
            named_arrays.make_scheme, self.config, gradient, block_of=block_of
        )

    def summary(self) -> None:
        """Logs the weighting, then what the server's strategy logs."""
        log.info(
            "\t├──> FedVG: weighting %s, %s", self.config.weighting, self.config.fedvg.granularity
        )
        self.server.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Returns the train messages of the server's strategy; the first call checks the weighting against the model.

        Raises:
            UsageError: the gradient, D_val or an option does not fit the model.
        """
        self._model = {name: array.numpy() for name, array in arrays.items()}
        if self._scheme is None or server_round == 1:  # where the strategy is started again
            self._scheme = self._make_scheme(model=self._model)
        return self.server.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Returns the next global model and the aggregated metrics; neither if no client can be weighed.

        Raises:
            UsageError: a reply has other records or arrays than expected.
        """
        if self._scheme is None:
            raise UsageError(
                "aggregate_train needs the global model; call configure_train, or start, first"
            )
        replies = _valid(replies)
        if not replies:
            return None, None
        key = self.server.weighted_by_key
        clients = [_client(reply, key) for reply in replies]
        shuffle = (
            np.random.default_rng([self._seed, server_round])
            .permutation(len(clients))
            .astype(np.int32)
        )
        weights = named_arrays.weigh(self._scheme, self._model, clients, shuffle)
        nodes = [reply.metadata.src_node_id for reply in replies]
        self.rounds.append(
            RoundOfWeights(server_round, nodes, weights.mean, weights.scores, weights.of_tensors)
        )
        for k in np.flatnonzero(~weights.participating):
            log.warning("FedVG: node %s has weight 0: its model or score is not finite", nodes[k])
        contents = [replies[k].content for k in np.flatnonzero(weights.participating)]
        if not contents:
            return None, None
        metrics = self.server.train_metrics_aggr_fn(contents, key)
        mean = named_arrays.average(self._model, [client.arrays for client in clients], weights)
        return self._server_step(server_round, replies[0], contents[0], mean), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Returns the evaluate messages of the server's strategy."""
        return self.server.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Returns what the server's strategy makes of the clients' evaluations."""
        return self.server.aggregate_evaluate(server_round, replies)

    def _server_step(
        self, server_round: int, reply: Message, content: RecordDict, mean: dict[str, np.ndarray]
    ) -> ArrayRecord | None:
        """Returns the model that the server's strategy makes of the mean.

        Args:
            server_round: number of the round.
            reply: any of the replies, for its metadata.
            content: of a participating client, for its metrics.
            mean: the weighted mean of the clients.
        """
        record = ArrayRecord({name: Array(array) for name, array in mean.items()})
        if type(self.server).aggregate_train is FedAvg.aggregate_train:
            return record
        # one reply with a weight of exactly 1 replaces all; a custom aggregation of metrics finds its own keys
        metrics = MetricRecord(dict(next(iter(content.metric_records.values()))))
        metrics[self.server.weighted_by_key] = 1
        only = RecordDict({self.server.arrayrecord_key: record, "metrics": metrics})
        log.info("FedVG: hands the weighted mean to %s as one reply", type(self.server).__name__)
        stepped = self.server.aggregate_train(server_round, [Message(only, reply_to=reply)])[0]
        # counters take no step, which would make them fractions
        counters = {name: record[name] for name, array in mean.items() if array.dtype.kind in "biu"}
        return None if stepped is None else ArrayRecord({**stepped, **counters})


def _server(server: FedAvg | None, options: Mapping[str, Any]) -> FedAvg:
    """Returns the strategy of the server.

    Raises:
        UsageError: it has no weighted mean of the replies, or options for FedAvg beside it.
    """
    if server is None:
        return FedAvg(**options)
    if options:
        raise UsageError(
            f"FedVG got server and {', '.join(options)}; give {', '.join(options)} to the server"
        )
    kind = type(server).__name__
    if not isinstance(server, FedAvg) or NO_MEAN & {base.__name__ for base in type(server).__mro__}:
        raise UsageError(
            f"FedVG got server {kind}; allowed are strategies that step from the weighted mean of the replies:"
            " FedAvg, FedAvgM, FedProx, FedAdagrad, FedAdam, FedYogi, and classes derived from them"
        )
    return server


def _valid(replies: Iterable[Message]) -> list[Message]:
    """Returns the replies without an error, and logs the others."""
    replies = list(replies)
    valid = [reply for reply in replies if not reply.has_error()]
    log.info(
        "aggregate_train: Received %s results and %s failures",
        len(valid),
        len(replies) - len(valid),
    )
    for reply in replies:
        if reply.has_error():
            log.info(
                "\t> Received error in reply from node %d: %s",
                reply.metadata.src_node_id,
                reply.error.reason,
            )
    return valid


def _client(reply: Message, key: str) -> Client:
    """Returns the arrays and the number of examples of a reply.

    Raises:
        UsageError: it has not exactly one record of each kind, or no such number.
    """
    arrays, metrics = reply.content.array_records, reply.content.metric_records
    node = reply.metadata.src_node_id
    if len(arrays) != 1 or len(metrics) != 1:
        counts = f"{len(arrays)} ArrayRecords and {len(metrics)} MetricRecords"
        raise UsageError(f"node {node} replied with {counts}; expected one of each")
    (metric,), (array,) = metrics.values(), arrays.values()
    count = metric.get(key)
    if not isinstance(count, int | float) or not 0 <= count < 2**31 or count != int(count):
        raise UsageError(
            f"node {node} replied with {key} {count}; expected its number of training examples"
        )
    return Client({name: value.numpy() for name, value in array.items()}, int(count))
