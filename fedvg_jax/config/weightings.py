"""The grammar of `--weighting`, and what FedVG's options may be."""

from __future__ import annotations

import re
from typing import NamedTuple

from fedvg_jax.config.options import Config
from fedvg_jax.config.settings import suggestion
from fedvg_jax.types import UsageError

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
)
NORMS = ("l1", "l2", "spectral", "spectral_l2", "delta")
GRANULARITIES = ("modelwise", "layerwise", "blockwise")
SCORING_MODES = ("train", "eval")
SIGNALS = ("gradient", "delta", "fisher")


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


def check_weighting(config: Config) -> None:
    """UsageError for a rule or an option of FedVG that makes no sense, as far as that shows without a model."""
    parse_weighting(config.weighting)
    options = config.fedvg
    if options.norm == "delta" and options.signal == "fisher":
        raise UsageError(
            "fedvg.norm delta is the L1 norm of fedvg.signal delta, which fisher contradicts; use --fedvg.norm l1"
        )
    try:
        re.compile(options.include)
    except re.error as error:
        raise UsageError(f"fedvg.include is no regular expression: {error}; got {options.include}") from None
