"""Messages about rounds in which clients diverged name the cause."""

import numpy as np
import pytest

from fedvg_jax.core.types import Data, Variables
from fedvg_jax.runs import divergence

DATA = Data((), *[np.zeros((1, 1), np.int32)] * 3)


@pytest.mark.parametrize(
    ("number", "bad", "message"),
    [
        (2, np.nan, "round 2: clients [1, 2] cannot train, because the server's step of round 1 was not finite; use a"),
        (1, np.inf, "round 1: clients [1, 2] cannot train, because the initial model is not finite; correct it"),
        (2, 1.0, "round 2: clients [1, 2] diverged (model, loss or score not finite); use a smaller --lr"),
    ],
)
def test_the_message_names_the_global_model_that_is_not_finite(number, bad, message):
    records = [{"round": number, "diverged": [1, 2], "scores": [None, None], "weights": [0.0, 0.0]}]
    assert divergence.error(records, DATA, Variables({"w": np.array([0.0, bad])}, {})).startswith(message)


@pytest.mark.parametrize("weights", [([0.0, 1.0], [0.0, 0.0]), ([0.0, 0.0], [0.0, 1.0])])
def test_a_model_that_later_rounds_changed_is_not_blamed(weights):
    """It may have become non-finite after the round in which clients diverged."""
    records = [{"round": r, "diverged": [1], "scores": [None, 1.0], "weights": w} for r, w in enumerate(weights, 2)]
    error = divergence.error(records, DATA, Variables({"w": np.array([np.nan])}, {}))
    assert error.startswith("round 2: clients [1] diverged")
