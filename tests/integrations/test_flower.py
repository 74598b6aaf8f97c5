"""FedVG as a strategy of Flower, run by Flower's own loop on clients in this process."""

import importlib
import importlib.util
import json
import tomllib
from pathlib import Path

import numpy as np
import one_round
import pytest
from support import worlds

from fedvg_jax import config

flwr = pytest.importorskip("flwr", reason="needs the extra flower")

from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.serverapp import Grid, strategy as strategies  # noqa: E402

from fedvg_jax.integrations import flower  # noqa: E402

NODES = [11, 22, 33, 44]


class LocalGrid(Grid):
    """Answers every message at once, by a function (node, message) -> reply."""

    def __init__(self, answer, nodes=NODES):
        self.answer, self.nodes = answer, nodes

    def get_node_ids(self):
        return self.nodes

    def send_and_receive(self, messages, *, timeout=None):
        return [self.answer(message.metadata.dst_node_id, message) for message in messages]


LocalGrid.__abstractmethods__ = frozenset()  # Flower's loop calls no other method


def reply(message, arrays, **metrics):
    """Returns a reply; Flower's transport sets the id of the node."""
    record = ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
    content = RecordDict({"arrays": record, "metrics": MetricRecord(metrics)})
    made = Message(content=content, reply_to=message)
    made.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
    return made


def numpy_of(record):
    return {name: array.numpy() for name, array in record.items()}


def jax_client(node, message):
    """Trains on the engine's minibatches of the round."""
    if message.metadata.message_type.startswith("evaluate"):
        return reply(message, {}, **{"num-examples": 1, "seen": 1.0})
    number = message.content["config"]["server-round"] - 1
    client = int(one_round.WORLD.schedule(number).clients[NODES.index(node)])
    variables = one_round.variables_of(numpy_of(message.content["arrays"]))
    trained = one_round.trained(variables, client, number)
    return reply(
        message,
        one_round.named(trained),
        **{"num-examples": len(one_round.WORLD.train[client]), "loss": float(client)},
    )


@pytest.fixture(autouse=True)
def server_process(monkeypatch):
    """Identifies this process as Flower's server, and keeps the order of the cohort that of the engine's schedule."""
    monkeypatch.setattr("random.sample", lambda population, count: list(population)[:count])
    if importlib.util.find_spec("flwr.supercore.task_identity"):
        identity = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
        for name in ("run_id", "node_id", "task_id"):
            monkeypatch.setattr(identity, f"_{name}", 1)


@one_round.every_case("permuted")  # the strategy draws its own permutations
def test_two_rounds_of_flower_equal_two_rounds_of_the_engine(case):
    start = worlds.variables()
    settings, options = (
        one_round.settings(case),
        {"block_of": one_round.block_of, "fraction_evaluate": 0.0},
    )
    strategy = flower.FedVG(settings, gradient=one_round.gradient, **options)
    record = ArrayRecord({name: Array(array) for name, array in one_round.named(start).items()})
    result = strategy.start(LocalGrid(jax_client), record, num_rounds=2)
    first, weights_of_first = one_round.engine_round(case, start)
    expected, weights_of_second = one_round.engine_round(case, first, number=1)
    for round_of_weights, weights in zip(
        strategy.rounds, (weights_of_first, weights_of_second), strict=True
    ):
        np.testing.assert_allclose(round_of_weights.weights, weights, atol=1e-5)
    worlds.assert_close(one_round.variables_of(numpy_of(result.arrays)), expected, 1e-5)


QUADRATIC = {
    "layer.weight": np.array([1.0, -1.0], np.float32),
    "bn.running_var": np.ones(1, np.float32),
}


def gradient(arrays):
    return {"layer.weight": 2 * arrays["layer.weight"]}


def quadratic_client(node, message, count=None):
    arrays = {
        name: array.numpy() * NODES.index(node) / 4
        for name, array in message.content["arrays"].items()
    }
    return reply(
        message,
        arrays,
        **{"num-examples": NODES.index(node) + 1 if count is None else count, "loss": node},
    )


def one_round_of(strategy, client=quadratic_client):
    record = ArrayRecord({name: Array(array) for name, array in QUADRATIC.items()})
    result = strategy.start(LocalGrid(client), record, num_rounds=1)
    return numpy_of(result.arrays), result.train_metrics_clientapp.get(1)


def without_evaluation(kind, **options):
    return kind(fraction_evaluate=0.0, **options)


def test_uniform_weights_of_samples_equal_flowers_fedavg():
    ours, metrics = one_round_of(
        flower.FedVG(config.Config(weighting="samples"), gradient=gradient, fraction_evaluate=0.0)
    )
    flowers, expected = one_round_of(without_evaluation(strategies.FedAvg))
    worlds.assert_close(ours, flowers, 1e-6)
    assert (
        dict(metrics) == dict(expected) and expected["loss"] == (11 + 2 * 22 + 3 * 33 + 4 * 44) / 10
    )


@pytest.mark.parametrize("kind", ["FedAdam", "FedAvgM", "FedProx"])
def test_server_steps_from_the_weighted_mean(kind):
    options = {
        "FedAvgM": {"server_momentum": 0.9, "server_learning_rate": 0.5},
        "FedProx": {"proximal_mu": 0.1},
    }

    def server():
        return without_evaluation(getattr(strategies, kind), **options.get(kind, {}))

    ours, metrics = one_round_of(
        flower.FedVG(config.Config(weighting="samples"), gradient=gradient, server=server())
    )
    flowers, expected = one_round_of(server())
    worlds.assert_close(ours, flowers, 1e-5)
    assert dict(metrics) == dict(expected)


def test_clients_near_a_minimum_weigh_more_and_a_minimum_is_kept():
    strategy = flower.FedVG(config.Config(), gradient=gradient, fraction_evaluate=0.0)
    arrays, _ = one_round_of(strategy)
    (weights,) = strategy.rounds
    assert weights.nodes == NODES and weights.weights.argmax() == 0 and weights.weights[0] > 0.99
    np.testing.assert_allclose(arrays["layer.weight"], 0, atol=1e-6)
    np.testing.assert_allclose(weights.scores, [0, 1, 2, 3])


def test_failed_and_diverged_clients_are_left_out():
    def client(node, message):
        if node == 11:
            return Message(Error(1, "gone"), reply_to=message)
        made = quadratic_client(node, message)
        if node == 22:
            broken = {name: Array(np.full_like(array, np.nan)) for name, array in QUADRATIC.items()}
            made.content["arrays"] = ArrayRecord(broken)
        return made

    strategy = flower.FedVG(
        config.Config(weighting="samples"), gradient=gradient, fraction_evaluate=0.0
    )
    arrays, _ = one_round_of(strategy, client)
    np.testing.assert_allclose(
        arrays["layer.weight"], QUADRATIC["layer.weight"] * (3 * 2 + 4 * 3) / 4 / 7, rtol=1e-6
    )
    np.testing.assert_allclose(strategy.rounds[0].weights, [0, 3 / 7, 4 / 7], rtol=1e-6)


def test_counters_stay_integers_where_the_server_steps_from_the_mean():
    def client(node, message):
        sent = numpy_of(message.content["arrays"])
        assert sent["n"].dtype == np.int64
        return reply(message, QUADRATIC | {"n": sent["n"] + 2}, **{"num-examples": 1})

    server = without_evaluation(strategies.FedAvgM, server_momentum=0.9)
    strategy = flower.FedVG(gradient=gradient, server=server)
    record = ArrayRecord(
        {name: Array(np.asarray(array)) for name, array in (QUADRATIC | {"n": np.int64(3)}).items()}
    )
    arrays = strategy.start(LocalGrid(client), record, num_rounds=2).arrays
    assert arrays["n"].numpy() == 7


@pytest.mark.parametrize("strategy", ["fedvg", "fedavg"])
def test_the_clients_of_the_example_learn_the_digits(strategy, tmp_path, monkeypatch):
    """Its two apps with the settings of its pyproject.toml, in this process."""
    pytest.importorskip("torch", reason="the clients of the example are those of PyTorch")
    folder = Path(__file__).parents[2] / "examples" / "flower_digits"
    monkeypatch.syspath_prepend(str(folder))
    described = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "flwr"
    ]["app"]
    changes = {
        "strategy": strategy,
        "num-server-rounds": 5,
        "results": str(tmp_path / "results.json"),
    }
    client, server = (
        importlib.import_module(described["components"][name].partition(":")[0]).app
        for name in ("clientapp", "serverapp")
    )

    def context(node, **config):
        return Context(1, node, config, RecordDict(), described["config"] | changes)

    def answer(node, message):
        made = client(message, context(node, **{"partition-id": node - 1}))
        made.metadata.__dict__["_src_node_id"] = node
        return made

    server(LocalGrid(answer, list(range(1, 11))), context(0))
    result = json.loads((tmp_path / "results.json").read_text())
    assert (
        len(result["accuracy"]) == 6
        and result["accuracy"][0] < 0.2
        and result["accuracy"][-1] > 0.6
    )
    if strategy == "fedvg":
        weights = np.array(result["weights"])
        assert (
            weights.shape == (5, 10)
            and np.allclose(weights.sum(1), 1, atol=1e-5)
            and weights.std() > 0.001
        )
