"""Reads the 1,797 handwritten digits of scikit-learn: 8 x 8, grey, no download."""

from __future__ import annotations

import numpy as np

from fedvg_jax.data.arrays import Arrays, check
from fedvg_jax.data.readers import scikit_learn


def load() -> Arrays:
    """Returns the digits, x uint8 [1797, 8, 8, 1] scaled from 0..16 to 0..255; there is no official test set.

    Source: sklearn.datasets.load_digits (UCI, Optical Recognition of Handwritten Digits, 1998).
    """
    pixels, labels, names = scikit_learn.load("digits")
    x = np.round(pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return check(Arrays("digits", x, labels, names, len(x)), "digits")
