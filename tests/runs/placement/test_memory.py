"""Memory of a run is estimated before allocation, and a run that needs more than the machine has is refused."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import fedvg_jax as fv
from fedvg_jax.config import Config
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import hardware as hw
from fedvg_jax.runs.assemble import registry, simulation, tables
from fedvg_jax.runs.placement import memory

SETTINGS = Config(clients=4, join_ratio=0.5, rounds=2, local_epochs=1, alpha=1.0, min_samples=2)


def test_estimate_counts_state_arrays_and_minibatches():
    settings = replace(SETTINGS, algorithm="scaffold", weighting="native")
    made = simulation.simulation(settings)
    table = tables.table_shape(
        settings, len(made.arrays.y), max(map(len, made.partition.train)), fv.algorithms.scaffold()
    )
    actual = memory.estimate(settings, made.data.pool, table, made.state, registry.make_executor(settings))
    variables = sum(leaf.nbytes for leaf in jax.tree.leaves(made.state.variables))
    leaves = [x for x in jax.tree.leaves(made.state) if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)]
    assert actual["state of the server and the clients"] == pytest.approx(2 * sum(x.nbytes for x in leaves), abs=64)
    assert actual["models of a cohort"] == 2 * variables
    assert actual["minibatches of a chunk"] == 2 * np.asarray(made.schedule(0).rows).nbytes
    assert actual["data"] == sum(leaf.nbytes for leaf in jax.tree.leaves(made.data.pool))


@pytest.mark.parametrize("changes", [{"local_epochs": 999_999_999}, {"local_epochs": "1:999999999"}])
def test_run_beyond_this_machine_is_refused_with_its_estimate_before_allocation(changes):
    with pytest.raises(UsageError, match=r"needs about [\d,.]+ GiB of memory by estimate .* there is [\d,.]+ GiB"):
        simulation.simulation(replace(SETTINGS, **changes))


def test_run_is_refused_on_a_smaller_machine_unless_forced():
    with hw.assumed(hw.current()._replace(memory_bytes=2**20)):
        with pytest.raises(UsageError, match="--force"):
            simulation.simulation(replace(SETTINGS, placement="device"))
        assert simulation.simulation(replace(SETTINGS, placement="device", force=True)).config.force


def test_temporaries_of_the_compiled_program_count():
    sorted_products = jax.jit(lambda x: jax.numpy.sort((x @ x.T).ravel())[::7].sum())
    compiled = sorted_products.lower(np.ones((512, 8), np.float32)).compile()
    actual = memory.program_bytes(compiled)
    assert actual["temporaries"] >= 512 * 512 * 4 and actual["arguments"] == 512 * 8 * 4
    with hw.assumed(hw.current()._replace(memory_bytes=2**19)):
        with pytest.raises(UsageError, match="temporaries"):
            memory.refuse_unfitting(Config(), actual)
        memory.refuse_unfitting(Config(force=True), actual)
