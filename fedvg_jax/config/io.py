"""Settings by dotted name, and the TOML files that hold them.

A file has the same names as `Config`: top-level keys, and a `[table]` for a nested group such as `[fedvg]`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedvg_jax.config.options import Config
from fedvg_jax.core.types import UsageError

LONG = 30
"""Names from which on a message does not list them all."""

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
"""Setting -> other usual words for it, which are spelt too differently to be recognised."""


MAX_FILE_SIZE = 2**20
"""Most characters of a file of settings; a device such as /dev/zero has no end."""

_GROUPS = {f.name for f in dataclasses.fields(Config) if dataclasses.is_dataclass(f.default_factory)}


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Settings by dotted name, e.g. {"alpha": 0.05, "fedvg.norm": "l1"}."""
    flat: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        nested = dataclasses.is_dataclass(value)
        flat |= flatten(value, f"{prefix}{f.name}.") if nested else {prefix + f.name: value}
    return flat


def apply(config: Config, settings: Mapping[str, Any], source: str) -> Config:
    """`config` with settings by dotted name; an unknown name or a wrong type is a UsageError naming `source`."""
    known = flatten(config)
    for name, value in settings.items():
        if name not in known:
            raise UsageError(f"{source}: unknown setting '{name[:100]}'{suggestion(name, known)}")
        config = _replaced(config, name.split("."), value, f"{source}: {name}")
    return config


def read_toml(path: Path) -> dict[str, Any]:
    """Settings of a TOML file by dotted name."""
    try:
        with path.open(encoding="utf-8") as file:  # a pipe, too, such as a shell's <(command)
            text = file.read(MAX_FILE_SIZE + 1)
        if len(text) > MAX_FILE_SIZE:
            raise UsageError(f"{path} is no file of settings: it has more than {MAX_FILE_SIZE:,} characters")
        return dotted(tomllib.loads(text))
    except UsageError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the config file {path}: {_reason(error)}; check --config") from None
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or brackets in brackets
        raise UsageError(f"{path} is not valid TOML: {error}") from None


def typed(config: Any) -> Config:
    """`config` with every value of its field's type, as a file or the command line would set it.

    A mapping stands for a group of settings, an int for a float, a string for a path, and a NumPy or JAX scalar for the
    number it holds.

    Raises:
        UsageError: a value of another type, or a group with an unknown name.
    """
    if not isinstance(config, Config):
        raise UsageError(f"config must be a fedvg_jax.Config; got {_shown(config)}")
    groups = {f.name: getattr(Config(), f.name) for f in dataclasses.fields(Config)}
    changed: dict[str, Any] = {}
    for name, default in groups.items():
        value = getattr(config, name)
        if not dataclasses.is_dataclass(default):
            changed[name] = _typed(_hints(Config)[name], value, f"Config: {name}")
        elif isinstance(value, Mapping):
            inner = {f"{name}.{key}": _scalar(v) for key, v in value.items()}
            changed[name] = getattr(apply(Config(), inner, "Config"), name)
        elif type(value) is type(default):
            hints = _hints(type(value)).items()
            inner = {key: _typed(hint, getattr(value, key), f"Config: {name}.{key}") for key, hint in hints}
            changed[name] = dataclasses.replace(value, **inner)
        else:
            raise UsageError(f"Config: {name} must be a {type(default).__name__} or a dict; got {_shown(value)}")
    return dataclasses.replace(config, **changed)


def suggestion(name: str, known: Iterable[str]) -> str:
    """'; did you mean ...?' for a mistyped name, and what is allowed where that is a short list."""
    known = list(known)
    close = closest(name, known)
    allowed = f"allowed: {', '.join(known)}" if len(known) < LONG else "python -m fedvg_jax.sim --help lists all"
    if not close:
        return f"; {allowed}"
    return f"; did you mean '{close}'?" + (f" ({allowed})" if len(known) < 10 else "")


def closest(name: str, known: Iterable[str]) -> str | None:
    """The name meant: another usual word for it, the same word in its group, or the one spelt most alike; or None.

    >>> names = ["lr", "fedvg.granularity", "fedvg.norm", "norm"]
    >>> [closest(name, names) for name in ("learning-rate", "granularity", "fedvg.nrom", "x")]
    ['lr', 'fedvg.granularity', 'fedvg.norm', None]
    """
    known = list(known)
    plain = name.lower().replace("-", "_")
    last = plain.rpartition(".")[2]
    usual = next((setting for setting, words in OTHER_WORDS.items() if setting in known and plain in words), None)
    in_group = [setting for setting in known if setting.rpartition(".")[2] == last]
    alike = difflib.get_close_matches(plain, known, n=1) or difflib.get_close_matches(name, known, n=1)
    return usual or (in_group[0] if len(in_group) == 1 else None) or (alike[0] if alike else None)


def _replaced(group: Any, path: list[str], value: Any, where: str) -> Any:
    name, *rest = path
    if rest:
        return dataclasses.replace(group, **{name: _replaced(getattr(group, name), rest, value, where)})
    return dataclasses.replace(group, **{name: _typed(_hints(type(group))[name], value, where)})


@functools.cache
def _hints(group: type) -> dict[str, Any]:
    return typing.get_type_hints(group)


def _scalar(value: Any) -> Any:
    """The Python number of a NumPy or JAX scalar; anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def _typed(hint: Any, value: Any, where: str) -> Any:
    """`value` as the field's type: an int may stand for a float and a string for a path, nothing else is converted."""
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if not isinstance(value, allowed):
        value = _scalar(value)
    if isinstance(value, allowed) and (bool in allowed or not isinstance(value, bool)):
        return value
    if float in allowed and type(value) is int and abs(value) < 2**1000:
        return float(value)
    if Path in allowed and type(value) is str:
        return Path(value)
    if str in allowed and type(value) is int:
        return str(value)
    names = " or ".join(t.__name__ for t in allowed if t is not type(None))
    raise UsageError(f"{where} must be a {names}; got {_shown(value)}")


def _shown(value: Any) -> str:
    """Python refuses to write an int of thousands of digits."""
    return "a number too large" if type(value) is int and abs(value) >= 2**1000 else repr(value)[:100]


def dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings of nested tables by dotted name. An empty table that is no group stays a value, which no setting has.

    >>> dotted({"lr": 0.1, "fedvg": {"norm": "l2"}, "fedprox": {}, "rounds": {}})
    {'lr': 0.1, 'fedvg.norm': 'l2', 'rounds': {}}
    """
    flat: dict[str, Any] = {}
    for name, value in table.items():
        is_table = isinstance(value, dict) and (value or prefix + name in _GROUPS)
        flat |= dotted(value, f"{prefix}{name}.") if is_table else {prefix + name: value}
    return flat


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
