"""Settings by name: what `--dataset NAME` alone selects, and the paper's thirteen methods for `--method NAME`."""

from __future__ import annotations

from fedvg_jax.paper import fidelity

_PAPER: dict = {
    "clients": 100,
    "join_ratio": 0.1,
    "rounds": 200,
    "local_epochs": 5,
    "batch_size": 32,
    "lr": 0.01,
    "eval_every": 20,
}
"""What all data sets of the paper share, unless a line below says otherwise."""

_OWN: dict = {"model": "lenet5", "clients": 20, "join_ratio": 0.25, "rounds": 200, "lr": 0.01, "eval_every": 20}
"""For a user's own images."""

DATASETS: dict[str, dict] = {
    "digits": {},
    "cifar10": _PAPER | {"model": "resnet18"},
    "cifar100": _PAPER | {"model": "resnet18"},
    "stl10": _PAPER | {"model": "resnet18"},
    "organamnist": _PAPER | {"model": "resnet18"},
    "tinyimagenet": _PAPER | {"model": "resnet50", "batch_size": 128, "momentum": 0.9},
    "covid19": _PAPER | {"model": "resnet50", "clients": 20, "join_ratio": 0.25},
    "dermamnist": _PAPER | {"model": "resnet50", "clients": 25, "join_ratio": 0.2},
    "npz": _OWN,
    "encoded": _OWN,
    "folder": _OWN,
}
"""The paper's table of hyper-parameters; CIFAR-100 and STL-10, which it does not train on, as CIFAR-10."""

NUM_IMAGES = {"cifar10": 60_000, "organamnist": 58_830, "tinyimagenet": 110_000, "covid19": 9_523, "dermamnist": 10_015}
"""Images the paper counts in each of its sets."""

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
    "official": fidelity.official_settings(),
}
"""What the published code does where it departs from the papers, for `--fidelity official`."""

SHORTHANDS = {"method": METHODS, "fidelity": FIDELITY}
"""Names that stand for several settings, by flag; the later ones win."""


def of_dataset(name: str) -> dict:
    """The settings of a data set alone; none of an unknown one.

    >>> of_dataset("covid19")["clients"], of_dataset("tfds:mnist")["model"], of_dataset("nosuch")
    (20, 'lenet5', {})
    """
    return _OWN if name.startswith("tfds:") else DATASETS.get(name, {})
