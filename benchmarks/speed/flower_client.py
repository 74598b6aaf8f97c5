"""What a node of the contestant "flower" computes, in an actor of Ray: see `flower_peer`."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.speed import peers

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Trains and scores the client of a node. The node's number is the client's position in the cohort."""
    config, client = message.content["config"], int(context.node_config["partition-id"])
    peer = contestant(config["folder"], config["exact"])
    rounds = peer.workload.rounds
    batches = rounds[(config["server-round"] - 1) % len(rounds)][client][: config["steps"] or None]
    received = {
        name: torch.from_numpy(array.numpy().copy())
        for name, array in message.content["arrays"].items()
    }
    (params, _), score = peer.train_and_score(batches, (received, {}))
    weight = 1 / (score + peer.workload.settings["eps"])
    arrays = ArrayRecord({name: as_array(tensor) for name, tensor in params.items()})
    metrics = MetricRecord({"weight": weight, "client": client})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def as_array(tensor: torch.Tensor) -> Array:
    """Returns a tensor as an array of Flower's."""
    return Array(tensor.detach().numpy())


@functools.cache
def contestant(folder: str, exact: bool) -> peers.Lean:
    """Returns the functions of a client, for an actor on one core."""
    torch.set_num_threads(1)
    workload = peers.read(Path(folder))
    return peers.Lean(peers.to_float64(workload) if exact else workload)
