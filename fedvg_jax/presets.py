"""Settings that belong to a data set: what `--dataset NAME` alone selects, as settings by dotted name."""

from __future__ import annotations

DATASETS: dict[str, dict] = {
    "digits": {},
    "cifar10": {
        "model": "lenet5",
        "clients": 100,
        "join_ratio": 0.1,
        "rounds": 200,
        "local_epochs": 5,
        "batch_size": 32,
        "lr": 0.01,
        "eval_every": 20,
    },
    "npz": {"model": "lenet5", "clients": 20, "join_ratio": 0.25, "rounds": 200, "lr": 0.01, "eval_every": 20},
}
