"""The server: FedVG, or Flower's own FedAvg or FedAdam, from the same initial model."""

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from digits import task
from fedvg_jax.integrations.flower import FedVG
from fedvg_jax.integrations.torch import validation_gradient

app = ServerApp()

SERVERS = {"fedavg": FedAvg, "fedadam": FedAdam}


class FedVGAdam(FedVG, FedAdam):
    """Flower's FedAdam, which steps from FedVG's mean."""


WEIGHTED = {"fedavg": FedVG, "fedadam": FedVGAdam}


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Trains, and writes the test accuracy of every round to the file `results`."""
    config = context.run_config
    num_clients = int(config["num-clients"])
    _, val, test = task.datasets(num_clients, float(config["alpha"]), int(config["seed"]))
    torch.manual_seed(int(config["seed"]))
    net = task.Net()
    nodes = {"min_train_nodes": num_clients, "min_available_nodes": num_clients}
    if config["strategy"] == "fedavg":
        strategy = SERVERS[config["server"]](**nodes)
    else:  # "fedvg", or "fedavg+fedvg", the mean of both weights
        strategy = WEIGHTED[config["server"]](
            validation_gradient(net, torch.nn.CrossEntropyLoss(), task.loader(val)),
            granularity=config["granularity"],
            with_samples=config["strategy"] == "fedavg+fedvg",
            **nodes,
        )

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": task.accuracy(net, test)})

    result = strategy.start(
        grid,
        ArrayRecord(net.state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
    accuracies = [record["accuracy"] for record in result.evaluate_metrics_serverapp.values()]
    weights = [list(weights.values()) for weights in getattr(strategy, "rounds", [])]
    if config["results"]:
        Path(config["results"]).write_text(json.dumps({"accuracy": accuracies, "weights": weights}))
