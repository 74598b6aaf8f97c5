"""Former names of settings, which files, flags, run folders and `Config` accept until version 0.2."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from fedvg_jax.config.departures import canonical
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

VALUES = {
    "partition_file": ("partition", ("file",), ""),
    "shards_per_client": ("partition", ("shards",), "2"),
    "classes_per_client": ("partition", ("classes",), "2"),
    "candidates": ("selection", ("power_of_choice",), "0"),
    "send.fraction": ("send", ("topk",), "0.01"),
    "send.levels": ("send", ("qsgd",), "4"),
    "robust.trim": ("robust", ("trimmed_mean",), "0.1"),
    "robust.clip_norm": ("robust", ("clipped_mean",), "10.0"),
    "robust.num_bad": ("robust", ("krum",), "1"),
    "robust.num_kept": ("robust", ("krum",), "1"),
    "attack.scale": ("attack", ("sign_flip", "scaling", "noise"), "1.0"),
    "corrupt.strength": (
        "corrupt.kind",
        ("label_flip", "label_noise", "pixel_noise", "feature_noise", "rotate"),
        "1.0",
    ),
    "lr_decay": ("lr_schedule", ("exponential",), "0.99"),
}
"""Former name -> (setting, names of it behind which the value stands, default). Other names do not use the value."""

JOINED: dict[str, tuple[str, Callable[[str, Any], int | str]]] = {
    "image_column": ("columns", lambda text, name: _with_column(text, "image", name)),
    "label_column": ("columns", lambda text, name: _with_column(text, "label", name)),
    "group_column": ("columns", lambda text, name: _with_column(text, "group", name)),
    "lora_rank": ("lora", lambda text, rank: _with_rank(text, str(rank))),
}
"""Former name -> (setting, (its text, value) -> text with that value)."""

NAMES = (*RENAMED, *SWITCHED, *REMOVED, *VALUES, *JOINED)

GROUPS = {name.partition(".")[0] for name in NAMES if "." in name}


def _with_column(text: str, role: str, name: str) -> str:
    return ",".join(filter(None, [text, name and f"{role}={name}"]))


def _with_rank(text: str, rank: str) -> int | str:
    layers = re.sub(r"^\d+(:|$)", "", text)
    if layers and rank != "0":
        return f"{rank}:{layers}"
    return int(rank) if rank.isdecimal() and len(rank) < 10 else rank  # a text is refused by the checks


def name_of(name: str) -> str:
    """Returns the name of a setting that may be given by its former one."""
    if name in (moved := {**VALUES, **JOINED}):
        return moved[name][0]
    return "departures" if name in SWITCHED else RENAMED.get(name, name)


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
    if settings.keys().isdisjoint(NAMES):
        return dict(settings)
    result = {name: value for name, value in settings.items() if name not in NAMES}
    words = [str(settings.get("departures", base["departures"]))]
    attack = settings.get("attack.kind", result.get("attack", base.get("attack")))
    corrupt = result.get("corrupt.kind", base.get("corrupt.kind"))
    for name in sorted((name for name in settings if name in NAMES), key=lambda name: (name in VALUES, name)):
        value, new = settings[name], name_of(name)
        if name == "attack.clients" and "none" in (attack, corrupt):  # without attacks no run uses it
            result |= {} if attack == "none" else {new: value}
        elif name in RENAMED:
            before, given = base[new], result.get(new, base[new])
            if given != before and value not in (before, given) and new != "placement":
                raise UsageError(f"{source}: {name} is a former name of {new}; got both; give {new} alone")
            result[new] = value if given == before or value == "host" else given
        elif name in SWITCHED:
            published, other, departure = SWITCHED[name]
            if str(value).lower() not in (published, other):
                raise UsageError(f"{source}: {name} is {published} or {other}; got {str(value)[:100]!r}")
            words.append(departure if str(value).lower() == published else f"no-{departure}")
        elif name in VALUES:
            chosen, given = str(result.get(new, base[new])).partition(":")[0], str(value or "")
            if chosen in VALUES[name][1] and given != VALUES[name][2]:
                before = f"{settings.get('robust.num_bad', 1)}," if name == "robust.num_kept" else ""
                result[new] = f"{chosen}:{before}{given}"
            elif name == "partition_file" and given:
                raise UsageError(f"{source}: partition_file is for partition file, not {chosen}; use file:FILE")
        elif name in JOINED:
            result[new] = JOINED[name][1](str(result.get(new, base[new])), value)
        elif value != REMOVED[name]:
            raise UsageError(f"{source}: {name} is no setting any more; leave it out")
    return result | ({"departures": canonical(",".join(words))} if len(words) > 1 else {})
