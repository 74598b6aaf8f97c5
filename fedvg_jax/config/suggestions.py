"""Suggestions for mistyped names of settings and values."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

MOST_LISTED = 40
"""A message lists all allowed names where there are fewer than this."""


def suggestion(name: str, allowed: Iterable[str], synonyms: Mapping[str, str] = {}) -> str:
    """Returns the end of an error message about a mistyped name.

    Args:
        name: the mistyped name.
        allowed: the names that exist.
        synonyms: as in `closest`.

    Returns:
        "; did you mean ...?" where a name is close, and the allowed names where these are few.

    >>> suggestion("fedgv", ["fedvg", "samples"])
    "; did you mean 'fedvg'? (allowed: fedvg, samples)"
    """
    names = list(allowed)
    close = closest(name, names, synonyms)
    listed = (
        f"allowed: {', '.join(names)}" if len(names) < MOST_LISTED else "python -m fedvg_jax.sim --help-all lists all"
    )
    if not close:
        return f"; {listed}"
    meant = " or ".join(f"'{known}'" for known in close)
    return f"; did you mean {meant}?" + (f" ({listed})" if len(names) < 10 else "")


def closest(name: str, allowed: Iterable[str], synonyms: Mapping[str, str] = {}) -> list[str]:
    """Returns the allowed names that a mistyped one probably stands for: none, one, or several that are equally close.

    In this order: a usual synonym, the same name within a group of settings, the most similar spelling.

    Args:
        name: the mistyped name.
        allowed: the names that exist.
        synonyms: name -> other words for it, separated by spaces.

    >>> names = ["lr", "fedvg.granularity", "fedvg.norm", "norm"]
    >>> [closest(name, names, {"lr": "eta step_size"}) for name in ("step-size", "granularity", "fedvg.nrom", "x")]
    [['lr'], ['fedvg.granularity'], ['fedvg.norm'], []]
    >>> closest("sed", ["rounds", "send", "seed"])
    ['send', 'seed']
    """
    names = list(allowed)
    plain = name.lower().replace("-", "_")
    last = plain.rpartition(".")[2]
    synonym = [known for known, words in synonyms.items() if known in names and plain in words.split()]
    in_group = [setting for setting in names if setting.rpartition(".")[2] == last]
    if synonym or len(in_group) == 1:
        return synonym[:1] or in_group
    likeness = {known: difflib.SequenceMatcher(None, known, plain).ratio() for known in names}
    best = max(likeness.values(), default=0)
    return [known for known in names if likeness[known] == best >= 0.6]
