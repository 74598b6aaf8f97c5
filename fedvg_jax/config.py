"""Every setting, as one frozen tree whose defaults are the digits demonstration. No jax and no command line here.

A TOML file holds the same names: top-level keys for `Config`, a `[table]` for a nested group such as `[fedvg]`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedvg_jax.types import UsageError

DATASETS = ("digits", "cifar10", "npz")
MODELS = ("mlp", "tinycnn", "cnn", "lenet5")
ALGORITHMS = ("fedavg",)
WEIGHTINGS = ("samples", "uniform", "fedvg")
PARTITIONS = ("dirichlet", "official")
MIN_SAMPLES_RULES = ("redraw", "top_up")
CONVS = ("auto", "lax", "gemm")
NORMS = ("l1", "l2")
GRANULARITIES = ("modelwise", "layerwise", "blockwise")
SCORING_MODES = ("train", "eval")


@dataclass(frozen=True)
class FedVG:
    """FedVG's weights: inverse norms of each client's gradient on the shared validation set."""

    norm: str = "l1"
    """Norm of a tensor's gradient: l1 (published) or l2."""
    granularity: str = "modelwise"
    """One weight per client (modelwise), per tensor (layerwise) or per block (blockwise)."""
    eps: float = 1e-8
    """Added to the norm before it is inverted."""
    mode: str = "train"
    """BatchNorm while scoring: train (published: statistics of each batch) or eval (running statistics)."""


@dataclass(frozen=True)
class Config:
    """One federated run."""

    dataset: str = "digits"
    """Data set: digits (built in), cifar10, or npz (any .npz of arrays)."""
    data_dir: Path | None = None
    """Folder (or file) with the raw data set."""
    model: str = "mlp"
    """Model: mlp, tinycnn (for 8x8 images), cnn (two 5x5 convolutions), lenet5 (with BatchNorm)."""
    algorithm: str = "fedavg"
    """Federated algorithm: fedavg."""
    weighting: str = "fedvg"
    """Aggregation weights: samples (n_k/N), uniform, fedvg, or a mean of two such as samples+fedvg."""
    alpha: float = 0.05
    """Dirichlet concentration of the clients' labels: small is skewed."""
    clients: int = 20
    """Number of clients N."""
    join_ratio: float = 0.5
    """Share of the clients sampled each round, in (0, 1]."""
    rounds: int = 100
    """Rounds of federated training."""
    local_epochs: int = 5
    """Epochs each client trains per round."""
    batch_size: int = 32
    """Minibatch size, for training and for scoring."""
    lr: float = 0.2
    """Client learning rate (SGD)."""
    seed: int = 0
    """Seed of the model, the cohorts and the minibatches."""
    partition: str = "dirichlet"
    """How clients get their rows: dirichlet (bulk draws) or official (the published stream, draw for draw)."""
    partition_seed: int = 42
    """Seed of the partition, kept apart from the run's seed."""
    min_samples: int = 10
    """Fewest rows a client may hold, before its own split."""
    min_samples_rule: str = "redraw"
    """When a draw leaves a client too few rows: redraw (published), or top_up from the largest client."""
    test_ratio: float = 0.25
    """Share of every client's rows that joins the test set."""
    val_ratio: float = 0.1
    """Share of every client's rows that joins the shared validation set."""
    eval_every: int = 5
    """Evaluate every so many rounds, and after the last."""
    lanes: str = "auto"
    """Clients trained side by side: auto, a number, or all (one vmap over the cohort)."""
    conv: str = "auto"
    """Convolution: gemm (live-tap patches and one matmul), lax (XLA's own), or auto (by platform and size)."""
    out: Path | None = None
    """Run folder; default runs/<time>-<method>."""
    cache_dir: Path | None = None
    """Decoded data, partitions and compiled programs; default $FEDVG_CACHE_DIR or ~/.cache/fedvg_jax."""
    config: Path | None = None
    """TOML file of settings; the command line overrides it."""
    fedvg: FedVG = field(default_factory=FedVG)


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
            raise UsageError(f"{source}: unknown setting '{name}'{suggestion(name, known)}")
        config = _replaced(config, name.split("."), value, f"{source}: {name}")
    return config


def read_toml(path: Path) -> dict[str, Any]:
    """Settings of a TOML file by dotted name."""
    try:
        return _dotted(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the config file {path}: {_reason(error)}; check --config") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None


def to_json(config: Config) -> dict[str, Any]:
    """The settings as plain JSON values, nested as in the dataclasses."""
    return {k: _plain(v) for k, v in dataclasses.asdict(config).items()}


def suggestion(name: str, known: Iterable[str]) -> str:
    """'; did you mean ...?' for a mistyped name, and what is allowed where that is a short list."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    allowed = f"allowed: {', '.join(known)}"
    if not close:
        return f"; {allowed}"
    return f"; did you mean '{close[0]}'?" + (f" ({allowed})" if len(known) < 10 else "")


def check(config: Config) -> Config:
    """`config` itself, or a UsageError for the first setting out of range."""
    for name, allowed in _NAMES.items():
        _one_of(name, flatten(config)[name], allowed)
    for part in config.weighting.split("+"):
        _one_of("weighting", part, WEIGHTINGS)
    _require(config.weighting.count("+") <= 1, "weighting", config.weighting, "one name or the mean of two, a+b")
    for name, (holds, allowed) in _RANGES.items():
        value = flatten(config)[name]
        _require(not (isinstance(value, float) and math.isnan(value)) and holds(value), name, value, allowed)
    _require(
        config.test_ratio + config.val_ratio < 1,
        "test_ratio + val_ratio",
        config.test_ratio + config.val_ratio,
        "below 1, so that rows are left to train on",
    )
    _require(
        config.lanes in ("auto", "all") or (config.lanes.isdecimal() and int(config.lanes) > 0),
        "lanes",
        config.lanes,
        "auto, all, or a number >= 1",
    )
    return config


def default_cache_dir() -> Path:
    """Where decoded data, partitions and compiled programs are kept unless `cache_dir` says otherwise."""
    return Path(os.environ.get("FEDVG_CACHE_DIR") or Path.home() / ".cache" / "fedvg_jax")


def method_name(config: Config) -> str:
    """Algorithm and weighting in a name fit for a folder."""
    return f"{config.algorithm}-{config.weighting}"


def cohort_size(config: Config) -> int:
    """K = max(1, floor(N * join ratio)), as published."""
    return max(1, int(config.clients * config.join_ratio))


_NAMES = {
    "dataset": DATASETS,
    "model": MODELS,
    "algorithm": ALGORITHMS,
    "partition": PARTITIONS,
    "min_samples_rule": MIN_SAMPLES_RULES,
    "conv": CONVS,
    "fedvg.norm": NORMS,
    "fedvg.granularity": GRANULARITIES,
    "fedvg.mode": SCORING_MODES,
}

_RANGES: dict[str, tuple[typing.Callable[[Any], bool], str]] = {
    "alpha": (lambda v: 0 < v < math.inf, "> 0; 0.05 is very skewed, 100 almost even"),
    "clients": (lambda v: v >= 1, ">= 1"),
    "join_ratio": (lambda v: 0 < v <= 1, "in (0, 1]"),
    "rounds": (lambda v: v >= 1, ">= 1"),
    "local_epochs": (lambda v: v >= 1, ">= 1"),
    "batch_size": (lambda v: v >= 2, ">= 2 (a batch of one row is skipped)"),
    "lr": (lambda v: 0 < v < math.inf, "> 0"),
    "seed": (lambda v: 0 <= v < 2**32, "in [0, 2**32)"),
    "partition_seed": (lambda v: 0 <= v < 2**32, "in [0, 2**32)"),
    "min_samples": (lambda v: v >= 1, ">= 1"),
    "test_ratio": (lambda v: 0 < v < 1, "in (0, 1)"),
    "val_ratio": (lambda v: 0 < v < 1, "in (0, 1)"),
    "eval_every": (lambda v: v >= 1, ">= 1"),
    "fedvg.eps": (lambda v: 0 < v < math.inf, "> 0"),
}


def _one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise UsageError(f"unknown {name} '{value}'{suggestion(value, allowed)}")


def _require(holds: bool, name: str, value: Any, allowed: str) -> None:
    if not holds:
        raise UsageError(f"{name} must be {allowed}; got {value}")


def _replaced(group: Any, path: list[str], value: Any, where: str) -> Any:
    name, *rest = path
    if rest:
        return dataclasses.replace(group, **{name: _replaced(getattr(group, name), rest, value, where)})
    return dataclasses.replace(group, **{name: _typed(typing.get_type_hints(type(group))[name], value, where)})


def _typed(hint: Any, value: Any, where: str) -> Any:
    """`value` as the field's type: an int may stand for a float and a string for a path, nothing else is converted."""
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, allowed) and (bool in allowed or not isinstance(value, bool)):
        return value
    if float in allowed and type(value) is int:
        return float(value)
    if Path in allowed and type(value) is str:
        return Path(value)
    if str in allowed and type(value) is int:
        return str(value)
    names = " or ".join(t.__name__ for t in allowed if t is not type(None))
    raise UsageError(f"{where} must be a {names}; got {value!r}")


def _dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= _dotted(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return str(value) if isinstance(value, Path) else value


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
