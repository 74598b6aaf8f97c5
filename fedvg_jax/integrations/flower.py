"""FedVG as a strategy of Flower's message API (`flwr.serverapp.strategy`).

    strategy = FedVG(validation_gradient(model, loss, loader))
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=10)

Clients reply as in Flower's FedAvg: a reply to a train message has one ArrayRecord, and one MetricRecord with the
number of training examples. The server measures every reply on D_val; clients need nothing new.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict  # pyright: ignore[reportMissingImports]
from flwr.serverapp import Grid  # pyright: ignore[reportMissingImports]
from flwr.serverapp.strategy import FedAvg  # pyright: ignore[reportMissingImports]

from fedvg_jax.core import checks
from fedvg_jax.integrations import named_arrays
from fedvg_jax.integrations.named_arrays import Arrays

__all__ = ["FedVG"]


class FedVG(FedAvg):
    """Averages the clients' replies with weights that are measured on the server's D_val.

    Another strategy may step from FedVG's mean, which it gets as the only reply:

        class FedVGAdam(FedVG, FedAdam): ...

    Args:
        gradient: the floating arrays of a model -> gradient of its loss on D_val, by name of the trained tensors;
            `integrations.torch.validation_gradient` makes one.
        granularity: "modelwise", "layerwise" or "blockwise".
        norm: "l1" (published) or "l2".
        eps: added to each norm before it is inverted.
        block_of: name of a tensor -> name of its block, for blockwise weights; by default its first
            component, such as "layer1".
        with_samples: whether weights are the mean of FedVG's and FedAvg's, the paper's FedAvg + FedVG.
        **options: arguments of Flower's strategy, such as `fraction_train`.

    Attributes:
        rounds: for every round so far, id of a client -> its weight, averaged over the trained tensors; 0 for a client
            with a model or a gradient that is not finite.
    """

    def __init__(
        self,
        gradient: named_arrays.Gradient,
        *,
        granularity: str = "modelwise",
        norm: str = "l1",
        eps: float = 1e-8,
        block_of: Callable[[str], str] | None = None,
        with_samples: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.rounds: list[dict[int, float]] = []
        self._gradient = gradient
        self._weigh = functools.partial(
            named_arrays.inverse_norm_weights,
            granularity=granularity,
            norm=norm,
            eps=eps,
            block_of=block_of,
        )
        self._with_samples = with_samples
        self._model: Arrays = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Returns the train messages of Flower's strategy."""
        self._model = _to_numpy(arrays)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Returns the next global model and the aggregated metrics; neither if no client is finite.

        Raises:
            UsageError: a reply or a gradient has other arrays than the model.
        """
        valid, _ = self._check_and_log_replies(replies, is_train=True)
        clients = [_to_numpy(_first(reply.content.array_records)) for reply in valid]
        nodes = [reply.metadata.src_node_id for reply in valid]
        for node, client in zip(nodes, clients, strict=True):
            checks.expect(client, self._model, f"reply of node {node}", any_float=True)
        gradients = list(map(self._measure, clients))
        if not any(map(_is_finite, gradients)):
            return None, None
        weights = self._weigh(gradients, self._model)
        key = self.weighted_by_key
        metrics = [_first(reply.content.metric_records) for reply in valid]
        mean_weight = np.mean([weights[name] for name in gradients[0]], 0)
        if self._with_samples:
            sizes = np.array([metric[key] for metric in metrics]) * (mean_weight > 0)
            shares = sizes / sizes.sum()
            weights = {name: (w + shares) / 2 for name, w in weights.items()}
            mean_weight = (mean_weight + shares) / 2
        self.rounds.append(dict(zip(nodes, mean_weight.tolist(), strict=True)))
        mean = named_arrays.average(self._model, clients, weights)
        record = ArrayRecord({name: Array(array) for name, array in mean.items()})
        # one reply with a weight of 1 is the mean
        only = {self.arrayrecord_key: record, "metrics": MetricRecord({**metrics[0], key: 1})}
        message = Message(RecordDict(only), reply_to=valid[0])
        arrays, _ = super().aggregate_train(server_round, [message])
        # counters take no step, which would make them fractions
        counters = {n: record[n] for n, a in mean.items() if not named_arrays.is_floating(a)}
        contents = [valid[k].content for k in np.flatnonzero(mean_weight)]
        return ArrayRecord(dict(arrays or {}) | counters), self.train_metrics_aggr_fn(contents, key)

    def _measure(self, client: Arrays) -> Arrays:
        """Returns the gradient of a client's model, of NaN where the model is not finite."""
        floats = {name: a.copy() for name, a in client.items() if named_arrays.is_floating(a)}
        is_finite = _is_finite(floats)
        gradient = {name: np.asarray(tensor) for name, tensor in self._gradient(floats).items()}
        return gradient if is_finite else {n: np.full_like(a, np.nan) for n, a in gradient.items()}


def _first(records: Any) -> Any:
    return next(iter(records.values()))


def _to_numpy(record: ArrayRecord) -> Arrays:
    return {name: array.numpy() for name, array in record.items()}


def _is_finite(arrays: Arrays) -> bool:
    return all(np.isfinite(array).all() for array in arrays.values())
