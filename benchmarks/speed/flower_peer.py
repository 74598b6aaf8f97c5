"""The contestant "flower" of `rounds`: the same rounds in Flower's simulation engine, with its Ray backend.

    python -m benchmarks.speed.flower_peer --folder DIR --threads N

Needs `flwr[simulation]` and `torch`. `rounds` starts it and sends it requests, see `contest`; `ours` has written the
workload to DIR. A node is a client of the cohort, each on one core, and N work at a time. Clients train and score by
the functions of the contestant "lean", so that what differs is the engine; Flower's FedAvg averages their models by
`weighted_by_key`. Starting Ray and its actors, and each actor's first round, are not timed.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.speed import contest, torch_nets
from benchmarks.speed.flower_client import as_array, client_app, contestant


class Recorded(FedAvg):
    """FedAvg that waits for all of `nodes` and keeps the replies and the time of every round."""

    def __init__(self, nodes: int) -> None:
        super().__init__(
            fraction_evaluate=0.0,
            min_train_nodes=nodes,
            min_available_nodes=nodes,
            weighted_by_key="weight",
        )
        self.replies: list[Any] = []
        self.times: list[float] = []

    def aggregate_train(self, server_round, replies):
        """Aggregates as FedAvg does."""
        replies = list(replies)
        result = super().aggregate_train(server_round, replies)
        self.replies = sorted(
            (reply.content for reply in replies), key=lambda content: content["metrics"]["client"]
        )
        self.times.append(time.perf_counter())
        return result


def simulate(
    folder: Path, threads: int, rounds: int, exact: bool = False, steps: int = 0
) -> tuple[Recorded, ArrayRecord]:
    """Runs rounds from the initial model; returns the strategy and the global model.

    Args:
        folder: with the workload.
        threads: clients that train at a time.
        rounds: number of rounds.
        exact: whether in float64.
        steps: local steps of every client; 0 for all.
    """
    workload = contestant(str(folder), exact).workload
    nodes = len(workload.rounds[0])
    strategy, result, server_app = Recorded(nodes), [], ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        start = ArrayRecord({name: as_array(tensor) for name, tensor in workload.params.items()})
        config = ConfigRecord({"folder": str(folder), "exact": exact, "steps": steps})
        result.append(strategy.start(grid, start, num_rounds=rounds, train_config=config))

    of_client = {"num_cpus": 1, "num_gpus": 0.0}
    resources = {"client_resources": of_client, "init_args": {"num_cpus": threads}}
    run_simulation(server_app, client_app, nodes, backend_config=resources)
    return strategy, result[0].arrays


def check(folder: Path, threads: int) -> dict[str, np.ndarray]:
    """Returns the arrays of `peers.check`, all from Flower's engine."""
    settings = contestant(str(folder), False).workload.settings
    name, steps = settings["model"], settings["checked_steps"] or 0
    first, _ = simulate(folder, threads, 1, exact=True, steps=1)
    clients = [_as_arrays(name, "step", reply["arrays"]) for reply in first.replies]
    arrays = torch_nets.stacked(clients)
    for kind, exact in (("round", False), ("exact", True)):
        strategy, model = simulate(folder, threads, 1, exact, steps)
        arrays |= _as_arrays(name, kind, model)
        weights = np.array([reply["metrics"]["weight"] for reply in strategy.replies])
        arrays.setdefault("weights", weights / weights.sum())
    return arrays


def _as_arrays(name: str, kind: str, model: ArrayRecord) -> dict[str, np.ndarray]:
    """Returns Flower's arrays of a model as `torch_nets.as_arrays`."""
    tensors = {n: torch.from_numpy(array.numpy()) for n, array in model.items()}
    return torch_nets.as_arrays(name, kind, tensors)


def main(argv: list[str] | None = None) -> int:
    """Answers requests."""
    args = contest.parser(__doc__).parse_args(argv)
    rounds = len(contestant(str(args.folder), False).workload.rounds)
    versions = {name: importlib.metadata.version(name) for name in ("flwr", "ray")}
    about = {"threads": args.threads, "torch": torch.__version__, **versions}

    def time_rounds() -> dict[str, float]:
        strategy, _ = simulate(args.folder, args.threads, rounds + 1)
        return {"round": (strategy.times[-1] - strategy.times[0]) / rounds}

    contest.serve(
        args.folder,
        "flower",
        {"check": lambda: check(args.folder, args.threads)},
        time_rounds,
        about,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
