"""Former names of settings, which files, flags, run folders and `Config` accept until version 0.2."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedvg_jax.config.declare import Condition, is_not, is_one
from fedvg_jax.config.departures import canonical, listed
from fedvg_jax.core.types import UsageError

RENAMED = {
    "norm": "norm_layers",
    "split": "holdout",
    "select": "best_on",
    "pretrained": "init",
    "pool": "placement",
    "memories": "placement",
    "fedvg.exponent": "generalised.exponent",
    "fedvg.temperature": "generalised.temperature",
    "fedvg.mix": "generalised.mix",
    "fedvg.fit_rate": "fitted.rate",
    "send.kind": "send",
    "robust.rule": "robust",
    "attack.kind": "attack",
    "attack.clients": "corrupt.clients",
}
"""Former name -> name."""

SWITCHED = {
    "server_stats": ("official", "averaged", "server-stats"),
    "cohorts": ("official", "seeded", "cohorts"),
    "untrained": ("weighed", "absent", "untrained"),
    "single_rows": ("skipped", "trained", "single-rows"),
    "fedvg.block": ("stage", "residual", "block"),
    "fedopt.variant": ("official", "paper", "adaptive-servers"),
    "scaffold.steps": ("single", "epochs", "scaffold-steps"),
    "scaffold.memory": ("lost", "kept", "scaffold-memory"),
    "feddyn.regulariser": ("linear", "full", "feddyn-regulariser"),
    "feddyn.weights": ("samples", "uniform", "feddyn-weights"),
    "feddyn.average": ("once", "always", "feddyn-average"),
    "elastic.sensitivity": ("official", "output", "elastic-sensitivity"),
    "elastic.rows": ("rest", "all", "elastic-rows"),
    "validation.copies": ("official", "none", "external-copies"),
    "validation.classes": ("paper", "all", "truck"),
    "validation.imbalance": ("official", "corrected", "imbalance"),
}
"""Former name -> (value of the published code, the other value, name of the departure)."""

REMOVED = {"robust.noise": 0.0, "validation.pixel_noise": 0.0, "validation.fraction": 1.0, "trust_cache": False}
REMOVED |= {"fedvg.fit_steps": 10, "fitted.steps": 10}
"""Setting that is no more -> its default, which is ignored."""

Join = Callable[[Any, Any, Mapping[str, Any]], Any]
"""(value of a setting, value by a former name, all settings as they were given) -> value of the setting"""


class Joined(NamedTuple):
    """What becomes of a former setting that is part of another one."""

    setting: str
    join: Join
    used: tuple[Condition, ...] = ()
    """Conditions that must hold for a run to use it, beside those of the setting."""


def _switch(name: str) -> Joined:
    published, other, departure = SWITCHED[name]

    def join(departures: Any, value: Any, settings: Mapping[str, Any]) -> str:
        if str(value).lower() not in (published, other):
            raise UsageError(f"{name} is {published} or {other}; got {str(value)[:100]!r}")
        return canonical(f"{departures},{'no-' if str(value).lower() == other else ''}{departure}")

    return Joined("departures", join)


def _suffix(setting: str, names: tuple[str, ...], default: Any, place: int = 0) -> Joined:
    """Returns the setting behind whose names a value has its place among others, 1 by default, as in krum:1,3."""

    def join(text: Any, value: Any, settings: Mapping[str, Any]) -> str:
        name, _, given = str(text).partition(":")
        if name not in names or str(value or "") == str(default):  # which are not used, or are as without it
            return text
        values = [*filter(None, given.split(",")), *["1"] * place][: max(place + 1, given.count(",") + 1)]
        return f"{name}:{','.join([*values[:place], str(value), *values[place + 1 :]])}"

    return Joined(setting, join, (is_one(setting, *names),))


def _file(partition: Any, file: Any, settings: Mapping[str, Any]) -> str:
    name = str(partition).partition(":")[0]
    if file and name != "file":
        raise UsageError(f"partition_file is for partition file, not {name}; use file:FILE")
    return f"file:{file}" if file else partition


def _column(role: str) -> Joined:
    def join(columns: Any, name: Any, settings: Mapping[str, Any]) -> str:
        others = [word for word in listed(columns) if not name or word.partition("=")[0] != role]
        return ",".join([*others, *([f"{role}={name}"] if name else [])])

    return Joined("columns", join)


def _rank(lora: Any, rank: Any, settings: Mapping[str, Any]) -> int | str:
    layers, rank = re.sub(r"^\d+(:|$)", "", str(lora)), str(rank)
    if layers and rank != "0":
        return f"{rank}:{layers}"
    return int(rank) if rank.isdecimal() and len(rank) < 10 else rank  # a text is refused by the checks


def _share(local: Any, share: Any, settings: Mapping[str, Any]) -> str:
    pattern = re.sub(r"^[\d.]+:", "", str(local))
    return f"{share}:{pattern}" if pattern and str(share) not in ("0", "0.0") else pattern


def _on_host(placement: Any, value: Any, settings: Mapping[str, Any]) -> Any:
    return "host" if "host" in (placement, value) else placement if value == "auto" else value


def _attackers(clients: Any, value: Any, settings: Mapping[str, Any]) -> Any:
    if settings.get("attack.kind", settings.get("attack")) == "none":  # no run uses it
        return clients
    if settings.get("corrupt.kind") != "none" and value != clients:
        raise UsageError("attack.clients is a former name of corrupt.clients; got both; give corrupt.clients alone")
    return value


def _stem(model: Any, stem: Any, settings: Mapping[str, Any]) -> str:
    plain = str(model).removesuffix("_cifar")
    return plain if stem == "imagenet" else f"{plain}_{stem}"


def _kept(record: Any, is_kept: Any, settings: Mapping[str, Any]) -> str:
    return ",".join(listed(f"{record},client_models")) if is_kept in (True, "true") else record


_RESNETS = ("resnet18", "resnet34", "resnet50")
_STRENGTHS = ("label_flip", "label_noise", "pixel_noise", "feature_noise", "rotate")

JOINED = {name: _switch(name) for name in SWITCHED} | {
    "pool": Joined("placement", _on_host),
    "memories": Joined("placement", _on_host),
    "attack.clients": Joined("corrupt.clients", _attackers, (is_not("attack", "none"),)),
    "partition_file": Joined("partition", _file, (is_one("partition", "file"),)),
    "shards_per_client": _suffix("partition", ("shards",), 2),
    "classes_per_client": _suffix("partition", ("classes",), 2),
    "candidates": _suffix("selection", ("power_of_choice",), 0),
    "send.fraction": _suffix("send", ("topk",), 0.01),
    "send.levels": _suffix("send", ("qsgd",), 4),
    "robust.trim": _suffix("robust", ("trimmed_mean",), 0.1),
    "robust.clip_norm": _suffix("robust", ("clipped_mean",), 10.0),
    "robust.num_bad": _suffix("robust", ("krum",), 1),
    "robust.num_kept": _suffix("robust", ("krum",), 1, place=1),
    "attack.scale": _suffix("attack", ("sign_flip", "scaling", "noise"), 1.0),
    "corrupt.strength": _suffix("corrupt.kind", _STRENGTHS, 1.0),
    "lr_decay": _suffix("lr_schedule", ("exponential",), 0.99),
    "validation.clients": _suffix("validation.source", ("clients",), 1.0),
    "image_column": _column("image"),
    "label_column": _column("label"),
    "group_column": _column("group"),
    "lora_rank": Joined("lora", _rank),
    "local_first": Joined("local", _share, (is_not("local", "", "a regular expression"),)),
    "stem": Joined("model", _stem, (is_one("model", *_RESNETS, *(f"{name}_cifar" for name in _RESNETS)),)),
    "keep_clients": Joined("record", _kept),
}
"""Former name -> what becomes of it."""

NAMES = {**RENAMED, **REMOVED, **JOINED}

ALONE = {**dict.fromkeys(REMOVED, ""), "keep_clients": "true"}
"""Flag that may have no value -> the value that stands for."""

GROUPS = {name.partition(".")[0] for name in NAMES if "." in name}


def name_of(name: str) -> str:
    """Returns the name of a setting that may be given by its former one."""
    return JOINED[name].setting if name in JOINED else RENAMED.get(name, name)


def renamed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings of which those of `RENAMED` have their names."""
    return {RENAMED.get(name, name): value for name, value in settings.items()}


def current(settings: Mapping[str, Any], source: str, base: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings under their names.

    Args:
        settings: dotted name -> value.
        source: where they come from, for messages.
        base: the settings that these replace.

    Raises:
        UsageError: a setting that is no more has another value than its default, a former name has a value that it
            never had, or is given beside the name.

    >>> base = {"departures": "block", "placement": "auto"}
    >>> current({"pool": "host", "memories": "auto", "scaffold.memory": "lost", "lr": 0.1}, "file", base)
    {'lr': 0.1, 'placement': 'host', 'departures': 'block,scaffold-memory'}
    """
    given = {**base, **settings}
    result = {name: value for name, value in settings.items() if name not in NAMES}
    for name in sorted(settings.keys() & NAMES.keys(), key=lambda name: (name in JOINED, name)):
        value, new = settings[name], name_of(name)
        if name in JOINED:
            try:
                result[new] = JOINED[name].join(result.get(new, base[new]), value, given)
            except UsageError as error:
                raise UsageError(f"{source}: {error}") from None
        elif name in REMOVED:
            if value != REMOVED[name]:
                raise UsageError(f"{source}: {name} is no setting any more; leave it out")
        elif result.get(new, value) not in (value, base[new]):
            if value != base[new]:
                raise UsageError(f"{source}: {name} is a former name of {new}; got both; give {new} alone")
        else:
            result[new] = value
    return result
