"""Strict settings for every test: no silent promotion of dtypes or ranks, no warning from the package, four devices."""

import functools
import gc
import os
import shutil
import tempfile
from pathlib import Path

import xla_flags

# before jax is imported, here and in every process a test starts
os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "4",
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
}
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("XLA_FLAGS", xla_flags.environment())

import order
import pytest
from quick import QUICK

gc.set_threshold(200_000, 20, 100)  # tracing makes millions of objects that live on


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "error:::fedvg_jax")
    config.option.loadscopereorder = False  # pytest-xdist keeps the order of the files
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # workers of xdist inherit it, and what they start
        folder = tempfile.mkdtemp(prefix="fedvg_jax-tests-")
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
        config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))


def pytest_collection(session):
    if session.config.pluginmanager.hasplugin("dsession"):
        return  # pytest-xdist's controller collects nothing, and the workers wait for its import of a second
    import hypothesis

    hypothesis.settings.register_profile("laws", deadline=None, max_examples=50, derandomize=True)
    hypothesis.settings.load_profile("laws")


def pytest_ignore_collect(collection_path, config):
    """`-m quick` imports no other file than those with a quick law."""
    if config.getoption("markexpr") != "quick" or collection_path.suffix != ".py":
        return None
    return None if _below_tests(collection_path) in {name.partition("::")[0] for name in QUICK} else True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class LoadGroupsOfFiles(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return order.group_of(file.removeprefix("tests/"))

    return LoadGroupsOfFiles(config, log)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: order.rank(_below_tests(item.path)))
    for item in items:
        if " at 0x" in item.nodeid:  # the workers of pytest-xdist must collect the same names
            raise pytest.UsageError(
                f"{item.nodeid} names an address, which processes do not share; give its case an id"
            )
        file = _below_tests(item.path)
        if file in QUICK or f"{file}::{getattr(item, 'originalname', None) or item.name}" in QUICK:
            item.add_marker("quick")


def _below_tests(path):
    return Path(path).relative_to(Path(__file__).parent).as_posix()


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
