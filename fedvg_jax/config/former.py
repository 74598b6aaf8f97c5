"""Former names of settings, which files, flags, run folders and `Config` accept until version 0.2."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedvg_jax.config.declare import ABOVE_0, BELOW_1, COUNT, FRACTION, FROM_0, Condition, Range, is_not, is_one
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
"""(value of a setting, value by a former name, all settings as they were given) -> value of the setting

Raises ValueError with what is allowed, where the former name never had the value."""


class Joined(NamedTuple):
    """What becomes of a former setting that is part of another one."""

    setting: str
    join: Join
    used: tuple[Condition, ...] = ()
    """Conditions that must hold for a run to use it, beside those of the setting."""


def _one_of(value: Any, *names: str) -> str:
    if str(value).lower() not in names:
        raise ValueError(" or ".join(names))
    return str(value).lower()


def _number(value: Any, kind: type, allowed: Range) -> Any:
    try:
        number = math.nan if isinstance(value, bool) else float(str(value))  # of float32 the shortest
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not allowed.holds(number) or (kind is int and number % 1):
        raise ValueError(f"{'an integer ' if kind is int else ''}{allowed.words}")
    return kind(number)


def _switch(name: str) -> Joined:
    published, other, departure = SWITCHED[name]

    def join(departures: Any, value: Any, settings: Mapping[str, Any]) -> str:
        is_other = _one_of(value, published, other) == other
        return canonical(f"{departures},{'no-' if is_other else ''}{departure}")

    return Joined("departures", join)


def _suffix(
    setting: str, names: tuple[str, ...], default: Any, allowed: Range, place: int = 0, is_refused: bool = False
) -> Joined:
    """Returns the setting behind whose names a value has its place among others, 1 by default, as in krum:1,3.

    Args:
        is_refused: whether other values than the default are refused beside other names, not only by flags.
    """

    def join(text: Any, value: Any, settings: Mapping[str, Any]) -> str:
        number = _number(value, type(default), allowed)
        name, _, given = str(text).partition(":")
        if is_refused and name not in names and number != default:
            raise ValueError(f"left out beside {setting} {name}")
        values = [*filter(None, given.split(","))]
        if name not in names or (len(values) <= place and number == default):  # not used, or as without it
            return text
        values = [*values, *["1"] * place][: max(place + 1, len(values))]
        return f"{name}:{','.join([*values[:place], str(number), *values[place + 1 :]])}"

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
    layers, rank = re.sub(r"^\d+(:|$)", "", str(lora)), _number(rank, int, FROM_0)
    return f"{rank}:{layers}" if layers and rank else rank


def _share(local: Any, share: Any, settings: Mapping[str, Any]) -> str:
    pattern, share = re.sub(r"^[\d.]+(e-\d+)?:", "", str(local)), _number(share, float, BELOW_1)
    return f"{share}:{pattern}" if pattern and share else pattern


def _on_host(placement: Any, value: Any, settings: Mapping[str, Any]) -> Any:
    value = _one_of(value, "auto", "device", "host")
    return "host" if "host" in (placement, value) else placement if value == "auto" else value


def _attackers(clients: Any, value: Any, settings: Mapping[str, Any]) -> Any:
    if settings.get("attack.kind", settings.get("attack")) == "none":  # no run uses it
        return clients
    if settings.get("corrupt.kind") != "none" and value != clients:
        raise UsageError("attack.clients is a former name of corrupt.clients; got both; give corrupt.clients alone")
    return value


def _stem(model: Any, stem: Any, settings: Mapping[str, Any]) -> Any:
    plain, is_cifar = str(model).lower().removesuffix("_cifar"), _one_of(stem, "imagenet", "cifar") == "cifar"
    return model if plain not in _RESNETS else f"{plain}_cifar" if is_cifar else plain


def _kept(record: Any, is_kept: Any, settings: Mapping[str, Any]) -> str:
    others = [name for name in listed(str(record)) if name != "client_models"]
    return ",".join([*others, "client_models"] if _one_of(is_kept, "true", "false") == "true" else others)


_RESNETS = ("resnet18", "resnet34", "resnet50")
_STRENGTHS = ("label_flip", "label_noise", "pixel_noise", "feature_noise", "rotate")

JOINED = {name: _switch(name) for name in SWITCHED} | {
    "pool": Joined("placement", _on_host),
    "memories": Joined("placement", _on_host),
    "attack.clients": Joined("corrupt.clients", _attackers, (is_not("attack", "none"),)),
    "partition_file": Joined("partition", _file, (is_one("partition", "file"),)),
    "shards_per_client": _suffix("partition", ("shards",), 2, COUNT),
    "classes_per_client": _suffix("partition", ("classes",), 2, COUNT),
    "candidates": _suffix("selection", ("power_of_choice",), 0, FROM_0),
    "send.fraction": _suffix("send", ("topk",), 0.01, FRACTION),
    "send.levels": _suffix("send", ("qsgd",), 4, COUNT),
    "robust.trim": _suffix("robust", ("trimmed_mean",), 0.1, FROM_0),
    "robust.clip_norm": _suffix("robust", ("clipped_mean",), 10.0, ABOVE_0),
    "robust.num_bad": _suffix("robust", ("krum",), 1, FROM_0),
    "robust.num_kept": _suffix("robust", ("krum",), 1, COUNT, place=1),
    "attack.scale": _suffix("attack", ("sign_flip", "scaling", "noise"), 1.0, FROM_0),
    "corrupt.strength": _suffix("corrupt.kind", _STRENGTHS, 1.0, FRACTION),
    "lr_decay": _suffix("lr_schedule", ("exponential",), 0.99, FRACTION),
    "validation.clients": _suffix("validation.source", ("clients",), 1.0, FRACTION, is_refused=True),
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


_WHOLE = re.compile(r"^(\d+$|[\w.]+:|host$|device$)|_cifar$|=")
"""Finds values of settings that have the part for which there was a former name."""


def carried(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Returns later settings, with former ones of an earlier source that are parts of them.

    >>> carried({"send.fraction": 0.5, "lr": 0.1}, {"send": "topk"})
    {'send.fraction': 0.5, 'send': 'topk'}
    """
    parts, given = {}, renamed(later)
    for name in earlier.keys() & JOINED.keys() - SWITCHED.keys() - {"pool", "memories"}:
        setting, _, used = JOINED[name]
        decider = used[0].setting if used else setting
        is_given = setting in given and (setting != decider or _WHOLE.search(str(given[setting])))
        parts |= {name: earlier[name]} if decider in given and not is_given else {}
    return parts | {**later}


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
    given, old = {**base, **settings}, sorted(settings.keys() & NAMES.keys(), key=lambda name: (name in JOINED, name))
    result = {name: value for name, value in settings.items() if name not in NAMES}
    explicit = renamed({name: value for name, value in settings.items() if name not in JOINED})
    for name in old:
        value, new = settings[name], name_of(name)
        if name in JOINED:
            try:
                joined = JOINED[name].join(result.get(new, base[new]), value, given)
            except UsageError as error:
                raise UsageError(f"{source}: {error}") from None
            except ValueError as words:
                raise UsageError(f"{source}: {name} must be {words}; got {str(value)[:100]!r}") from None
            text = str(explicit.get(new, base[new]))
            is_other = joined != explicit.get(new) and not str(joined).startswith(f"{text},")  # as krum:2,3 of krum:2
            if is_other and text != str(base[new]) and new != "local" and _WHOLE.search(text):  # a method gives local
                raise UsageError(f"{source}: {name} is a former name of a part of {new}; got both; give {new} alone")
            result[new] = joined
        elif name in REMOVED:
            if value != REMOVED[name]:
                raise UsageError(f"{source}: {name} is no setting any more; leave it out")
        elif result.get(new, value) not in (value, base[new]):
            if value != base[new]:
                raise UsageError(f"{source}: {name} is a former name of {new}; got both; give {new} alone")
        else:
            result[new] = value
    return result
