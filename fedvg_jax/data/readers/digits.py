"""Reads the 1,797 handwritten digits of scikit-learn: 8 x 8, grey, no download."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedvg_jax.data.arrays import Arrays, check


def load() -> Arrays:
    """Returns the digits, x uint8 [1797, 8, 8, 1] scaled from 0..16 to 0..255; there is no official test set.

    Source: sklearn.datasets.load_digits (UCI, Optical Recognition of Handwritten Digits, 1998).
    """
    from sklearn.datasets import load_digits  # a second to import, needed here only

    bunch: Any = load_digits()
    x = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    names = tuple(str(name) for name in bunch.target_names)
    return check(Arrays("digits", x, bunch.target, names, len(x)), "digits")
