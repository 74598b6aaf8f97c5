"""Grammar of `--weighting`."""

from __future__ import annotations

import itertools
import re
from typing import NamedTuple

from fedvg_jax.config.methods import ALGORITHMS, WEIGHTINGS
from fedvg_jax.config.suggestions import suggestion
from fedvg_jax.core.types import UsageError

MAX_CHARACTERS = 200
"""Longest name of a weighting: nested names up to this length do not exhaust Python's stack."""


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
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"weighting must be at most {MAX_CHARACTERS} characters; got {len(text)}")
    parts = _summands(text)
    if len(parts) > 2:
        raise UsageError(f"weighting must be one rule or the mean of two, a+b; got {text}")
    if len(parts) == 2:
        return Mean(*map(parse_weighting, parts))
    inner = re.fullmatch(r"permuted\((.*)\)", text)
    if inner:
        return Permuted(parse_weighting(inner[1]))
    if text not in WEIGHTINGS:
        hint = _algorithm_hint(text) or suggestion(text, (*WEIGHTINGS, "permuted(NAME)"))
        raise UsageError(f"unknown weighting '{text}'{hint}")
    return text


def _algorithm_hint(text: str) -> str:
    """Returns how the weights of an algorithm are called; "" for another text."""
    if text in ("fedavg", "fedsgd"):
        return "; the weights of FedAvg and FedSGD, n_k / sum_j n_j, are called samples"
    own = f"; {text} is an algorithm: use --method {text}, or --algorithm {text} --weighting native"
    return own if text in ALGORITHMS else ""


def rule_names(text: str) -> list[str]:
    """Returns the names of the rules that a text combines.

    >>> rule_names("samples+permuted(fedvg)")
    ['samples', 'fedvg']
    """
    return [name for name in re.findall(r"\w+", text) if name in WEIGHTINGS]


def _summands(text: str) -> list[str]:
    """Returns the texts between the plus signs that are in no parentheses.

    >>> _summands("samples+permuted(uniform+permuted(fedvg))")
    ['samples', 'permuted(uniform+permuted(fedvg))']
    """
    depths = itertools.accumulate((char == "(") - (char == ")") for char in text)
    places = [i for i, (char, depth) in enumerate(zip(text, depths, strict=True)) if char == "+" and depth <= 0]
    return [text[i + 1 : j] for i, j in itertools.pairwise([-1, *places, len(text)])]


def streams(text: str) -> bool:
    """Returns whether a rule can weigh a cohort block by block: a NAME that `WEIGHTINGS` marks, or the mean of two.

    >>> streams("samples+fedvg"), streams("permuted(fedvg)")
    (True, False)
    """
    rule = parse_weighting(text)
    return all(
        isinstance(part, str) and WEIGHTINGS[part].streams for part in (rule if isinstance(rule, Mean) else (rule,))
    )
