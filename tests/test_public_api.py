"""The public names: one table, enough for a research script; loaded histories; progress."""

import ast
import importlib
import inspect
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import linear, worlds

import fedvg_jax as fv
from fedvg_jax.resolve.custom import Objects


def test_public_names_are_those_of_the_stub_and_are_loaded_when_they_are_used():
    stub = ast.parse(Path(f"{fv.__file__}i").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    table = {alias.asname: node.module for node in imports for alias in node.names}
    assert sorted(table) == fv.__all__ and set(table) <= set(dir(fv)) and len(table) > 50
    for name, module in table.items():
        home = importlib.import_module(module) if module != "fedvg_jax" else None
        named = getattr(home, name, None) or importlib.import_module(f"{module}.{name}")
        assert getattr(fv, name) is named, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fv.nothing  # noqa: B018


# --- a research script


def linear_regression():
    """Least squares on 40 rows of three features, with `fv` names only."""

    def errors(params, batch, mask):
        return jnp.where(mask, (batch.x @ params["w"] - batch.y) ** 2, 0).sum()

    def loss(params, stats, batch, mask, train):
        return errors(params, batch, mask) / jnp.maximum(mask.sum(), 1).astype(batch.x.dtype), stats

    return fv.Task(
        init=lambda key: fv.Variables({"w": jnp.zeros(3)}, {}),
        loss=loss,
        predict=lambda params, stats, batch: batch.x @ params["w"],
        measure=lambda params, stats, batch, mask: {
            "loss": errors(params, batch, mask),
            "rows": mask.sum(),
        },
        metrics=lambda sums: {"loss": sums["loss"] / sums["rows"]},
        block_of=str,
    )


@pytest.mark.parametrize("function", [fv.run, fv.run_sweep, fv.simulation])
def test_signatures_have_the_objects_that_a_call_takes(function):
    parameters = inspect.signature(function).parameters
    assert {*Objects.__annotations__} <= {*parameters}
    assert "objects" not in parameters


def test_research_script_needs_public_names_only(x64):
    """Builds schedules, runs rounds, evaluates, and differentiates; the derivative is that of central differences."""
    x = np.random.default_rng(0).normal(size=(40, 3))
    pool, val_rows = fv.Batch(x, x @ np.array([1.0, -2.0, 0.5])), np.arange(32, 40)
    data = fv.Data(pool, *[val_rows[None].astype(np.int32)] * 3)
    clients = [np.arange(8), np.arange(8, 20), np.arange(20, 32)]
    task, algorithm = linear_regression(), fv.algorithms.fedprox()
    weighting, hyper = fv.weightings.samples(), {"lr": 0.05, "fedprox.mu": 0.1}
    state = fv.init_state(task, algorithm, len(clients), hyper)
    schedules = [fv.make_schedule(i, clients, cohort_size=2, batch_size=4) for i in range(3)]

    def make_round(executor):
        return fv.make_round(task, algorithm, weighting, executor, fv.sgd, len(clients))

    fast, final = worlds.jit(make_round(fv.executors.lanes(1))), state
    for schedule in schedules:
        final, metrics = fast(final, schedule, data, hyper)
    assert metrics.weights.shape == (2,)
    rounds = fv.over_rounds(make_round(fv.unrolled(fv.max_steps(schedules))))

    @jax.jit
    def validation_loss(hyper):
        model = rounds(state, fv.stack_schedules(schedules), data, hyper)[0].variables
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[val_rows], pool)
        return task.loss(*model, rows, jnp.ones(8, bool), False)[0]

    value, gradient = fv.hypergradient(validation_loss, hyper, ["lr", "fedprox.mu"])
    val = fv.Batch(pool.x[val_rows], pool.y[val_rows])
    expected = pytest.approx(float(value), rel=1e-12)
    assert fv.evaluate(task, final.variables, data)["val_loss"] == expected
    assert fv.evaluate(task, final.variables, val)["loss"] == expected
    for name, at in hyper.items():
        ends = [validation_loss({**hyper, name: at + sign * 1e-5}) for sign in (1, -1)]
        assert float(gradient[name]) == pytest.approx(float(ends[0] - ends[1]) / 2e-5, rel=1e-6)


# --- runs and their folders


def test_models_that_callbacks_and_metrics_keep_outlive_the_round():
    states, models = [], []

    def metric(model, data):
        models.append(model)
        return 0.0

    history = fv.run(
        fv.Config(rounds=3, clients=4, algorithm="fedavgm", eval_every=1),
        **linear.GIVEN,
        callbacks=[lambda record, state: states.append(state)],
        metrics={"mine": metric},
    )
    assert [int(state.round) for state in states] == [1, 2, 3]
    kept = np.array([state.variables.params["w"] for state in states])
    np.testing.assert_array_equal(kept, [model.params["w"] for model in models])
    np.testing.assert_array_equal(kept[-1], history.variables.params["w"])
    assert len(np.unique(kept, axis=0)) == 3
    for leaf in jax.tree.leaves([state.server for state in states]):
        assert np.isfinite(leaf).all()


def test_loaded_history_is_the_history_of_the_run(tmp_path):
    out, export = tmp_path / "out", tmp_path / "model.safetensors"
    config = fv.Config(rounds=2, local_epochs=1, eval_every=1, out=out, export=export)
    finished = fv.run(config, progress=True)
    loaded = fv.History.load(out)
    for name in ("records", "summary", "config", "folder"):
        assert getattr(loaded, name) == getattr(finished, name)
    chex.assert_trees_all_equal(loaded.variables, finished.variables)
    chex.assert_trees_all_equal(loaded.best_variables, finished.best_variables)
    assert repr(loaded) == repr(finished)
