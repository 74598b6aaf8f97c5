"""Named settings: presets of `--dataset NAME`, and the shorthands `--method NAME` and `--fidelity NAME`."""

from __future__ import annotations

from fedvg_jax.config.methods import ALGORITHMS, SETTINGS
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

_IN_PAPER = {
    name: {dotted: setting.default for dotted, setting in SETTINGS.items() if dotted.startswith(f"{name}.")}
    for name, facts in ALGORITHMS.items()
    if facts.is_in_paper
}

METHODS: dict[str, dict] = (
    {name: {"algorithm": name, "weighting": "native", **settings} for name, settings in _IN_PAPER.items()}
    | {"fedvg": {"algorithm": "fedavg", "weighting": "fedvg"}}
    | {f"{name}+fedvg": {"algorithm": name, "weighting": "fedvg", **settings} for name, settings in _IN_PAPER.items()}
    | {"fedavg+fedvg": {"algorithm": "fedavg", "weighting": "samples+fedvg"}}
)
"""Method of the paper -> its settings, with the hyperparameters of the appendix, which are the defaults."""

FIDELITY: dict[str, dict] = {"corrected": {}, "official": fidelity.official_settings()}
"""Value of `--fidelity` -> settings. official is the published code where it departs from the papers."""

SHORTHANDS = {"method": METHODS, "fidelity": FIDELITY}
"""Flag -> its names -> settings. Later flags override earlier ones."""

DESCRIPTIONS = {
    "method": "Algorithm A, weighting W, or both, with the hyperparameters of the paper."
    " A: with the weights of its own paper. W: FedAvg with the weights of W."
    " A+W: algorithm A with the weights of W."
    " fedavg+fedvg: the mean of both weights.",
    "fidelity": "Behaviour where the published code departs from the papers."
    " corrected follows the papers, official the published code.",
}
"""Shorthand -> its entry in help."""


def dataset_preset(name: str) -> dict:
    """Returns the preset of a data set; empty for an unknown one.

    >>> dataset_preset("covid19")["clients"], dataset_preset("tfds:mnist")["model"], dataset_preset("nosuch")
    (20, 'lenet5', {})
    """
    return _OWN if name.startswith(tuple(OUTSIDE)) else DATASETS.get(name.lower(), {})
