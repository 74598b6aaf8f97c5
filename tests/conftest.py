"""Strict settings for every test: no silent promotion of dtypes or ranks, no warning from the package, four devices."""

import os

# before jax is imported, here and in every process a test starts
os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "4",
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
}

import hypothesis
import pytest

hypothesis.settings.register_profile("laws", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.load_profile("laws")


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "error:::fedvg_jax")


@pytest.fixture
def x64():
    """Double precision for one test."""
    import jax

    with jax.enable_x64(True):
        yield
