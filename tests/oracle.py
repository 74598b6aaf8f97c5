"""A federated round in NumPy float64 and Python loops, without jax: what the engine is tested against.

It replays the engine's own schedule on one small network, dense -> BatchNorm -> ReLU -> dense under softmax
cross-entropy, with backward passes by hand. It never sees a padded row: it takes the rows that are there.

Trees are flat dicts, path -> array.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

MOMENTUM, BN_EPS = 0.1, 1e-5

Tree = dict[str, np.ndarray]


# --- the network: every layer returns its output and its backward pass, dy -> (dx, gradients) ----------------------


def dense(params: Tree, name: str, x):
    kernel = params[f"{name}/kernel"]

    def backward(dy):
        return dy @ kernel.T, {f"{name}/kernel": x.T @ dy, f"{name}/bias": dy.sum(0)}

    return x @ kernel + params[f"{name}/bias"], backward


def relu(x):
    return np.maximum(x, 0), lambda dy: (dy * (x > 0), {})


def batch_norm(params: Tree, stats: Tree, name: str, x, train: bool):
    """torch's BatchNorm: normalised by the batch's biased variance, the running one moved by the unbiased."""
    running = {key: stats[f"{name}/{key}"] for key in ("mean", "var")}
    n, scale = len(x), params[f"{name}/scale"]
    mean, var = (x.mean(0), x.var(0)) if train else (running["mean"], running["var"])
    deviation = np.sqrt(var + BN_EPS)
    y = (x - mean) / deviation

    def backward(dout):
        gradients = {f"{name}/scale": (dout * y).sum(0), f"{name}/bias": dout.sum(0)}
        dy = dout * scale
        if train:  # mean and variance are functions of x too
            dy = dy - dy.mean(0) - y * (dy * y).mean(0)
        return dy / deviation, gradients

    if train:
        moved = {"mean": mean, "var": x.var(0, ddof=1)} if n > 1 else {"mean": mean, "var": var}
        running = {key: (1 - MOMENTUM) * running[key] + MOMENTUM * moved[key] for key in running}
    return y * scale + params[f"{name}/bias"], backward, {f"{name}/{key}": running[key] for key in running}


def logits(params: Tree, stats: Tree, x, train: bool):
    """uint8 images -> logits, the backward passes in order, the new running statistics."""
    x = x.reshape(len(x), -1) / 255
    x, fc1 = dense(params, "fc1", x)
    x, bn1, stats = batch_norm(params, stats, "bn1", x, train)
    x, act = relu(x)
    x, classifier = dense(params, "classifier", x)
    return x, (fc1, bn1, act, classifier), stats


def cross_entropy(logits, y):
    """Loss of every row, and its gradient."""
    shifted = logits - logits.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    rows = np.arange(len(y))
    gradient = np.exp(log_p)
    gradient[rows, y] -= 1
    return -log_p[rows, y], gradient


def loss_and_gradients(params: Tree, stats: Tree, batch, train: bool):
    """Mean loss, its gradients, the new running statistics."""
    x, y = batch
    outputs, backwards, stats = logits(params, stats, x, train)
    losses, upstream = cross_entropy(outputs, y)
    gradients: Tree = {}
    upstream = upstream / len(y)
    for backward in reversed(backwards):
        upstream, found = backward(upstream)
        gradients |= found
    return losses.mean(), gradients, stats


# --- data and its evaluation ---------------------------------------------------------------------------------------


def batches(pool, table):
    """The real rows of every batch that has any."""
    for rows in np.asarray(table):
        rows = rows[rows >= 0]
        if len(rows):
            yield pool[0][rows], pool[1][rows]


def evaluate(params: Tree, stats: Tree, pool, rows):
    """(summed loss, confusion matrix [true, predicted]), one row at a time."""
    loss, confusion = 0.0, np.zeros(2 * [len(params["classifier/bias"])], int)
    for x, y in batches(pool, np.reshape(rows, (-1, 1))):
        outputs, _, _ = logits(params, stats, x, train=False)
        loss += cross_entropy(outputs, y)[0][0]
        confusion[y[0], outputs[0].argmax()] += 1
    return loss, confusion


# --- algorithms: what they change of a gradient, what they tell the server, what the server adds -------------------


class Algorithm(NamedTuple):
    init: Callable
    """params -> (server memory, one client's memory)"""
    correct: Callable
    """(hyper, gradients, params, global params, server memory, client memory) -> gradients"""
    report: Callable
    """(hyper, params, global params, server memory, client memory, steps) -> (client memory, message)"""
    residual: Callable
    """(hyper, server memory, global params, cohort) -> (R, server memory)"""


class Cohort(NamedTuple):
    update: Tree
    messages: list
    weights: Tree
    num_clients: int


FEDAVG = Algorithm(
    init=lambda params: (None, None),
    correct=lambda hyper, gradients, *_: gradients,
    report=lambda *_: (None, None),
    residual=lambda hyper, server, params, cohort: ({path: 0.0 for path in params}, server),
)


def zeros_like(params: Tree) -> Tree:
    return {path: np.zeros_like(p) for path, p in params.items()}


def busybody() -> Algorithm:
    """Of no use but to the tests: it has every memory, sends a message and reads every argument."""

    def correct(hyper, gradients, params, theta, server, client):
        return {
            path: gradients[path] + 0.5 * (params[path] - theta[path]) + server[path] - client[path] for path in params
        }

    def report(hyper, params, theta, server, client, steps):
        per_step = hyper["lr"] * (1 + steps)
        own = {path: client[path] - server[path] + (theta[path] - params[path]) / per_step for path in params}
        return own, {path: own[path] - client[path] for path in params}

    def residual(hyper, server, theta, cohort):
        added, moved = {}, {}
        for path in theta:
            messages = [message[path] for message in cohort.messages]
            weighted = sum(w * m for w, m in zip(cohort.weights[path], messages, strict=True))
            added[path] = 0.1 * theta[path] - 0.25 * cohort.update[path] + hyper["eps"] * weighted
            moved[path] = server[path] + sum(messages) / cohort.num_clients
        return added, moved

    return Algorithm(lambda params: (zeros_like(params), zeros_like(params)), correct, report, residual)


ALGORITHMS = {"fedavg": FEDAVG, "busybody": busybody()}


# --- weightings: a score per client and tensor, and what the history shows -----------------------------------------


class Return(NamedTuple):
    """What a client brings back."""

    params: Tree
    stats: Tree
    num_samples: int
    loss: float
    """mean over its steps"""


class Scoring(NamedTuple):
    """How FedVG scores."""

    norm: str
    granularity: str
    mode: str
    eps: float


NORMS = {"l1": lambda x: np.abs(x).sum(), "l2": lambda x: np.sqrt((x * x).sum())}


def block(path: str) -> str:
    return "classifier" if path.startswith("classifier") else "base"


GROUPS = {"modelwise": lambda path: "model", "layerwise": lambda path: path, "blockwise": block}


def validation_norms(client: Return, pool, table, scoring: Scoring) -> dict[str, float]:
    """Norm of every tensor of the gradient of the mean loss over D_val."""
    total, count = {path: 0.0 for path in client.params}, 0
    for x, y in batches(pool, table):
        _, gradients, _ = loss_and_gradients(client.params, client.stats, (x, y), scoring.mode == "train")
        total = {path: total[path] + len(y) * gradients[path] for path in total}
        count += len(y)
    return {path: NORMS[scoring.norm](total[path] / count) for path in total}


def in_proportion(raw) -> np.ndarray:
    return np.asarray(raw, float) / np.sum(raw)


def the_same_for_all(returned, raw):
    return {path: in_proportion(raw) for path in (*returned[0].params, *returned[0].stats)}, raw


def by_samples(returned, pool, table, scoring):
    return the_same_for_all(returned, [client.num_samples for client in returned])


def by_uniform(returned, pool, table, scoring):
    return the_same_for_all(returned, [1] * len(returned))


def by_fedvg(returned, pool, table, scoring):
    measured = [validation_norms(client, pool, table, scoring) for client in returned]
    group_of = GROUPS[scoring.granularity]
    weights = {}
    for path in (*returned[0].params, *returned[0].stats):
        members = [tensor for tensor in returned[0].params if group_of(tensor) == group_of(path)]
        if members:
            flatness = [1 / (np.mean([norms[tensor] for tensor in members]) + scoring.eps) for norms in measured]
        else:  # a running statistic has no gradient of its own
            flatness = [1] * len(returned)
        weights[path] = in_proportion(flatness)
    return weights, [np.mean(list(norms.values())) for norms in measured]


WEIGHTINGS = {"samples": by_samples, "uniform": by_uniform, "fedvg": by_fedvg}


def weigh(name: str, *args):
    """Weights of every tensor, and scores; "a+b" is the mean of two, with the second's scores."""
    found = [WEIGHTINGS[part](*args) for part in name.split("+")]
    return {path: np.mean([weights[path] for weights, _ in found], 0) for path in found[0][0]}, found[-1][1]


# --- the round -----------------------------------------------------------------------------------------------------


class State(NamedTuple):
    params: Tree
    stats: Tree
    server: object
    clients: list
    """every client's memory"""


class Told(NamedTuple):
    weights: np.ndarray
    scores: np.ndarray
    train_loss: np.ndarray


def init(algorithm: Algorithm, params: Tree, stats: Tree, num_clients: int) -> State:
    server, client = algorithm.init(params)
    return State(params, stats, server, [client] * num_clients)


def train(state: State, schedule, k: int, pool, hyper, algorithm: Algorithm) -> Return:
    """Local SGD of the client at position k of the cohort."""
    params, stats, losses = state.params, state.stats, []
    memory = state.clients[schedule.clients[k]]
    first, steps = schedule.start[k], schedule.num_steps[k]
    for batch in batches(pool, schedule.rows[first : first + steps]):
        loss, gradients, stats = loss_and_gradients(params, stats, batch, train=True)
        gradients = algorithm.correct(hyper, gradients, params, state.params, state.server, memory)
        params = {path: params[path] - hyper["lr"] * gradients[path] for path in params}
        losses.append(loss)
    return Return(params, stats, int(schedule.num_samples[k]), float(np.mean(losses)) if losses else 0.0)


def round_step(state: State, schedule, pool, table, hyper, algorithm: Algorithm, weighting: str, scoring: Scoring):
    """One round: (state, what is told of it)."""
    cohort = range(len(schedule.clients))
    returned = [train(state, schedule, k, pool, hyper, algorithm) for k in cohort]
    weights, scores = weigh(weighting, returned, pool, table, scoring)

    clients, messages = list(state.clients), []
    for k in cohort:
        who, steps = schedule.clients[k], schedule.num_steps[k]
        memory = state.clients[who]
        clients[who], message = algorithm.report(hyper, returned[k].params, state.params, state.server, memory, steps)
        messages.append(message)

    params = {path: sum(weights[path][k] * returned[k].params[path] for k in cohort) for path in state.params}
    stats = {path: sum(weights[path][k] * returned[k].stats[path] for k in cohort) for path in state.stats}
    update = {path: state.params[path] - params[path] for path in params}
    told = Cohort(update, messages, weights, len(clients))
    residual, server = algorithm.residual(hyper, state.server, state.params, told)
    params = {path: params[path] + residual[path] for path in params}
    shown = Told(np.mean([weights[path] for path in params], 0), np.array(scores), np.array([r.loss for r in returned]))
    return State(params, stats, server, clients), shown
