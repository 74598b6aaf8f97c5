"""Strict settings for every test: no silent promotion of dtypes or ranks, no warning from the package, four devices."""

import functools
import gc
import os
import shutil
import tempfile

from support import xla_flags

# before jax is imported, here and in every process a test starts
os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "4",
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",  # no line of source beside each operation: 4 % of the time
}
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("XLA_FLAGS", xla_flags.environment())

import pytest

gc.set_threshold(200_000, 20, 100)  # tracing makes millions of objects that live on


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "error:::fedvg_jax")
    # workers inherit both folders, and so do processes that tests start
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = tempfile.mkdtemp(prefix="fedvg_jax-tests-")
        os.environ["FEDVG_CACHE_DIR"] = folder
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(folder, "xla"))
        config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))


def pytest_collection(session):
    if session.config.pluginmanager.hasplugin("dsession"):
        return  # pytest-xdist's controller collects nothing, and the workers wait for its import of a second
    import hypothesis

    hypothesis.settings.register_profile("laws", deadline=None, max_examples=50, derandomize=True)
    hypothesis.settings.load_profile("laws")


def pytest_ignore_collect(collection_path, config):
    """`-m quick` imports no other file than those with a quick test: some need what a wheel lacks."""
    if config.getoption("markexpr") != "quick" or collection_path.suffix != ".py":
        return None
    return None if "mark.quick" in collection_path.read_text(encoding="utf-8") else True


def pytest_collection_modifyitems(items):
    for item in items:
        if " at 0x" in item.nodeid:  # the workers of pytest-xdist must collect the same names
            raise pytest.UsageError(
                f"{item.nodeid} names an address, which processes do not share; give its case an id"
            )


def pytest_collection_finish():
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def frozen_garbage_collection():
    """Exempts what a file leaves behind from garbage collection, which would go through all programs of the files
    before: 10 % of the suite's time, and half of that of files that allocate much."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def x64():
    """Double precision for one test."""
    import jax

    with jax.enable_x64(True):
        yield
