"""Accuracies of the clients' own models, wherever rows and states lie."""

import functools
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from support import worlds
from support.files import one_line

import fedvg_jax as fv
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
    "min_samples": 8,
    "alpha": 0.5,
    "lr": 0.1,
}
OWN = {
    "data": worlds.images(300),
    "task": fv.models.classification(fv.models.MLP(3, hidden=(4,)), 3, (2, 2, 1)),
}
NAMES = ("personal_accuracy", "accuracy_by_client")


def run(**settings):
    """(history, states) of a run."""
    config, states = fv.Config(**SMALL | settings), []

    def keep(record, state):
        states.append(jax.tree.map(jnp.copy, state))

    return fv.run(config, **OWN, callbacks=[keep]), states


RECORDED = {"method": "ditto", "record": ",".join(NAMES)}


@functools.cache
def ditto():
    return run(**RECORDED)


def accuracies(sim, models):
    """Accuracy of one model for each client on its own test rows; None without any."""
    pairs = zip(models, sim.partition.test, strict=True)
    data = sim.arrays
    return [
        fv.evaluate(sim.task, m, (data.x[own], data.y[own]))["accuracy"] if len(own) else None
        for m, own in pairs
    ]


def test_personal_accuracies_are_those_of_ditto_s_personal_models():
    history, states = ditto()
    sim = fv.simulation(history.config, **OWN)
    for record, state in zip(history.records, states, strict=True):
        expected = accuracies(sim, [tree.take(state.clients.local, client) for client in range(4)])
        assert record["personal_accuracy"] == pytest.approx(expected)
        of_global = accuracies(sim, 4 * [state.variables])
        assert record["accuracy_by_client"] == pytest.approx(of_global)
    values, others = np.array(expected, float), np.array(of_global, float)
    assert record["personal_accuracy_mean"] == pytest.approx(np.nanmean(values))
    assert record["personal_spread"] == pytest.approx(np.nanstd(values))
    assert record["worst_decile"] == pytest.approx(np.nanmin(others))
    assert record["personal_accuracy_mean"] > record["accuracy_by_client_mean"]
    names = ("personal_accuracy_mean", "personal_worst_decile", "spread", "personal_spread")
    assert [history.summary[name] for name in names] == [record[name] for name in names]
    console = Console(file=io.StringIO())
    display.print_results(console, history)
    assert f"{history.summary[names[0]]:.2%}" in console.file.getvalue()


def recorded(history):
    return [[*map(record.get, NAMES)] for record in history.records]


def test_accuracies_do_not_depend_on_where_rows_and_client_states_lie():
    """Clients that have no row yet have the initial model."""
    history, states = run(**RECORDED, placement="host", devices="2")
    assert len(states[0].client_ids) < 4
    assert recorded(history) == recorded(ditto()[0])


def test_accuracies_do_not_depend_on_the_pieces(monkeypatch):
    """Of three clients, of which the second repeats two."""
    sim = fv.simulation(ditto()[0].config, **OWN)
    most = max(map(len, sim.partition.test))
    row_bytes = sim.arrays.x[0].nbytes + sim.arrays.y[0].nbytes
    client_bytes = 3 * tree.num_bytes(sim.state.variables) + most * row_bytes
    monkeypatch.setattr(client_models, "PIECE_BYTES", 3 * client_bytes)
    assert {len(clients) for clients, _ in client_models._pieces(sim)} == {3}
    assert recorded(run(**RECORDED)[0]) == recorded(ditto()[0])


# --- a client's own model is read from the checkpoint


@pytest.mark.parametrize("settings", [{"method": "ditto"}, {"local": "^classifier/"}], ids=str)
def test_models_of_clients_are_their_personal_ones_or_have_their_own_tensors(tmp_path, settings):
    history, (*_, state) = run(out=tmp_path / "run", **settings)
    for k in range(4):
        own = tree.by_path(tree.take(state.clients.local, k))
        expected = tree.by_path(state.variables.params)
        expected |= {path.removeprefix("params/"): own[path] for path in own}
        np.testing.assert_equal(tree.by_path(history.client_variables(k).params), expected)
    with one_line(r"there is no client 4"):
        history.client_variables(4)
