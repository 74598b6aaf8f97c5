"""Grammar of `--weighting`, and names of methods: as `--method` takes them, and as papers do."""

from __future__ import annotations

import itertools
import re
from typing import NamedTuple

from fedvg_jax.config.declare import suggestion
from fedvg_jax.config.methods import ALGORITHMS, NATIVE, PERSONAL, WEIGHTINGS, label
from fedvg_jax.core.types import UsageError


class Permuted(NamedTuple):
    """permuted(RULE): the weights of a rule, given to other clients."""

    rule: Rule


class Mean(NamedTuple):
    """FIRST+SECOND: the mean of two rules."""

    first: Rule
    second: Rule


Rule = str | Permuted | Mean


def parse_weighting(text: str) -> Rule:
    """Returns the rule that a text describes: NAME, permuted(RULE), or the mean of two, A+B.

    Raises:
        UsageError: the text is none of these.

    >>> parse_weighting("samples+permuted(fedvg)")
    Mean(first='samples', second=Permuted(rule='fedvg'))
    """
    parts = _summands(text)
    if len(parts) == 2:
        return Mean(*map(parse_weighting, parts))
    inner = re.fullmatch(r"permuted\((.*)\)", text)
    if inner:
        return Permuted(parse_weighting(inner[1]))
    if text not in WEIGHTINGS and text != NATIVE:
        hint = suggestion(text, (NATIVE, *WEIGHTINGS, "permuted(NAME)"))
        if text in ALGORITHMS:
            hint = f"; {text} is an algorithm; use --method {text}"
        raise UsageError(f"unknown weighting '{text[:100]}'{hint}")
    return text


def _summands(text: str) -> list[str]:
    """Returns the texts between the plus signs that are in no parentheses.

    >>> _summands("samples+permuted(uniform+permuted(fedvg))")
    ['samples', 'permuted(uniform+permuted(fedvg))']
    """
    if "+" not in text:
        return [text]
    depths = itertools.accumulate((char == "(") - (char == ")") for char in text)
    places = [
        i
        for i, (char, depth) in enumerate(zip(text, depths, strict=True))
        if char == "+" and depth <= 0
    ]
    return [text[i + 1 : j] for i, j in itertools.pairwise([-1, *places, len(text)])]


def streams(text: str) -> bool:
    """Returns whether a rule can weigh a cohort chunk by chunk: a NAME that `WEIGHTINGS` marks, or the mean of two.

    >>> streams("samples+fedvg"), streams("permuted(fedvg)")
    (True, False)
    """
    rule = parse_weighting(text)
    return all(
        isinstance(part, str) and (part == NATIVE or WEIGHTINGS[part].streams)
        for part in (rule if isinstance(rule, Mean) else (rule,))
    )


def method_of(algorithm: str, weighting: str, local: str = "") -> str:
    """Returns the name that `--method` takes: the paper's name, else WEIGHTING or ALGORITHM+WEIGHTING.

    >>> method_of("fedavg", "samples+fedvg"), method_of("fedavg", "uniform"), method_of("fedprox", "uniform")
    ('fedavg+fedvg', 'uniform', 'fedprox+uniform')
    >>> method_of("fedavg", "samples"), method_of("fedavg", "native"), method_of("fedavg", "fedvg", "^classifier/")
    ('fedavg', 'fedavg', 'fedper+fedvg')
    """
    if algorithm != "fedavg":
        return f"{algorithm}+{weighting}".removesuffix("+native")
    weighting = "" if weighting in ("native", "samples") else weighting
    if personal := [name for name, part in PERSONAL.items() if part.settings["local"] == local]:
        return f"{personal[0]}+{weighting}".removesuffix("+")
    return "fedavg+fedvg" if weighting == "samples+fedvg" else weighting or "fedavg"


def method_title(name: str) -> str:
    """Returns the name of a method with the spelling of papers; settings behind the first comma stay.

    Args:
        name: as `Config.method` and tables have it.

    >>> method_title("fedvg"), method_title("fedprox+fedvg"), method_title("permuted(fedvg), lr 0.1")
    ('FedVG', 'FedProx+FedVG', 'permuted(FedVG), lr 0.1')
    """
    method, comma, details = name.partition(", ")
    return re.sub(r"\w+", lambda word: label(word[0]), method) + comma + details
