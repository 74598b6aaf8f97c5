"""Accuracies of the clients' own models, wherever rows and memories lie, and after fine-tuning."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

import fedvg_jax as fv
from fedvg_jax import config
from fedvg_jax.core import tree
from fedvg_jax.runs import client_models
from fedvg_jax.runs.assemble import simulation
from fedvg_jax.runs.placement import memory

SMALL = {"clients": 4, "rounds": 2, "local_epochs": 1, "lanes": "1", "eval_every": 1, "weighting": "samples"}
SMALL |= {"min_samples": 8, "alpha": 0.5, "lr": 0.1}
OWN = {"data": worlds.images(300), "task": fv.models.classification(fv.models.MLP(3, hidden=(4,)), 3, (2, 2, 1))}
NAMES = ("personal_accuracy", "finetuned_accuracy", "accuracy_by_client")


@functools.cache
def run(**settings):
    """(settings, history, states) of a run."""
    made, states = config.Config(**SMALL | {"record": ",".join(NAMES)} | settings), []
    history = fv.run(made, **OWN, callbacks=[lambda record, state: states.append(jax.tree.map(jnp.copy, state))])
    return made, history, states


def accuracies(sim, models):
    """Accuracy of one model for each client on its own test rows; None without any."""
    pairs = zip(models, sim.partition.test, strict=True)
    data = sim.arrays
    return [fv.evaluate(sim.task, m, (data.x[own], data.y[own]))["accuracy"] if len(own) else None for m, own in pairs]


def test_personal_accuracies_are_those_of_ditto_s_personal_models():
    made, history, states = run(method="ditto")
    sim = simulation.simulation(made, **OWN)
    for record, state in zip(history.records, states, strict=True):
        expected = accuracies(sim, [tree.take(state.clients.local, client) for client in range(4)])
        assert record["personal_accuracy"] == pytest.approx(expected)
        of_global = accuracies(sim, 4 * [state.variables])
        assert record["accuracy_by_client"] == pytest.approx(of_global)
    values = np.array([value for value in expected if value is not None])
    assert record["personal_accuracy_mean"] == pytest.approx(values.mean())
    assert record["personal_spread"] == pytest.approx(values.std())
    assert record["worst_decile"] == pytest.approx(min(value for value in of_global if value is not None))
    assert record["personal_accuracy_mean"] > record["accuracy_by_client_mean"]
    names = ("personal_accuracy_mean", "finetuned_worst_decile", "spread", "finetuned_spread")
    assert [history.summary[name] for name in names] == [record[name] for name in names]


def test_finetuned_accuracies_are_those_of_the_models_that_all_clients_train_next():
    """Half of the clients have flipped labels. MOON's memory is the model that the client has trained; without its
    loss, it trains as FedAvg does."""
    algorithm, states = fv.algorithms.moon()._replace(loss=None), []
    made = config.Config(**SMALL | {"record": "finetuned_accuracy", "join_ratio": 1.0, "local_epochs": 2})
    made = config.apply(made, {"finetune_epochs": 2, "corrupt.kind": "label_flip", "corrupt.clients": 0.5}, "test")
    sim = simulation.simulation(made, **OWN, algorithm=algorithm)
    history = fv.run(
        made, **OWN, algorithm=algorithm, callbacks=[lambda record, state: states.append(tree.copies(state))]
    )
    next_models = [fv.Variables(tree.take(states[1].clients, client), {}) for client in range(4)]
    assert history.records[0]["finetuned_accuracy"] == pytest.approx(accuracies(sim, next_models))


def test_finetuning_after_the_last_round_has_its_learning_rate():
    """A cosine schedule would give 0 to one more round."""
    record = run(record="finetuned_accuracy,accuracy_by_client", lr_schedule="cosine")[1].records[-1]
    assert record["finetuned_accuracy"] != record["accuracy_by_client"]


def test_finetuned_accuracies_of_a_round_do_not_depend_on_how_many_follow():
    """So that a run resumed with more rounds equals one without a break."""
    settings = {"record": "finetuned_accuracy", "lr_schedule": "exponential:0.5", "finetune_epochs": 3}
    shorter, longer = (run(rounds=rounds, **settings)[1].records[1] for rounds in (2, 3))
    assert shorter["finetuned_accuracy"] == longer["finetuned_accuracy"]


def recorded(result):
    return [{name: record[name] for name in NAMES} for record in result[1].records]


def test_accuracies_do_not_depend_on_where_rows_and_memories_lie():
    """Clients that have no row yet have the initial model."""
    some = run(method="ditto", placement="host", devices="2")
    assert len(some[2][0].memory_clients) < 4
    assert recorded(some) == recorded(run(method="ditto"))


def test_accuracies_do_not_depend_on_the_pieces(monkeypatch):
    """Of three clients, of which the second repeats two."""
    sim = simulation.simulation(run(method="ditto")[0], **OWN)
    most = max(len(test) + len(train) for test, train in zip(sim.partition.test, sim.partition.train, strict=True))
    client_bytes = 3 * memory.num_bytes(sim.state.variables) + most * sum(
        leaf[:1].nbytes for leaf in (sim.arrays.x, sim.arrays.y)
    )
    monkeypatch.setattr(client_models, "PIECE_BYTES", 3 * client_bytes)
    assert {len(clients) for clients, _ in client_models._pieces(sim, 0, is_finetuned=True)} == {3}
    assert recorded(run.__wrapped__(method="ditto")) == recorded(run(method="ditto"))
