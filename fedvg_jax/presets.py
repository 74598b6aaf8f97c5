"""Settings by name: what `--dataset NAME` alone selects, and the paper's thirteen methods for `--method NAME`."""

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

_ALGORITHMS: dict[str, dict] = {
    "fedavg": {},
    "fedavgm": {"fedavgm.momentum": 0.9, "fedavgm.lr": 1.0},
    "fedprox": {"fedprox.mu": 0.01},
    "scaffold": {"scaffold.eta_g": 1.0},
    "feddyn": {"feddyn.alpha": 0.1, "feddyn.clip": 10.0},
    "elastic": {"elastic.ratio": 0.3, "elastic.tau": 0.5, "elastic.mu": 0.95},
}

METHODS: dict[str, dict] = (
    {name: {"algorithm": name, "weighting": "native", **settings} for name, settings in _ALGORITHMS.items()}
    | {"fedvg": {"algorithm": "fedavg", "weighting": "fedvg"}}
    | {f"{name}+fedvg": {"algorithm": name, "weighting": "fedvg", **_ALGORITHMS[name]} for name in _ALGORITHMS}
    | {"fedavg+fedvg": {"algorithm": "fedavg", "weighting": "samples+fedvg"}}
)
"""The paper's names, with the hyper-parameters of its appendix."""

FIDELITY: dict[str, dict] = {
    "corrected": {},
    "official": {
        "partition": "official",
        "cohorts": "official",
        "server_stats": "official",
        "scaffold.steps": "single",
        "scaffold.memory": "lost",
        "feddyn.regulariser": "linear",
        "feddyn.weights": "samples",
        "feddyn.average": "once",
        "elastic.sensitivity": "official",
        "elastic.rows": "rest",
        "fedvg.block": "stage",
        "validation.imbalance": "official",
    },
}
"""What the published code does where it departs from the papers, for `--fidelity official`."""

SHORTHANDS = {"method": METHODS, "fidelity": FIDELITY}
"""Names that stand for several settings, by flag; the later ones win."""
