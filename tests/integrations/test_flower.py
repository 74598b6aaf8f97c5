"""FedVG as a strategy of Flower, run by Flower's own loop on clients in this process."""

import importlib
import importlib.util
import json
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from support import worlds

from fedvg_jax.core import tree
from fedvg_jax.core.types import Variables

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


def record_of(arrays):
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def numpy_of(record):
    return {name: array.numpy() for name, array in record.items()}


def reply(message, arrays, **metrics):
    """Returns a reply; Flower's transport sets the id of the node."""
    content = RecordDict({"arrays": record_of(arrays), "metrics": MetricRecord(metrics)})
    made = Message(content=content, reply_to=message)
    made.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
    return made


@pytest.fixture(autouse=True)
def server_process(monkeypatch):
    """Identifies this process as Flower's server, and keeps the order of the cohort that of the engine's schedule."""
    monkeypatch.setattr("random.sample", lambda population, count: list(population)[:count])
    if importlib.util.find_spec("flwr.supercore.task_identity"):
        identity = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
        for name in ("run_id", "node_id", "task_id"):
            monkeypatch.setattr(identity, f"_{name}", 1)


# --- clients that train on the minibatches of the engine's schedule

WORLD = worlds.world([11, 5, 2, 8], batch_size=4, cohort_size=4, local_epochs=1)._replace(val=None)
"""Four clients, all in every round, each with a step or more."""

_of_batch = worlds.jit(jax.grad(worlds.TASK.loss, has_aux=True), static_argnums=4)


def gradient_of_rows(params, stats, rows):
    """Returns the gradient of the rows of a minibatch and the statistics after it."""
    batch, _ = tree.gather(WORLD.pool, rows)
    return jax.device_get(_of_batch(params, stats, batch, rows >= 0, True))


def named(variables: Variables) -> dict[str, np.ndarray]:
    """Returns the arrays of a model by name; statistics stand beside the parameters of their layer."""
    parts = [flatten_dict(part, sep=".") for part in variables]
    return {name: np.asarray(leaf) for part in parts for name, leaf in part.items()}


def variables_of(arrays) -> Variables:
    """Returns the model whose arrays `named` returned."""
    params, stats = {}, {}
    for name, array in arrays.items():
        part = stats if name.endswith(("mean", "var")) else params
        part[name] = np.asarray(array)
    return Variables(unflatten_dict(params, sep="."), unflatten_dict(stats, sep="."))


def validation_gradient(arrays):
    """Returns the gradient of the mean loss on D_val, one minibatch of the engine after the other."""
    variables = variables_of(arrays)
    counts = (WORLD.scoring >= 0).sum(1)
    gradients = [gradient_of_rows(*variables, rows)[0] for rows in WORLD.scoring]
    mean = jax.tree.map(lambda *g: np.average(g, 0, counts), *gradients)
    return named(Variables(mean, {}))


def jax_client(node, message):
    """Trains on the engine's minibatches of the round, by plain SGD."""
    number = message.content["config"]["server-round"] - 1
    schedule = WORLD.schedule(number)
    position = NODES.index(node)
    params, stats = variables_of(numpy_of(message.content["arrays"]))
    first = schedule.start[position]
    for rows in schedule.rows[first : first + schedule.num_steps[position]]:
        gradients, stats = gradient_of_rows(params, stats, rows)
        params = tree.sub(params, tree.scale(worlds.HYPER["lr"], gradients))
    count = len(WORLD.train[int(schedule.clients[position])])
    return reply(message, named(Variables(params, stats)), **{"num-examples": count})


@pytest.mark.parametrize(
    "case", [("samples+fedvg", "layerwise", "l1"), ("fedvg", "blockwise", "l2")], ids=str
)
def test_two_rounds_of_flower_equal_two_rounds_of_the_engine(case):
    weighting, granularity, norm = case
    options = {"granularity": granularity, "norm": norm}
    algorithm = worlds.algorithm("fedavg")
    plan = [WORLD.schedule(number, 2) for number in (0, 1)]
    rule = worlds.weighting(weighting, algorithm, worlds.TASK, WORLD.batch_size, **options)
    played = worlds.play(WORLD, plan, algorithm, rule, worlds.TASK)
    strategy = flower.FedVG(
        validation_gradient,
        eps=worlds.HYPER["fedvg.eps"],
        with_samples="samples" in weighting,
        block_of=lambda name: worlds.TASK.block_of(name.replace(".", "/")),
        fraction_evaluate=0.0,
        **options,
    )
    start = record_of(named(worlds.variables()))
    result = strategy.start(LocalGrid(jax_client), start, num_rounds=2)
    for of_round, (_, metrics) in zip(strategy.rounds, played, strict=True):
        ours = [of_round[node] for node in NODES]
        np.testing.assert_allclose(ours, metrics.weights, atol=1e-5)
    state, _ = played[-1]
    worlds.assert_close(variables_of(numpy_of(result.arrays)), state.variables, 1e-5)


# --- a quadratic

QUADRATIC = {"layer.weight": np.array([1.0, -1.0], np.float32), "bn.count": np.array([3])}


def gradient(arrays):
    return {"layer.weight": 2 * arrays["layer.weight"]}


def quadratic_client(node, message):
    scale = NODES.index(node)
    sent = numpy_of(message.content["arrays"])
    arrays = {"layer.weight": sent["layer.weight"] * scale / 4, "bn.count": sent["bn.count"] + 2}
    return reply(message, arrays, **{"num-examples": scale + 1, "loss": node})


def run(strategy, client=quadratic_client, num_rounds=1):
    return strategy.start(LocalGrid(client), record_of(QUADRATIC), num_rounds=num_rounds)


def test_clients_near_a_minimum_weigh_more_and_metrics_are_those_of_flower():
    strategy = flower.FedVG(gradient, fraction_evaluate=0.0)
    result = run(strategy)
    assert strategy.rounds[0][11] > 0.99
    np.testing.assert_allclose(result.arrays["layer.weight"].numpy(), 0, atol=1e-6)
    expected = run(strategies.FedAvg(fraction_evaluate=0.0))
    assert dict(result.train_metrics_clientapp[1]) == dict(expected.train_metrics_clientapp[1])


@pytest.mark.parametrize(
    ("kind", "options"),
    [("FedAdam", {}), ("FedAvgM", {"server_momentum": 0.9, "server_learning_rate": 0.5})],
)
def test_another_strategy_steps_from_the_mean_and_counters_stay_integers(kind, options):
    """The least gradient is 0, so the mean is 0, as of the first client alone."""
    other = getattr(strategies, kind)
    both = type("Both", (flower.FedVG, other), {})
    ours = run(both(gradient, fraction_evaluate=0.0, **options), num_rounds=2).arrays
    alone = {"min_train_nodes": 1, "fraction_train": 0.25, "fraction_evaluate": 0.0}
    expected = run(other(**alone, **options), num_rounds=2).arrays
    name = "layer.weight"
    np.testing.assert_allclose(ours[name].numpy(), expected[name].numpy(), rtol=1e-5, atol=1e-6)
    assert ours["bn.count"].numpy().dtype == np.int64 and ours["bn.count"].numpy() == [7]


def test_failed_and_diverged_clients_are_left_out():
    def client(node, message):
        if node == 11:
            return Message(Error(1, "gone"), reply_to=message)
        made = quadratic_client(node, message)
        if node == 22:
            broken = {"layer.weight": np.full(2, np.nan, np.float32), "bn.count": np.array([5])}
            made.content["arrays"] = record_of(broken)
        return made

    strategy = flower.FedVG(gradient, eps=1e9, with_samples=True, fraction_evaluate=0.0)
    arrays = run(strategy, client).arrays
    weights = {22: 0, 33: (1 / 2 + 3 / 7) / 2, 44: (1 / 2 + 4 / 7) / 2}
    assert strategy.rounds == [pytest.approx(weights)]
    scale = (weights[33] * 2 + weights[44] * 3) / 4
    np.testing.assert_allclose(arrays["layer.weight"].numpy(), [scale, -scale], rtol=1e-6)


def test_the_clients_of_the_example_learn_the_digits(tmp_path, monkeypatch):
    """Its two apps with the settings of its pyproject.toml, in this process."""
    pytest.importorskip("torch", reason="the clients of the example are those of PyTorch")
    folder = Path(__file__).parents[2] / "examples" / "flower_digits"
    monkeypatch.syspath_prepend(str(folder))
    described = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    app = described["tool"]["flwr"]["app"]
    path = tmp_path / "results.json"
    settings = app["config"] | {
        "num-server-rounds": 5,
        "results": str(path),
    }
    modules = [app["components"][name].partition(":")[0] for name in ("clientapp", "serverapp")]
    client, server = (importlib.import_module(module).app for module in modules)

    def context(node, **config):
        return Context(1, node, config, RecordDict(), settings)

    def answer(node, message):
        made = client(message, context(node, **{"partition-id": node - 1}))
        made.metadata.__dict__["_src_node_id"] = node
        return made

    server(LocalGrid(answer, list(range(1, 11))), context(0))
    result = json.loads(path.read_text())
    accuracy = result["accuracy"]
    weights = np.array(result["weights"])
    assert len(accuracy) == 6 and accuracy[0] < 0.2 and accuracy[-1] > 0.6
    np.testing.assert_allclose(weights.sum(1), np.ones(5), atol=1e-5)
    assert weights.shape == (5, 10) and weights.std() > 0.001
