"""Examples give what they promise."""

import dataclasses
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from support import worlds

import fedvg_jax
from fedvg_jax import executors
from fedvg_jax.algorithms import fedavg

EXAMPLES = Path(__file__).parent.parent / "examples"
COMMANDS = {"one_round", "regression", "seeds"}
NOTEBOOKS = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in COMMANDS)


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_seeds_in_one_program_equal_the_runs_of_a_sweep(monkeypatch):
    example = loaded("seeds")
    config = dataclasses.replace(example.CONFIG, rounds=2, local_epochs="1", model="linear")
    monkeypatch.setattr(example, "CONFIG", config)
    results = fedvg_jax.run_sweep(config, {("seed", "partition_seed"): [(0, 0), (1, 1)]})
    expected = [each.result.summary["test_accuracy_final"] for each in results]
    assert example.main(2) == pytest.approx(expected)


def test_the_round_in_the_open_equals_the_round_of_a_run(x64):
    example = loaded("one_round")
    config = dataclasses.replace(example.CONFIG, weighting="fedvg", rounds=2, model="linear")
    sim = fedvg_jax.simulation(config)

    def doubled(tree):
        return jax.tree.map(lambda x: x.astype(float) if x.dtype == jnp.float32 else x, tree)

    def loss(params, batch):
        return sim.task.loss(params, {}, *batch, True)[0]

    @worlds.jit
    def in_the_open(*given):
        return example.federated_round(loss, *given)

    state, hyper = doubled(sim.state), doubled(sim.hyper)
    parts = sim.task, fedavg(), sim.weighting, executors.vmapped(), fedvg_jax.sgd
    step = worlds.jit(fedvg_jax.make_round(*parts, sim.config.clients))
    params = state.variables.params
    for number in range(2):
        state, _ = step(state, sim.schedule(number), sim.data, hyper)
        params = in_the_open(params, hyper["lr"], *example.minibatches(sim, number))
    worlds.assert_close(state.variables.params, params, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_an_example_runs_in_small(name, tmp_path):
    picture = tmp_path / "picture.png"
    with jax.numpy_dtype_promotion("standard"):  # as a reader runs it
        loaded(name).main(fast=True, path=picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
