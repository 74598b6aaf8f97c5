"""Accuracies of the clients' own models, wherever rows and states lie."""

import functools
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from support import worlds

import fedvg_jax as fv
from fedvg_jax import config, resolve
from fedvg_jax.core import tree
from fedvg_jax.runs import client_models
from fedvg_jax.views import display

SMALL = {
    "clients": 4,
    "rounds": 2,
    "local_epochs": 1,
    "lanes": "1",
    "eval_every": 1,
    "weighting": "samples",
}
SMALL |= {"min_samples": 8, "alpha": 0.5, "lr": 0.1}
OWN = {
    "data": worlds.images(300),
    "task": fv.models.classification(fv.models.MLP(3, hidden=(4,)), 3, (2, 2, 1)),
}
NAMES = ("personal_accuracy", "accuracy_by_client")


@functools.cache
def run(**settings):
    """(settings, history, states) of a run."""
    made, states = config.Config(**SMALL | {"record": ",".join(NAMES)} | settings), []
    history = fv.run(
        made, **OWN, callbacks=[lambda record, state: states.append(jax.tree.map(jnp.copy, state))]
    )
    return made, history, states


def accuracies(sim, models):
    """Accuracy of one model for each client on its own test rows; None without any."""
    pairs = zip(models, sim.partition.test, strict=True)
    data = sim.arrays
    return [
        fv.evaluate(sim.task, m, (data.x[own], data.y[own]))["accuracy"] if len(own) else None
        for m, own in pairs
    ]


def test_personal_accuracies_are_those_of_ditto_s_personal_models():
    made, history, states = run(method="ditto")
    sim = resolve.experiment.simulation(made, **OWN)
    for record, state in zip(history.records, states, strict=True):
        expected = accuracies(sim, [tree.take(state.clients.local, client) for client in range(4)])
        assert record["personal_accuracy"] == pytest.approx(expected)
        of_global = accuracies(sim, 4 * [state.variables])
        assert record["accuracy_by_client"] == pytest.approx(of_global)
    values = np.array([value for value in expected if value is not None])
    assert record["personal_accuracy_mean"] == pytest.approx(values.mean())
    assert record["personal_spread"] == pytest.approx(values.std())
    assert record["worst_decile"] == pytest.approx(
        min(value for value in of_global if value is not None)
    )
    assert record["personal_accuracy_mean"] > record["accuracy_by_client_mean"]
    names = ("personal_accuracy_mean", "personal_worst_decile", "spread", "personal_spread")
    assert [history.summary[name] for name in names] == [record[name] for name in names]
    console = Console(file=io.StringIO())
    display.print_results(console, history)
    assert f"{history.summary[names[0]]:.2%}" in console.file.getvalue()


def recorded(result):
    return [[*map(record.get, NAMES)] for record in result[1].records]


def test_accuracies_do_not_depend_on_where_rows_and_client_states_lie():
    """Clients that have no row yet have the initial model."""
    some = run(method="ditto", placement="host", devices="2")
    assert len(some[2][0].client_ids) < 4
    assert recorded(some) == recorded(run(method="ditto"))


def test_accuracies_do_not_depend_on_the_pieces(monkeypatch):
    """Of three clients, of which the second repeats two."""
    sim = resolve.experiment.simulation(run(method="ditto")[0], **OWN)
    most = max(map(len, sim.partition.test))
    client_bytes = 3 * tree.num_bytes(sim.state.variables) + most * sum(
        leaf[:1].nbytes for leaf in (sim.arrays.x, sim.arrays.y)
    )
    monkeypatch.setattr(client_models, "PIECE_BYTES", 3 * client_bytes)
    assert {len(clients) for clients, _ in client_models._pieces(sim)} == {3}
    assert recorded(run.__wrapped__(method="ditto")) == recorded(run(method="ditto"))


# --- a client's own model is read from the checkpoint


def run_small(callbacks=(), **settings):
    return fv.run(fv.Config(**SMALL | settings), **OWN, callbacks=callbacks)


@pytest.mark.parametrize("settings", [{"method": "ditto"}, {"local": "^classifier/"}], ids=str)
def test_models_of_clients_are_their_personal_ones_or_have_their_own_tensors(tmp_path, settings):
    states = []
    history = run_small(
        [lambda record, state: states.append(jax.tree.map(jnp.copy, state))],
        out=tmp_path / "run",
        **settings,
    )
    state = states[-1]
    for k in range(4):
        own = {
            path.removeprefix("params/"): leaf
            for path, leaf in tree.by_path(tree.take(state.clients.local, k)).items()
        }
        expected = {**tree.by_path(state.variables.params), **own}
        got = tree.by_path(history.client_variables(k).params)
        assert got.keys() == expected.keys()
        for path, leaf in got.items():
            np.testing.assert_array_equal(leaf, expected[path])
    with pytest.raises(fv.UsageError, match=r"\A[^\n]*there is no client 4[^\n]*\Z"):
        history.client_variables(4)
