"""Named settings: presets of `--dataset NAME`, and the shorthands `--method NAME` and `--fidelity NAME`."""

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
"""Settings that the data sets of the paper share, unless a line below overrides them."""

_OWN: dict = {"model": "lenet5", "clients": 20, "join_ratio": 0.25, "rounds": 200, "lr": 0.01, "eval_every": 20}
"""Settings for a user's own images."""

_TEXT: dict = {
    "model": "gru",
    "partition": "group",
    "rounds": 30,
    "local_epochs": 2,
    "batch_size": 16,
    "optimiser": "adam",
    "lr": 0.005,
}
"""Settings for texts, whose clients are their authors."""

DATASETS: dict[str, dict] = {
    "digits": {},
    "breast_cancer": {"clients": 10, "min_samples_rule": "top_up", "rounds": 50, "lr": 0.2},
    "wine": {"clients": 5, "rounds": 50, "alpha": 0.5, "lr": 0.2},
    "iris": {"clients": 5, "rounds": 50, "alpha": 0.5, "lr": 0.2},
    "literature": _TEXT,
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
    "text": _TEXT,
}
"""Data set -> its preset. Those of the paper's data sets are its table of hyperparameters. The paper does not train on
CIFAR-100 and STL-10, which have the settings of CIFAR-10."""

OUTSIDE = {"tfds:": "tfds:NAME", "hf:": "hf:FOLDER"}
"""Prefix of data sets that other libraries prepare -> how such a name is written."""

BUILT_IN = ("digits", "breast_cancer", "wine", "iris", "literature")
"""Data sets that need no files."""

NUM_IMAGES = {"cifar10": 60_000, "organamnist": 58_830, "tinyimagenet": 110_000, "covid19": 9_523, "dermamnist": 10_015}
"""Number of images of each set in the paper."""

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
"""Method of the paper -> its settings, with the hyperparameters of the appendix."""

PERSONAL: dict[str, dict] = {
    "fedper": {"local": "^classifier/"},
    "fedrep": {"local": "^classifier/", "local_first": 0.5},
    "fedbn": {"local": r"(^|/)(bn\d|norm|downsample_1/|\w+Norm_\d)"},
}
"""Method with local tensors -> its settings: FedPer (Arivazhagan et al. 2019) and FedRep (Collins et al. 2021) keep the
head, FedBN (Li et al. 2021) the normalisation layers."""

LABELS = {"fedper": "FedPer", "fedrep": "FedRep", "fedbn": "FedBN", "fedvg": "FedVG"}
"""Method that is no algorithm -> its spelling in papers."""

FIDELITY: dict[str, dict] = {"corrected": {}, "official": fidelity.official_settings()}
"""Value of `--fidelity` -> settings. official is the published code where it departs from the papers."""

SHORTHANDS = {"method": METHODS, "fidelity": FIDELITY}
"""Flag -> its names -> settings. Later flags override earlier ones."""


def of_dataset(name: str) -> dict:
    """Returns the preset of a data set; empty for an unknown one.

    >>> of_dataset("covid19")["clients"], of_dataset("tfds:mnist")["model"], of_dataset("nosuch")
    (20, 'lenet5', {})
    """
    return _OWN if name.startswith(tuple(OUTSIDE)) else DATASETS.get(name.lower(), {})
