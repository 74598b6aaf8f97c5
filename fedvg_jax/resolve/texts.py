"""The texts of objects: an object that a setting makes, too, is that setting, so that both are one run.

The factories of the package say by which text a setting names what they make. The text counts where it makes an equal
object, so that one that a caller has changed since then stays an object.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from fedvg_jax.config import SETTINGS, Config, apply, check, checks, methods
from fedvg_jax.config.methods import ALGORITHMS, WEIGHTINGS
from fedvg_jax.config.options import algorithm_of
from fedvg_jax.core.identity import identify
from fedvg_jax.core.types import UsageError
from fedvg_jax.engine import robust
from fedvg_jax.resolve.custom import Custom


def settle(config: Config, custom: Custom) -> tuple[Config, Custom]:
    """Returns the checked settings of a call, and its objects without those that settings make; see `as_settings`.

    Raises:
        UsageError: a setting cannot work, or names a column of a DataFrame, which an argument does.
    """
    objects = {name: value for name, value in custom._asdict().items() if value is not None}
    if not isinstance(config, Config):
        return check(config), custom  # which raises
    if getattr(custom.data, "table", None) and (config.label or config.group):
        raise UsageError(
            "label and group of a Config are of files; name those of a DataFrame in run(..., label=, group=)"
        )
    settings, others = as_settings(config, objects)
    return check(apply(config, settings, "objects")), Custom(**others)


def as_settings(
    config: Config, objects: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the settings that make some objects, and the other objects.

    Args:
        config: the other settings; with `reference`, algorithms behave otherwise.
        objects: argument of `run` -> object. Of "hyper", what a setting of the algorithm or the weighting has becomes
            the setting.

    >>> from fedvg_jax import algorithms, robust
    >>> as_settings(Config(), {"algorithm": algorithms.scaffold(), "aggregate": robust.krum(2, 3)})[0]
    {'algorithm': 'scaffold', 'robust': 'krum:2,3'}
    >>> as_settings(Config(), {"algorithm": algorithms.scaffold()._replace(native_weighting="samples")})[0]
    {}
    """
    settings, others = {}, dict(objects)
    for argument in (*checks.FUNCTIONS, "partition"):
        text = _text(config, argument, objects.get(argument))
        if text:
            settings[checks.PASSED[argument]] = text
            del others[argument]
    hyper = others.get("hyper")
    if {"algorithm", "weighting"} & settings.keys() and isinstance(hyper, Mapping):
        named = apply(config, settings, "objects")
        read = {name for name in methods.SETTINGS if checks.unmet(named, name) is None}
        settings |= {name: value for name, value in hyper.items() if name in read}
        left = {name: value for name, value in hyper.items() if name not in read}
        others["hyper"] = left
        if not left:
            del others["hyper"]
    return settings, others


def _text(config: Config, argument: str, value: Any) -> str:
    """Returns the text that makes an object; "" for none."""
    if value is None or argument == "task":
        return ""
    if argument == "algorithm":
        named = (dataclasses.replace(config, algorithm=name) for name in ALGORITHMS)
        digest = identify(value)
        return next((c.algorithm for c in named if identify(algorithm_of(c)) == digest), "")
    if argument == "weighting":
        plain = [n for n, entry in WEIGHTINGS.items() if not entry.reads_rows and not entry.options]
        digest = identify(value)
        return next((name for name in plain if identify(WEIGHTINGS[name].make()) == digest), "")
    text = getattr(inspect.unwrap(value), "text", "") or robust.facts(value).text
    if not text:
        return ""
    choice, number = SETTINGS[checks.PASSED[argument]].choice(text)
    return text if choice and identify(choice.made(number)) == identify(value) else ""
