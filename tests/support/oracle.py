"""A federated round in NumPy float64 and Python loops, without jax: what the engine is tested against.

It replays the engine's own schedule on one small network, dense -> BatchNorm -> ReLU -> dense under softmax
cross-entropy, with backward passes by hand. It removes padded rows first.

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
    """torch's BatchNorm: the batch's biased variance normalises, its unbiased variance updates the running one."""
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
    return (
        y * scale + params[f"{name}/bias"],
        backward,
        {f"{name}/{key}": running[key] for key in running},
    )


def logits(params: Tree, stats: Tree, x, train: bool):
    """uint8 images -> logits, the backward passes in order, the new running statistics."""
    x = x.reshape(len(x), -1) / 255
    x, fc1 = dense(params, "fc1", x)
    x, bn1, stats = batch_norm(params, stats, "bn1", x, train)
    x, act = relu(x)
    x, classifier = dense(params, "classifier", x)
    return x, (fc1, bn1, act, classifier), stats


def cross_entropy(logits, y):
    """Returns the loss of every row, and its gradient."""
    shifted = logits - logits.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    rows = np.arange(len(y))
    gradient = np.exp(log_p)
    gradient[rows, y] -= 1
    return -log_p[rows, y], gradient


def backpropagate(backwards, upstream, of_features=0.0) -> Tree:
    """Gradients of the parameters from those of the logits, and of the features, the input of the last layer."""
    gradients: Tree = {}
    for backward in reversed(backwards):
        upstream, of_layer = backward(upstream)
        if not gradients:
            upstream = upstream + of_features
        gradients |= of_layer
    return gradients


def loss_and_gradients(params: Tree, stats: Tree, batch, train: bool, penalty=None):
    """Mean loss over rows, or over the places of all rows, its gradients, the new running statistics.

    `penalty` of (logits, features, y) is added to it; it returns its value and its gradients by the first two.
    """
    x, y = batch[0], np.ravel(batch[1])
    outputs, backwards, stats = logits(params, stats, x, train)
    losses, upstream = cross_entropy(outputs, y)
    added = penalty(outputs, features(params, stats, x, train), y) if penalty else (0.0, 0.0, 0.0)
    gradients = backpropagate(backwards, upstream / len(y) + added[1], added[2])
    return losses.mean() + added[0], gradients, stats


def features(params: Tree, stats: Tree, x, train: bool):
    """The input of the last layer."""
    x, _ = dense(params, "fc1", x.reshape(len(x), -1) / 255)
    return relu(batch_norm(params, stats, "bn1", x, train)[0])[0]


def output_gradients(params: Tree, stats: Tree, x) -> Tree:
    """Gradients of the batch's mean ||logits||^2, with running statistics."""
    outputs, backwards, _ = logits(params, stats, x, train=False)
    return backpropagate(backwards, 2 * outputs / len(x))


# --- data and its evaluation ---------------------------------------------------------------------------------------


def batches(pool, table):
    """Yields the real rows of every nonempty minibatch."""
    for minibatch in np.asarray(table):
        rows = minibatch[minibatch >= 0]
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


# --- algorithms, from their equations ------------------------------------------------------------------------------


class Cohort(NamedTuple):
    """What the server holds of the participating clients."""

    update: Tree
    """u = sum_k s_k (theta_g - theta_k)"""
    messages: list
    weights: Tree
    probes: list
    client_states: list
    """of all N clients, after the round"""


def zeros_like(params: Tree) -> Tree:
    return {path: np.zeros_like(p) for path, p in params.items()}


def each(f: Callable, *trees: Tree) -> Tree:
    results = {}
    for path in trees[0]:
        results[path] = f(*(tree[path] for tree in trees))
    return results


def mean(trees: list[Tree]) -> Tree:
    return each(lambda *x: sum(x) / len(x), *trees)


class Algorithm:
    """FedAvg, which the other algorithms change in parts."""

    native = "samples"

    def init(self, hyper, params):
        """(server state, one client's state)"""
        return None, None

    def probe(self, hyper, params, stats, batches, position):
        return None

    def loss(self, hyper, params, stats, batch, theta, client):
        """(loss of a step, its gradients, new running statistics)"""
        return loss_and_gradients(params, stats, batch, train=True)

    def correct(self, hyper, gradients, params, theta, server, client):
        return gradients

    def report(self, hyper, params, theta, server, client, displacement):
        """(client state, message)"""
        return client, None

    def residual(self, hyper, server, theta, cohort):
        """(R, server state)"""
        return zeros_like(theta), server


class FedProx(Algorithm):
    def correct(self, hyper, gradients, params, theta, server, client):
        return each(lambda g, p, t: g + hyper["fedprox.mu"] * (p - t), gradients, params, theta)


class Moon(Algorithm):
    def init(self, hyper, params):
        return None, params

    def loss(self, hyper, params, stats, batch, theta, client):
        to_global, to_previous = (
            features(model, stats, batch[0], train=True) for model in (theta, client)
        )

        def cosine(a, b):
            """Of every row, and its gradient by a."""
            lengths = [np.sqrt((z * z).sum(1, keepdims=True)) for z in (a, b)]
            is_zero = lengths[0] * lengths[1] == 0
            first, second = (np.where(is_zero, np.inf, length) for length in lengths)
            cos = (a * b).sum(1, keepdims=True) / first / second
            return cos, b / first / second - cos * a / first**2

        def penalty(outputs, z, y):
            (near, by_near), (far, by_far) = cosine(z, to_global), cosine(z, to_previous)
            up, down = np.exp(near / hyper["moon.tau"]), np.exp(far / hyper["moon.tau"])
            factor = hyper["moon.mu"] / len(z)
            by_z = down / (up + down) / hyper["moon.tau"] * (by_far - by_near)
            return factor * -np.log(up / (up + down)).sum(), 0.0, factor * by_z

        return loss_and_gradients(params, stats, batch, train=True, penalty=penalty)

    def report(self, hyper, params, theta, server, client, displacement):
        return params, None


class FedNTD(Algorithm):
    def loss(self, hyper, params, stats, batch, theta, client):
        teacher, _, _ = logits(theta, stats, batch[0], train=True)

        def not_true(z, y):
            exps = np.exp(z / hyper["fedntd.tau"])
            exps[np.arange(len(y)), y] = 0
            return exps / exps.sum(1, keepdims=True)

        def penalty(outputs, z, y):
            p, q = not_true(teacher, y), not_true(outputs, y)
            others = p > 0
            value = (p[others] * np.log(p[others] / q[others])).sum()
            factor = hyper["fedntd.beta"] / len(y)
            return factor * value, factor * (q - p) / hyper["fedntd.tau"], 0.0

        return loss_and_gradients(params, stats, batch, train=True, penalty=penalty)


class FedLC(Algorithm):
    def loss(self, hyper, params, stats, batch, theta, client):
        """`client` is its label counts [C], the state that it keeps."""
        margins = hyper["fedlc.tau"] * np.maximum(client, 1e-8) ** -0.25

        def penalty(outputs, z, y):
            plain, by_plain = cross_entropy(outputs, y)
            calibrated, by_calibrated = cross_entropy(outputs - margins, y)
            return (calibrated - plain).mean(), (by_calibrated - by_plain) / len(y), 0.0

        return loss_and_gradients(params, stats, batch, train=True, penalty=penalty)


class FedDecorr(Algorithm):
    def loss(self, hyper, params, stats, batch, theta, client):
        def penalty(outputs, z, y):
            n, d = z.shape
            deviation = np.sqrt(z.var(0) + 1e-8)
            unit = (z - z.mean(0)) / deviation
            matrix = unit.T @ unit / n
            by_unit = 4 * unit @ matrix / n
            by_z = (by_unit - by_unit.mean(0) - unit * (by_unit * unit).mean(0)) / deviation
            factor = hyper["feddecorr.beta"] / d**2
            return factor * (matrix**2).sum(), 0.0, factor * by_z

        return loss_and_gradients(params, stats, batch, train=True, penalty=penalty)


class Scaffold(Algorithm):
    """c is computed as the mean of all c_k, without a running update."""

    native = "uniform"

    def init(self, hyper, params):
        return zeros_like(params), zeros_like(params)

    def correct(self, hyper, gradients, params, theta, server, client):
        return each(lambda g, c, own: g + c - own, gradients, server, client)

    def report(self, hyper, params, theta, server, client, displacement):
        if displacement == 0:
            return client, None
        return each(
            lambda own, c, t, p: own - c + (t - p) / displacement, client, server, theta, params
        ), None

    def residual(self, hyper, server, theta, cohort):
        return each(lambda u: u - hyper["scaffold.eta_g"] * u, cohort.update), mean(
            cohort.client_states
        )


class FedDyn(Algorithm):
    """The mean of all lambda is computed without a running update."""

    native = "uniform"

    def init(self, hyper, params):
        return None, zeros_like(params)

    def correct(self, hyper, gradients, params, theta, server, client):
        alpha = hyper["feddyn.alpha"]
        sums = each(
            lambda g, dual, p, t: g + alpha * (dual + p - t), gradients, client, params, theta
        )
        norm = np.sqrt(sum((g * g).sum() for g in sums.values()))
        return (
            sums
            if norm <= hyper["feddyn.clip"]
            else each(lambda g: g * hyper["feddyn.clip"] / norm, sums)
        )

    def report(self, hyper, params, theta, server, client, displacement):
        return each(lambda dual, t, p: dual - (t - p), client, theta, params), None

    def residual(self, hyper, server, theta, cohort):
        return mean(cohort.client_states), None


class Elastic(Algorithm):
    def probe(self, hyper, params, stats, batches, position):
        mu, steps = hyper["elastic.mu"], 0
        average = dict.fromkeys(params, 0.0)
        for steps, (x, _) in enumerate(batches, 1):  # noqa: B007
            gradients = output_gradients(params, stats, x)
            average = each(lambda o, g: mu * o + (1 - mu) * (g * g).mean(), average, gradients)
        return each(lambda o: o / (1 - mu**steps), average) if steps else average

    def residual(self, hyper, server, theta, cohort):
        sensitivity = {}
        for path in theta:
            weighted = zip(cohort.weights[path], cohort.probes, strict=True)
            sensitivity[path] = sum(s * o[path] for s, o in weighted)
        most = max(sensitivity.values())
        zeta = {
            path: 1 + hyper["elastic.tau"] - (o / most if most > 0 else 1)
            for path, o in sensitivity.items()
        }
        return each(lambda u, z: (1 - z) * u, cohort.update, zeta), server


class FedNova(Algorithm):
    def report(self, hyper, params, theta, server, client, displacement):
        return client, (
            each(lambda t, p: (t - p) / displacement if displacement else 0 * p, theta, params),
            displacement,
        )

    def residual(self, hyper, server, theta, cohort):
        def rest(path, u):
            weighted = list(zip(cohort.weights[path], cohort.messages, strict=True))
            mean_displacement = sum(s * displacement for s, (_, displacement) in weighted)
            return u - mean_displacement * sum(
                s * direction[path] for s, (direction, _) in weighted
            )

        return {path: rest(path, u) for path, u in cohort.update.items()}, server


class FedAvgM(Algorithm):
    """Nesterov's momentum on the server."""

    def init(self, hyper, params):
        return zeros_like(params), None

    def residual(self, hyper, server, theta, cohort):
        beta = hyper["fedavgm.momentum"]
        velocity = each(lambda v, u: beta * v + u, server, cohort.update)
        return each(
            lambda u, v: u - hyper["fedavgm.lr"] * (u + beta * v), cohort.update, velocity
        ), velocity


class Adaptive(Algorithm):
    """Algorithm 2 of Reddi et al. (ICLR 2021), line by line:

        Delta_t = sum_k s_k (x_k - x_t)
        m_t = beta_1 m_{t-1} + (1 - beta_1) Delta_t,   m_{-1} = 0
        v_t by `second`,                               v_{-1} = tau^2
        x_{t+1} = x_t + eta m_t / (sqrt(v_t) + tau)

    Args:
        second: (beta_2, v_{t-1}, Delta_t^2) -> v_t
        first_decay: beta_1; by default the setting's. The paper's experiments have 0 for FedAdagrad.
        start: of v_{-1}, in units of tau^2.
    """

    def __init__(self, second: Callable, first_decay: float | None = None, start: float = 1.0):
        self.second, self.first_decay, self.start = second, first_decay, start

    def init(self, hyper, params):
        v = {
            path: np.full(p.shape, self.start * hyper["fedopt.eps"] ** 2)
            for path, p in params.items()
        }
        return (zeros_like(params), v), None

    def residual(self, hyper, server, theta, cohort):
        beta_1 = hyper["fedopt.b1"] if self.first_decay is None else self.first_decay
        m, v, added = {}, {}, {}
        for path, u in cohort.update.items():
            delta = -u
            m[path] = beta_1 * server[0][path] + (1 - beta_1) * delta
            v[path] = self.second(hyper["fedopt.b2"], server[1][path], delta**2)
            step = hyper["fedopt.lr"] * m[path] / (np.sqrt(v[path]) + hyper["fedopt.eps"])
            added[path] = u + step  # R, as the general rule takes u away
        return added, (m, v)


def adagrad(beta_2, v, squared):
    return v + squared


def yogi(beta_2, v, squared):
    return v - (1 - beta_2) * squared * np.sign(v - squared)


def adam(beta_2, v, squared):
    return beta_2 * v + (1 - beta_2) * squared


class FullAlgorithm(Scaffold):
    """Scaffold with Elastic's probe and FedNova's messages, and the sum of their residuals. For tests only."""

    probe = Elastic.probe

    def report(self, *arguments):
        return Scaffold.report(self, *arguments)[0], FedNova.report(self, *arguments)[1]

    def residual(self, *arguments):
        added, server = Scaffold.residual(self, *arguments)
        others = [kind.residual(self, *arguments)[0] for kind in (Elastic, FedNova)]
        return each(lambda *residuals: sum(residuals), added, *others), server


ALGORITHMS = {
    "fedavg": Algorithm(),
    "fedavgm": FedAvgM(),
    "fedprox": FedProx(),
    "scaffold": Scaffold(),
    "feddyn": FedDyn(),
    "elastic": Elastic(),
    "fedadam": Adaptive(adam),
    "fedyogi": Adaptive(yogi),
    "fedadagrad": Adaptive(adagrad, first_decay=0.0),
    "fednova": FedNova(),
    "moon": Moon(),
    "fedntd": FedNTD(),
    "feddecorr": FedDecorr(),
    "fedlc": FedLC(),
    "ditto": Algorithm(),
    "full_algorithm": FullAlgorithm(),
}

PUBLISHED = {
    "fedadam": Adaptive(adam, start=0.0),
    "fedyogi": Adaptive(yogi, start=0.0),
    "fedadagrad": Adaptive(adagrad, start=0.0),
}
"""The adaptive servers of the published FedVG code: v_{-1} = 0, and all three use the setting beta_1."""


# --- weightings: a score per client and tensor, and what the history shows -----------------------------------------


class Return(NamedTuple):
    """What a client returns."""

    params: Tree
    stats: Tree
    num_samples: int
    loss: float
    """mean over its steps"""


class Scoring(NamedTuple):
    """How FedVG scores."""

    norm: str = "l1"
    granularity: str = "modelwise"
    mode: str = "train"
    eps: float = 0.0
    """read from the hyper-parameters"""


NORMS = {
    "l1": lambda x: np.abs(x).sum(),
    "l2": lambda x: np.sqrt((x * x).sum()),
    "spectral": lambda x: np.linalg.svd(x, compute_uv=False).max() if x.ndim > 1 else 0.0,
    "spectral_l2": lambda x: (
        np.linalg.svd(x, compute_uv=False).max() if x.ndim > 1 else np.sqrt((x * x).sum())
    ),
}


def block(path: str) -> str:
    return "classifier" if path.startswith("classifier") else "base"


GROUPS = {"modelwise": lambda path: "model", "layerwise": lambda path: path, "blockwise": block}


def validation_norms(client: Return, pool, table, scoring: Scoring) -> dict[str, float]:
    """Norm of every tensor of the gradient of the mean loss over D_val."""
    total, count = {path: 0.0 for path in client.params}, 0
    for x, y in batches(pool, table):
        _, gradients, _ = loss_and_gradients(
            client.params, client.stats, (x, y), scoring.mode == "train"
        )
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
            flatness = []
            for norms in measured:
                size = np.mean([norms[tensor] for tensor in members])
                flatness.append(1 / (size + scoring.eps))
        else:  # a running statistic has no gradient of its own
            flatness = [1] * len(returned)
        weights[path] = in_proportion(flatness)
    return weights, [np.mean(list(norms.values())) for norms in measured]


WEIGHTINGS = {"samples": by_samples, "uniform": by_uniform, "fedvg": by_fedvg}


def weigh(name: str, *args):
    """Weights of every tensor, and scores; "a+b" is the mean of two, with the second's scores."""
    parts = [WEIGHTINGS[part](*args) for part in name.split("+")]
    means = {}
    for path in parts[0][0]:
        means[path] = np.mean([weights[path] for weights, _ in parts], 0)
    return means, parts[-1][1]


# --- the round -----------------------------------------------------------------------------------------------------


class State(NamedTuple):
    params: Tree
    stats: Tree
    server: object
    clients: list
    """every client's state"""


class Metrics(NamedTuple):
    weights: np.ndarray
    scores: np.ndarray
    train_loss: np.ndarray
    finite: np.ndarray


def init(algorithm: Algorithm, hyper, params: Tree, stats: Tree, label_counts) -> State:
    """Returns the first state; FedLC's clients keep their `label_counts` [N, C]."""
    server, client = algorithm.init(hyper, params)
    num_clients = len(label_counts)
    clients = [*label_counts] if isinstance(algorithm, FedLC) else [client] * num_clients
    return State(params, stats, server, clients)


def probe(state: State, schedule, k: int, pool, hyper, algorithm: Algorithm):
    """What the client at position k measures of the global model, on the minibatches after its training ones."""
    first = schedule.start[k] + schedule.num_steps[k]
    probed = list(batches(pool, schedule.rows[first : first + schedule.probe_steps[k]]))
    return algorithm.probe(hyper, state.params, state.stats, probed, k)


def train(state: State, schedule, k: int, pool, hyper, algorithm: Algorithm) -> Return:
    """Local SGD of the client at position k of the cohort."""
    params, stats, losses = state.params, state.stats, []
    own = state.clients[schedule.clients[k]]
    first, steps = schedule.start[k], schedule.num_steps[k]
    for batch in batches(pool, schedule.rows[first : first + steps]):
        loss, gradients, stats = algorithm.loss(hyper, params, stats, batch, state.params, own)
        gradients = algorithm.correct(hyper, gradients, params, state.params, state.server, own)
        params = each(lambda p, g: p - hyper["lr"] * g, params, gradients)
        losses.append(loss)
    return Return(
        params, stats, int(schedule.num_samples[k]), float(np.mean(losses)) if losses else 0.0
    )


def averaged(old: Tree, new: list[Tree], weights: Tree) -> Tree:
    """Returns the weighted mean, or `old` without any client."""
    if not new:
        return old
    means = {}
    for path in old:
        means[path] = sum(w * n[path] for w, n in zip(weights[path], new, strict=True))
    return means


def round_step(
    state: State,
    schedule,
    pool,
    table,
    hyper,
    algorithm: Algorithm,
    weighting: str,
    scoring: Scoring,
):
    """Returns the state after one round, and its metrics.

    Clients that drop out train, and are then left out of everything. So are clients without a step. Without
    participating clients, nothing changes.
    """
    cohort, scoring = range(len(schedule.clients)), scoring._replace(eps=hyper["fedvg.eps"])
    probes = [probe(state, schedule, k, pool, hyper, algorithm) for k in cohort]
    trained = [train(state, schedule, k, pool, hyper, algorithm) for k in cohort]
    participating = [k for k in cohort if schedule.participating[k] and schedule.num_steps[k] > 0]
    returned = [trained[k] for k in participating]
    weighting = weighting.replace("native", algorithm.native)
    weights = dict.fromkeys((*state.params, *state.stats), np.zeros(0))
    if participating:
        weights, _ = weigh(weighting, returned, pool, table, scoring)

    clients, messages = list(state.clients), []
    for k, back in zip(participating, returned, strict=True):
        client, displacement = schedule.clients[k], hyper["lr"] * schedule.num_steps[k]
        own = state.clients[client]
        clients[client], message = algorithm.report(
            hyper, back.params, state.params, state.server, own, displacement
        )
        messages.append(message)

    metrics = metrics_of(state, trained, participating, weights, weighting, pool, table, scoring)
    if not participating:
        return state, metrics
    params = averaged(state.params, [back.params for back in returned], weights)
    stats = averaged(state.stats, [back.stats for back in returned], weights)
    update = each(np.subtract, state.params, params)
    summary = Cohort(update, messages, weights, [probes[k] for k in participating], clients)
    residual, server = algorithm.residual(hyper, state.server, state.params, summary)
    return State(each(np.add, params, residual), stats, server, clients), metrics


def metrics_of(
    state: State,
    trained: list,
    participating: list,
    weights: Tree,
    weighting: str,
    pool,
    table,
    scoring,
) -> Metrics:
    """Returns the metrics; dropped clients have weight 0 and the global model's score."""
    all_weights = np.zeros(len(trained))
    all_weights[participating] = np.mean([weights[path] for path in state.params], 0)
    shown_models = [
        back if k in participating else back._replace(params=state.params, stats=state.stats)
        for k, back in enumerate(trained)
    ]
    scores = np.array(weigh(weighting, shown_models, pool, table, scoring)[1])
    losses = np.array([back.loss for back in trained])
    return Metrics(all_weights, scores, losses, np.ones(len(trained), bool))
