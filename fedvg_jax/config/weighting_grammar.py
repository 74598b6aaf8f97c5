"""The grammar of `--weighting`, and what FedVG's options may be."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from fedvg_jax.config.options import Config
from fedvg_jax.config.suggestions import suggestion
from fedvg_jax.core.types import UsageError

WEIGHTINGS = (
    "native",
    "samples",
    "uniform",
    "fedvg",
    "inverse_samples",
    "val_loss",
    "val_accuracy",
    "fltrust",
    "fitted",
    "generalised",
)
STREAMED = ("native", "samples", "uniform", "fedvg", "inverse_samples", "val_loss", "val_accuracy")
"""Rules that do not need the models of a whole cohort at once."""
NORMS = ("l1", "l2", "spectral", "spectral_l2", "delta")
GRANULARITIES = ("modelwise", "layerwise", "blockwise")
SCORING_MODES = ("train", "eval")
SIGNALS = ("gradient", "delta", "fisher")
LINKS = ("inverse", "softmax")
NO_PATTERN = (re.error, RecursionError, OverflowError)
"""What Python raises for a text that is no regular expression, is nested too deep, or repeats too often."""
LONGEST = 200
"""Characters of a weighting's name: far more than any that makes sense, and fewer than exhaust Python's stack."""


class Permuted(NamedTuple):
    """permuted(RULE)"""

    of: Rule


class Mean(NamedTuple):
    """FIRST+SECOND"""

    first: Rule
    second: Rule


Rule = str | Permuted | Mean


def parse_weighting(text: str) -> Rule:
    """A rule is a NAME, permuted(RULE), or the mean of two, A+B.

    Raises:
        UsageError: for anything else.

    >>> parse_weighting("samples+permuted(fedvg)")
    Mean(first='samples', second=Permuted(of='fedvg'))
    """
    if len(text) > LONGEST:
        raise UsageError(f"weighting must be at most {LONGEST} characters; got {len(text)}")
    parts = re.split(r"\+(?![^(]*\))", text)
    if len(parts) > 2:
        raise UsageError(f"weighting must be one rule or the mean of two, a+b; got {text}")
    if len(parts) == 2:
        return Mean(*map(parse_weighting, parts))
    inner = re.fullmatch(r"permuted\((.*)\)", text)
    if inner:
        return Permuted(parse_weighting(inner[1]))
    if text not in WEIGHTINGS:
        known = (*WEIGHTINGS, "permuted(NAME)")
        raise UsageError(f"unknown weighting '{text}'{suggestion(text, known)}")
    return text


def streams(text: str) -> bool:
    """Whether a rule takes a cohort in blocks: a streamed NAME, or the mean of two.

    >>> streams("samples+fedvg"), streams("permuted(fedvg)")
    (True, False)
    """
    rule = parse_weighting(text)
    return all(part in STREAMED for part in (rule if isinstance(rule, Mean) else (rule,)))


def parse_multipliers(text: str) -> list[tuple[str, float]]:
    """Patterns of tensors' paths with the factors of their norms.

    Raises:
        UsageError: for anything but REGEX=NUMBER,... with numbers >= 0.

    >>> parse_multipliers("^classifier/=2,bias$=0")
    [('^classifier/', 2.0), ('bias$', 0.0)]
    """
    found = []
    for part in filter(None, text.split(",")):
        pattern, _, number = part.rpartition("=")
        try:
            re.compile(pattern)
            factor = float(number)
        except (*NO_PATTERN, ValueError):
            factor = -1.0
        if not pattern or not 0 <= factor < math.inf:
            raise UsageError(f"fedvg.multipliers must be REGEX=NUMBER,... with numbers >= 0; got {part[:100]}")
        found.append((pattern, factor))
    return found


def check_weighting(config: Config) -> None:
    """UsageError for a rule or an option of FedVG that makes no sense, as far as that shows without a model."""
    parse_weighting(config.weighting)
    options = config.fedvg
    if options.norm == "delta" and options.signal == "fisher":
        raise UsageError(
            "fedvg.norm delta is the L1 norm of fedvg.signal delta, which fisher contradicts; use --fedvg.norm l1"
        )
    parse_multipliers(options.multipliers)
    try:
        re.compile(options.include)
    except NO_PATTERN as error:
        shown = options.include[:100]
        raise UsageError(f"fedvg.include is no regular expression: {error}; got {shown}") from None
