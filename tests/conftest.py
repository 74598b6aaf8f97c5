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
    if "PYTEST_XDIST_WORKER" not in os.environ:  # workers inherit both folders, and so do processes that tests start
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
    from fedvg_jax.host import hardware

    # programs that run once, such as draws of a model, compile with the options of XLA_FLAGS: in half the time
    hardware.CPU = hardware.CPU._replace(options_of_once={})
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def frozen_garbage_collection():
    """Exempts what a file leaves behind from garbage collection, which would go through all programs of the files
    before: 10 % of the suite's time, and half of that of files that allocate much."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def traced(monkeypatch):
    """Runs of one test whose programs are traced and not compiled, from a model of ones, without pictures."""
    from support import programs

    from fedvg_jax.runs import chunks
    from fedvg_jax.runs.assemble import registry
    from fedvg_jax.study import figures

    monkeypatch.setattr(chunks, "compile_programs", programs.trace_only)
    monkeypatch.setattr(registry, "make_variables", programs.variables_of_ones)
    monkeypatch.setattr(figures, "draw_run", lambda *_: [])


CALLS_APART = ("test_own_functions", "test_programs", "test_python_sweep")
"""Files whose runs share no program of what they are given."""


@pytest.fixture(autouse=True, scope="module")
def one_call(request):
    """Runs of a file share programs as the points of a sweep do: the same objects that they are given are traced once.

    Their functions read no value that changes."""
    if request.module.__name__.rpartition(".")[2] in CALLS_APART:
        yield
        return
    from fedvg_jax import api
    from fedvg_jax.core import reuse
    from fedvg_jax.core.types import Task
    from fedvg_jax.runs.assemble import programs, simulation

    names = ("task", "algorithm", "weighting", "selection")
    traced_anew, make_program, known, keeps = api.traced_anew, programs.make_program, {}, {}

    def of_the_file(given):
        objects = tuple(getattr(given, name) for name in names)
        key = tuple(map(id, objects))
        if key not in known:
            known[key] = objects, traced_anew(given)  # with the objects, whose numbers stay theirs
        return given._replace(**{name: getattr(known[key][1], name) for name in names})

    def shared(config, model, algorithm=None, weighting=None, devices=None, keep=None):
        key = id(model) if isinstance(model, Task) else None, id(algorithm), id(weighting)
        keep = keeps.setdefault(key, ((model, algorithm, weighting), reuse.keeper()))[1]
        return make_program(config, model, algorithm, weighting, devices, keep)

    with pytest.MonkeyPatch.context() as patch:
        for module in (api, simulation):
            patch.setattr(module, "traced_anew", of_the_file)
        patch.setattr(programs, "make_program", shared)
        yield


@pytest.fixture
def x64():
    """Double precision for one test."""
    import jax

    with jax.enable_x64(True):
        yield
