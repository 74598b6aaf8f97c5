"""Which settings a run uses: conditions of those that only some algorithms, weightings, partitions or models use.

A flag that the run does not use is refused. In a TOML file and in Python such settings are allowed, because the runs of
a sweep share them: config.json lists them under `unused`.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config.allowed import BUILT_IN
from fedvg_jax.config.io import flatten
from fedvg_jax.config.options import Config
from fedvg_jax.config.population import DRAWN_SIZES
from fedvg_jax.config.presets import OUTSIDE
from fedvg_jax.core.types import UsageError


class Condition(NamedTuple):
    """Condition on another setting, under which a setting is used."""

    setting: str
    """Dotted name of the other setting."""
    holds: Callable[[Config], bool]
    by: str
    """Values for which it holds, in words."""


def _is(setting: str, *values: str) -> Condition:
    value_of = operator.attrgetter(setting)
    return Condition(setting, lambda config: value_of(config) in values, " or ".join(values))


def _is_not(setting: str, value: str, by: str) -> Condition:
    value_of = operator.attrgetter(setting)
    return Condition(setting, lambda config: value_of(config) != value, by)


def _weighting(*rules: str) -> Condition:
    """Holds for one of the rules, alone, permuted, or in a mean."""
    return Condition("weighting", lambda config: any(rule in config.weighting for rule in rules), " or ".join(rules))


def _has_running_statistics(config: Config) -> bool:
    return config.model == "lenet5" or (config.model.startswith("resnet") and config.norm == "batch")


def _reads_eps(config: Config) -> bool:
    """Whether the weighting inverts a norm; the softmax link does not."""
    rule = config.weighting
    return "fedvg" in rule or "val_loss" in rule or ("generalised" in rule and config.fedvg.link == "inverse")


def _has_memories(config: Config) -> bool:
    """Whether anything is remembered of a client from one round to the next."""
    return config.algorithm in ("scaffold", "feddyn") or config.optimiser_state == "kept"


def _has_first_moment(config: Config) -> bool:
    """Whether the server has a first moment; FedAdagrad has one only in the published code."""
    is_official = config.algorithm == "fedadagrad" and config.fedopt.variant == "official"
    return is_official or config.algorithm in ("fedadam", "fedyogi")


_RESNET = Condition("model", lambda config: config.model.startswith("resnet"), "ResNets")
_CONVOLUTIONS = Condition(
    "model", lambda config: config.model in ("tinycnn", "cnn", "lenet5") or config.model.startswith("resnet"),
    "models with convolutions",
)  # fmt: skip
_RUNNING_STATISTICS = Condition(
    "model", _has_running_statistics, "models with BatchNorm: lenet5, ResNets of norm batch"
)
_HUB_SET = Condition("dataset", lambda config: config.dataset.startswith("hf:"), "sets hf:FOLDER")
_SIZED = ("organamnist", "dermamnist", "tinyimagenet", "covid19", "encoded", "folder")
_FEDVG = _weighting("fedvg", "generalised")
_NOT_DELTA = _is_not("fedvg.norm", "delta", "every other norm")
_GROUPED = _is("fedvg.granularity", "layerwise", "blockwise")
_ADAPTIVE = ("fedadam", "fedyogi", "fedadagrad")
_EXTERNAL = _is_not("validation.source", "clients", "external sources: cifar100, stl10, npz")
_CORRUPT = _is_not("corrupt.kind", "none", "every other kind")
_ATTACK = _is_not("attack.kind", "none", "every other kind")
_GENERALISED = _weighting("generalised")
_DIRICHLET = ("dirichlet", "official", "dirichlet_equal", "balanced_client", "quantity")

CONDITIONS: dict[str, tuple[Condition, ...]] = {
    "data_dir": (
        Condition("dataset", lambda c: c.dataset not in BUILT_IN, f"every other data set than {', '.join(BUILT_IN)}"),
    ),
    "image_size": (
        Condition(
            "dataset",
            lambda c: c.dataset in _SIZED or c.dataset.startswith(tuple(OUTSIDE)),
            ", ".join((*_SIZED, *OUTSIDE.values())),
        ),
    ),
    "splits": (_is("dataset", "dermamnist"),),
    **dict.fromkeys(("image_column", "label_column"), (_HUB_SET,)),
    "group_column": (_HUB_SET, _is("partition", "group")),
    "stem": (_RESNET,),
    "norm": (_RESNET,),
    "conv": (_CONVOLUTIONS,),
    "server_stats": (_RUNNING_STATISTICS,),
    "alpha": (_is("partition", *_DIRICHLET),),
    "shards_per_client": (_is("partition", "shards"),),
    "classes_per_client": (_is("partition", "classes"),),
    "partition_file": (_is("partition", "file"),),
    "export_form": (Condition("export_partition", lambda c: c.export_partition is not None, "a FILE"),),
    "min_samples_rule": (_is("partition", *DRAWN_SIZES),),
    "momentum": (_is("optimiser", "sgd"),),
    "optimiser_state": (
        Condition("momentum", lambda c: c.momentum > 0 or c.optimiser != "sgd", "momentum above 0, adam and adamw"),
    ),
    "memories": (Condition("algorithm", _has_memories, "scaffold, feddyn, or any with optimiser_state kept"),),
    "lr_decay": (_is("lr_schedule", "exponential"),),
    "checkpoint_every": (Condition("keep", lambda c: c.keep > 0, "1 or more"),),
    "fedvg.signal": (_FEDVG, _NOT_DELTA),
    "fedvg.norm": (_FEDVG,),
    "fedvg.layer": (_FEDVG,),
    "fedvg.include": (_FEDVG,),
    "fedvg.per_element": (_FEDVG,),
    "fedvg.granularity": (_FEDVG,),
    "fedvg.block": (_FEDVG, _is("fedvg.granularity", "blockwise"), _RESNET),
    "fedvg.eps": (Condition("weighting", _reads_eps, "fedvg, val_loss, or generalised of link inverse"),),
    "fedvg.mode": (_FEDVG, _NOT_DELTA, _is("fedvg.signal", "gradient")),
    "fedvg.stats": (_FEDVG, _GROUPED, _RUNNING_STATISTICS),
    "fedvg.fit_steps": (_weighting("fitted"),),
    "fedvg.fit_rate": (_weighting("fitted"),),
    **dict.fromkeys(("fedvg.link", "fedvg.exponent", "fedvg.temperature", "fedvg.mix"), (_GENERALISED,)),
    "fedvg.multipliers": (_GENERALISED,),
    "fedavgm": (_is("algorithm", "fedavgm"),),
    "fedopt": (_is("algorithm", *_ADAPTIVE),),
    "fedopt.b1": (Condition("algorithm", _has_first_moment, "fedadam, fedyogi, or fedadagrad of variant official"),),
    "fedopt.b2": (_is("algorithm", "fedadam", "fedyogi"),),
    "fedprox": (_is("algorithm", "fedprox"),),
    "scaffold": (_is("algorithm", "scaffold"),),
    "feddyn": (_is("algorithm", "feddyn"),),
    "feddyn.weights": (_weighting("native"),),
    "feddyn.average": (_weighting("fedvg"),),
    "elastic": (_is("algorithm", "elastic"),),
    "robust.trim": (_is("robust.rule", "trimmed_mean"),),
    "robust.num_bad": (_is("robust.rule", "krum"),),
    "robust.num_kept": (_is("robust.rule", "krum"),),
    "robust.clip_norm": (_is("robust.rule", "clipped_mean"),),
    "robust.noise": (_is("robust.rule", "clipped_mean"),),
    "attack.clients": (_ATTACK,),
    "attack.scale": (_ATTACK,),
    "tuning.lr": (Condition("tuning.steps", lambda c: c.tuning.steps > 0, "1 step or more"),),
    "validation.data_dir": (_EXTERNAL,),
    "validation.copies": (_EXTERNAL,),
    "validation.classes": (_is("validation.source", "cifar100"),),
    "validation.clients": (_is("validation.source", "clients"), _is("split", "client")),
    "validation.imbalance": (Condition("validation.rho", lambda c: c.validation.rho > 0, "a rho above 0"),),
    "corrupt.clients": (_CORRUPT,),
    "corrupt.strength": (
        Condition(
            "corrupt.kind",
            lambda c: c.corrupt.kind not in ("none", "rotate90"),
            "every other kind than none and rotate90",
        ),
    ),
}
"""Setting, or group of settings -> conditions that must all hold. A setting needs those of its group and its own."""

UNCONDITIONAL = frozenset(
    {
        *("dataset", "model", "normalise", "augment", "algorithm", "weighting", "clients", "join_ratio", "rounds"),
        *("local_epochs", "batch_size", "lr", "optimiser", "weight_decay", "lr_schedule", "dropout", "nonfinite"),
        *("seed", "partition", "split", "cohorts", "partition_seed", "min_samples", "test_ratio", "val_ratio"),
        *("eval_every", "lanes", "hold", "devices", "pool", "precision", "export", "dry_run", "force"),
        *("profile", "out"),
        *("resume", "keep", "deterministic", "cache_dir", "trust_cache", "config", "untrained", "single_rows"),
        *("select", "record", "pretrained", "init", "max_rows", "export_partition", "track"),
        *("robust.rule", "attack.kind", "tuning.steps"),
        *("validation.source", "validation.size", "validation.fraction", "validation.rho", "validation.pixel_noise"),
        *("validation.label_noise", "corrupt.kind"),
    }
)
"""Settings that every run uses.

With a partition file of parts, `min_samples` has no effect and the ratios bound the sizes of tables only; which form a
file has is known when it is read.
"""


def conditions(name: str) -> tuple[Condition, ...]:
    """Returns the conditions of a setting: those of its group, then its own."""
    group, _, rest = name.partition(".")
    return (*(CONDITIONS.get(group, ()) if rest else ()), *CONDITIONS.get(name, ()))


def unmet(config: Config, name: str) -> Condition | None:
    """Returns the first condition of a setting that does not hold; None where the run uses it."""
    return next((condition for condition in conditions(name) if not condition.holds(config)), None)


def unused(config: Config, names: Iterable[str] | None = None) -> list[str]:
    """Returns the settings, of `names` or of all, that have no effect on this run.

    >>> unused(Config(weighting="samples"), ["fedvg.norm", "fedprox.mu", "lr"])
    ['fedvg.norm', 'fedprox.mu']
    """
    return [name for name in (flatten(config) if names is None else names) if unmet(config, name)]


def to_json(config: Config) -> dict[str, Any]:
    """Returns the settings as JSON values, nested as in the dataclasses, and the list `unused`."""
    return {name: _plain(value) for name, value in dataclasses.asdict(config).items()} | {"unused": unused(config)}


def refuse_unused(config: Config, names: Iterable[str]) -> None:
    """Raises UsageError for the first flag that the run does not use.

    Args:
        config: settings of the run.
        names: settings that are flags of the command line.
    """
    for name in names:
        if condition := unmet(config, name):
            flag, decider = (f"--{text.replace('_', '-')}" for text in (name, condition.setting))
            value: Any = flatten(config)[condition.setting]
            raise UsageError(f"{flag} is not used by {decider} {value}; it is used by {condition.by}; leave it out")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return str(value) if isinstance(value, Path) else value
