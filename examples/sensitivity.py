# %% [markdown]
# # Sensitivity of an aggregation to clients and validation examples
# Two Jacobians of one aggregation. The first, K x G, is the derivative of the aggregated model's loss by every client's
# score in every tensor, under layerwise weights. The second, K x V, is the derivative of every client's weight by every
# validation example: each example of D_val has a weight in the mean loss, and the gradient at equal weights is its
# influence.

# %%
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import fedvg_jax as fv
from fedvg_jax import tree

# %% [markdown]
# The clients' models after a few rounds. A round's hook `disturb` receives the models that clients return; this one
# stores them and returns them unchanged.


# %%
def returned_clients(num_rounds: int):
    """The simulation, the global model before the last round, the cohort's stacked models, and its schedule."""
    sim = fv.simulation(fv.Config(alpha=0.05, partition_seed=42, rounds=num_rounds, lr=0.1))
    stacked = []

    def keep(hyper, key, ids, variables, clients):
        jax.debug.callback(lambda *models: stacked.append(models), variables, clients, ordered=True)
        return clients

    parts = (sim.task, sim.algorithm, sim.weighting, fv.executors.lanes(1), fv.sgd)
    step = fv.make_round(*parts, sim.config.clients, disturb=keep)
    run, state = jax.jit(step), sim.state
    for r in range(num_rounds):
        state, _ = run(state, sim.schedule(r), sim.data, sim.hyper)
    jax.effects_barrier()
    theta, clients = stacked[-1]
    return sim, theta.params, clients.params, sim.schedule(num_rounds - 1)


# %% [markdown]
# FedVG is four functions of the library: gradients, norms, weights, aggregate.


# %%
def score_sensitivity(loss, theta, clients, val):
    """(d loss(aggregated) / d log G) of every client and tensor, [K, G]: the effect of a 1 % larger norm, times 100."""
    norms = fv.gradient_norms(fv.validation_gradients(loss, clients, val))

    def aggregated_loss(logs, clients):
        weights = fv.inverse_norm_weights(jax.tree.map(jnp.exp, logs), "layerwise")
        return loss(fv.aggregate(theta, clients, weights), tree.take(val, 0))

    gradients = jax.jit(jax.grad(aggregated_loss))(jax.tree.map(jnp.log, norms), clients)
    return np.stack(jax.tree.leaves(gradients), 1), tree.paths(norms)


def example_influence(loss, clients, val):
    """(weights [K], V d s_k / d omega_i [K, V]): the effect on a client's weight of counting an example twice."""
    count = len(val["x"][0])

    # data is an argument, not a constant to fold into the program
    def weights(omega, clients, val):
        weighted = {**val, "weight": omega[None]}
        norms = fv.gradient_norms(fv.validation_gradients(loss, clients, weighted))
        return jax.tree.leaves(fv.inverse_norm_weights(norms))[0]

    equal = jnp.full(count, 1 / count)
    influence = jax.jit(jax.jacrev(weights))(equal, clients, val) / count
    return jax.jit(weights)(equal, clients, val), influence


def weighted_loss(sim):
    """Cross-entropy with a weight for every example, in evaluation mode."""

    def loss(params, batch):
        logits = sim.task.predict(params, {}, fv.Batch(batch["x"], batch["y"]))
        logs = jax.nn.log_softmax(logits)
        return -(batch["weight"] * jnp.take_along_axis(logs, batch["y"][:, None], 1)[:, 0]).sum()

    return loss


# %%
def picture(sensitivity, paths, weights, influence, val, ids, path: Path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"font.size": 9, "axes.titlesize": 9.5})
    figure = Figure(figsize=(8, 8.4), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=(2.6, 1))
    left, right = upper.subplots(2, 1)
    order = np.argsort(-np.asarray(weights))
    most = np.abs(sensitivity).max()
    image = left.imshow(sensitivity[order], cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    left.set_xticks(range(len(paths)), [path.replace("/", "/\n") for path in paths])
    left.set_yticks(range(len(ids)), [f"client {ids[k]}   s = {weights[k]:.3f}" for k in order])
    left.set_title("layerwise: d D_val loss(aggregate) / d log G, K x G")
    upper.colorbar(image, ax=left, shrink=0.8)
    classes = np.asarray(val["y"][0])
    sort = np.argsort(classes, kind="stable")
    most = np.quantile(np.abs(influence), 0.995)
    style = {"cmap": "PuOr_r", "vmin": -most, "vmax": most}
    shown = influence[order][:, sort]
    image = right.imshow(shown, aspect="auto", interpolation="nearest", **style)
    edges = np.searchsorted(classes[sort], np.arange(11))
    right.set_xticks((edges[:-1] + edges[1:]) / 2 - 0.5, range(10))
    for edge in edges[1:-1]:
        right.axvline(edge - 0.5, color="0.5", lw=0.5)
    right.set(yticks=[], xlabel="validation example, by its digit")
    right.set_title(
        "modelwise: first-order change of a weight s if the example counted twice, K x V"
    )
    upper.colorbar(image, ax=right, shrink=0.8)
    strength = np.abs(influence).sum(0)
    strips = lower.subplots(2, 10)
    ascending = np.argsort(strength)
    chosen_by_name = {"most": ascending[::-1][:10], "least": ascending[:10]}
    for row, (said, chosen) in zip(strips, chosen_by_name.items(), strict=True):
        for axes, i in zip(row, chosen, strict=True):
            axes.imshow(np.asarray(val["x"][0, i])[..., 0], cmap="gray_r")
            axes.set(xticks=[], yticks=[])
            axes.set_title(f"{classes[i]}\n{strength[i]:.4f}", fontsize=9)
        row[0].set_ylabel(f"{said}\ninfluential")
    lower.suptitle("validation images by the sum over clients of |change of weight|", fontsize=9.5)
    title = "Sensitivity of one FedVG aggregation (digits, alpha 0.05, mlp, L1 norms)"
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=160)


# %%
def main(fast: bool = False, path: Path = Path("sensitivity.png")):
    sim, theta, clients, schedule = returned_clients(1 if fast else 15)
    rows = tree.real_rows(sim.data.val)[: 12 if fast else None]
    pool = jax.tree.map(lambda x: jnp.asarray(x)[rows][None], sim.data.pool)  # one batch: D_val
    val = {"x": pool.x, "y": pool.y, "weight": jnp.full((1, len(rows)), 1 / len(rows))}
    loss = weighted_loss(sim)
    sensitivity, paths = score_sensitivity(loss, theta, clients, val)
    weights, influence = jax.device_get(example_influence(loss, clients, val))
    picture(sensitivity, paths, weights, influence, val, schedule.clients, path)
    return sensitivity, weights, influence


if __name__ == "__main__":
    main(fast="--fast" in sys.argv)
