"""The first lines of a run."""

import pytest

import fedvg_jax as fv
from fedvg_jax.views import display


@pytest.mark.parametrize(("size", "weighting", "expected"), [
    (display.FEW_ROWS - 1, "fedvg", True), (display.FEW_ROWS, "fedvg", False), (2, "uniform", False),
])  # fmt: skip
def test_a_line_says_that_few_rows_make_noisy_weights_where_they_do(size, weighting, expected):
    config = fv.Config(model="linear", weighting=weighting, validation={"size": size})
    assert ("D_val   " in display.start_text(fv.simulation(config))) == expected
