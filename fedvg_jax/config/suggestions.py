"""Suggestions for mistyped names of settings and values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable

MOST_LISTED = 30
"""A message lists all allowed names where there are fewer than this."""

OTHER_WORDS: dict[str, tuple[str, ...]] = {
    "lr": ("learning_rate", "client_lr", "local_lr", "eta", "eta_l", "step_size", "rate"),
    "local_epochs": ("epochs", "epoch", "num_epochs", "n_epochs", "num_local_epochs", "e"),
    "batch_size": ("batch", "batchsize", "minibatch", "minibatch_size", "bs", "b"),
    "clients": ("num_clients", "n_clients", "client", "num_users", "users", "n_parties", "parties", "k", "n"),
    "rounds": ("num_rounds", "n_rounds", "communication_rounds", "comm_rounds", "global_rounds", "global_epochs", "t"),
    "join_ratio": (
        "fraction",
        "client_fraction",
        "frac",
        "fraction_fit",
        "sample_rate",
        "participation",
        "sampling",
        "c",
    ),
    "optimiser": ("optimizer", "client_optimizer", "opt"),
    "normalise": ("normalize", "normalization", "normalisation"),
    "norm": ("norm_layer", "normalization_layer"),
    "augment": ("augmentation", "data_augmentation"),
    "weight_decay": ("wd", "l2", "decay"),
    "lr_schedule": ("scheduler", "lr_scheduler", "schedule"),
    "lr_decay": ("gamma", "learning_rate_decay"),
    "seed": ("random_seed", "random_state", "rng_seed", "manual_seed"),
    "eval_every": ("eval_interval", "eval_frequency", "eval_freq", "evaluate_every", "test_every", "eval_gap"),
    "checkpoint_every": ("save_every", "save_interval", "checkpoint_interval"),
    "out": ("output", "output_dir", "out_dir", "outdir", "log_dir", "logdir", "run_dir", "save_dir", "workdir"),
    "data_dir": ("data", "data_path", "datadir", "data_root", "root", "dataset_dir", "dataset_path"),
    "dataset": ("data_set", "dataset_name"),
    "model": ("arch", "architecture", "network", "net", "backbone", "model_name"),
    "max_rows": ("max_samples", "num_samples", "limit", "subset", "max_train_samples", "num_images", "data_fraction"),
    "track": ("logger", "tracker", "tracking", "report_to", "wandb", "tensorboard", "mlflow", "log_to"),
    "group_column": ("writer", "user_column", "client_column", "natural_id", "partition_by"),
    "pretrained": ("weights_file", "init_weights", "checkpoint"),
    "algorithm": ("strategy", "alg", "algo", "server", "federated_algorithm"),
    "weighting": ("aggregation", "aggregator", "weights", "weight"),
    "partition": ("split_method", "partitioner", "iid", "non_iid", "noniid", "distribution"),
    "alpha": ("dirichlet", "dirichlet_alpha", "concentration", "diralpha", "dir_alpha"),
    "partition_seed": ("data_seed", "split_seed"),
    "dropout": ("drop_rate", "client_dropout", "dropout_rate", "client_drop_rate"),
    "devices": ("device", "gpu", "gpus", "num_gpus", "num_devices", "cuda"),
    "precision": ("dtype", "mixed_precision", "amp", "fp16", "bf16"),
    "val_ratio": ("validation_ratio", "validation_split", "val_split", "val_size", "val_fraction"),
    "test_ratio": ("test_split", "test_size", "test_fraction"),
    "fedvg.granularity": ("layerwise", "blockwise", "modelwise"),
    "fedprox.mu": ("mu", "proximal_mu", "prox_mu"),
    "fedavgm.momentum": ("server_momentum",),
    "fedopt.lr": ("server_lr", "server_learning_rate", "global_lr"),
    "scaffold.eta_g": ("global_learning_rate",),
    "attack.kind": ("attack",),
    "robust.rule": ("robust", "defense", "defence"),
    "corrupt.kind": ("corrupt", "corruption", "label_noise"),
}
"""Setting -> names that other libraries use for it, spelt too differently to be found by likeness."""


def suggestion(name: str, allowed: Iterable[str]) -> str:
    """Returns the end of an error message about a mistyped name.

    Args:
        name: the mistyped name.
        allowed: the names that exist.

    Returns:
        "; did you mean ...?" where a name is close, and the allowed names where these are few.

    >>> suggestion("fedgv", ["fedvg", "samples"])
    "; did you mean 'fedvg'? (allowed: fedvg, samples)"
    """
    names = list(allowed)
    if several := several_values(name, lambda part: part in names):
        return f"; {several}"
    close = closest(name, names)
    listed = (
        f"allowed: {', '.join(names)}" if len(names) < MOST_LISTED else "python -m fedvg_jax.sim --help-all lists all"
    )
    if not close:
        return f"; {listed}"
    return f"; did you mean '{close}'?" + (f" ({listed})" if len(names) < 10 else "")


def several_values(text: str, is_value: Callable[[str], bool]) -> str:
    """Returns what to do with values that are joined by commas, or a range of seeds; "" for another text.

    >>> several_values("0.1,0.5", str.isdecimal), several_values("3,4", str.isdecimal)
    ('', 'several values are for python -m fedvg_jax.sweep, separated by spaces: 3 4')
    """
    parts = [part.strip() for part in re.split("[,:]", text)]
    if len(parts) < 2 or not all(map(is_value, parts)):
        return ""
    shown = text if "," not in text else " ".join(parts)
    return f"several values are for python -m fedvg_jax.sweep, separated by spaces: {shown[:100]}"


def closest(name: str, allowed: Iterable[str]) -> str | None:
    """Returns the allowed name that a mistyped one probably stands for, or None.

    In this order: a usual synonym, the same name within a group of settings, the most similar spelling.

    >>> names = ["lr", "fedvg.granularity", "fedvg.norm", "norm"]
    >>> [closest(name, names) for name in ("learning-rate", "granularity", "fedvg.nrom", "x")]
    ['lr', 'fedvg.granularity', 'fedvg.norm', None]
    """
    names = list(allowed)
    plain = name.lower().replace("-", "_")
    last = plain.rpartition(".")[2]
    synonym = next((setting for setting, words in OTHER_WORDS.items() if setting in names and plain in words), None)
    in_group = [setting for setting in names if setting.rpartition(".")[2] == last]
    similar = difflib.get_close_matches(plain, names, n=1) or difflib.get_close_matches(name, names, n=1)
    return synonym or (in_group[0] if len(in_group) == 1 else None) or (similar[0] if similar else None)
