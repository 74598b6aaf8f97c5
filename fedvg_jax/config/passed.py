"""How objects that a call from Python passes in place of settings are named."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

PASSED = {
    "data": "dataset",
    "partition": "partition",
    "task": "model",
    "algorithm": "algorithm",
    "weighting": "weighting",
}
"""Object that a call from Python passes in place of a setting -> that setting."""


def with_passed(settings: Mapping[str, Any], passed: Collection[str]) -> dict[str, Any]:
    """Returns settings as they name a run: "own weighting" for a weighting that came from Python, and so on.

    Args:
        settings: dotted name -> value.
        passed: names of objects that a call from Python passed in place of a setting.

    >>> with_passed({"weighting": "fedvg", "lr": 0.1}, {"weighting"})
    {'weighting': 'own weighting', 'lr': 0.1}
    """
    own = {setting: f"own {name}" for name, setting in PASSED.items() if name in passed}
    return {name: own.get(name, value) for name, value in settings.items()}
