# %% [markdown]
# # Hypergradients
# The gradient of the validation loss after several federated rounds with respect to the clients' learning rate, the
# server's learning rate and FedProx's mu. It passes through every local step, every score and every average. Reverse
# mode and forward mode agree, and both are compared with central differences in double precision.

# %%
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import fedvg_jax as fv
from fedvg_jax import Algorithm, Config, tree
from fedvg_jax.algorithms import fedprox

# %% [markdown]
# FedProx with a server learning rate. An algorithm is a named tuple, so one of its functions can be replaced.
# theta <- theta_g - eta_g u is the general rule with R = (1 - eta_g) u.


# %%
def fedprox_with_server_rate() -> Algorithm:
    def residual(hyper, server, params, cohort):
        return jax.tree.map(lambda u: (1 - hyper["scaffold.eta_g"]) * u, cohort.update), server

    return fedprox()._replace(residual=residual)


# %%
def problem(num_rounds: int):
    """The objective hyper -> validation loss after the rounds, for reverse mode and for the fast executor; hyper."""
    federation = {"clients": 10, "alpha": 0.05, "partition_seed": 42}
    config = Config(weighting="fedvg", local_epochs=2, lr=0.2, rounds=num_rounds, **federation)
    regression = fv.models.classification(fv.models.MLP(10, hidden=()), 10, (8, 8, 1))
    sim = fv.simulation(config, task=regression)
    planned = [sim.schedule(r) for r in range(num_rounds)]
    algorithm, data = fedprox_with_server_rate(), sim.data
    schedules = fv.stack_schedules(planned)

    def doubled(pytree):
        return jax.tree.map(
            lambda x: jnp.asarray(x, float) if jnp.issubdtype(x.dtype, jnp.floating) else x, pytree
        )

    state, hyper = doubled(sim.state), doubled(sim.hyper)

    def objective(executor):
        step = fv.make_round(sim.task, algorithm, sim.weighting, executor, fv.sgd, config.clients)
        rounds = fv.over_rounds(step)

        def after(hyper):
            model = rounds(state, schedules, data, hyper)[0].variables
            return sim.task.loss(*model, *tree.gather(data.pool, data.val.reshape(-1)), False)[0]

        return after

    slow = objective(fv.unrolled(fv.max_steps(planned), epochs=2))
    rates = {"fedprox.mu": jnp.asarray(0.1), "scaffold.eta_g": jnp.asarray(1.0)}
    return slow, objective(fv.executors.lanes(1)), hyper | rates


NAMES = {
    "lr": "client learning rate",
    "scaffold.eta_g": "server learning rate",
    "fedprox.mu": "proximal mu",
}


# %% [markdown]
# A sweep of each hyperparameter with the gradient at every point. Values are arguments, so one program is compiled.


# %%
def sweep(slow, fast, hyper, points: int):
    """Name -> (values, losses, gradients in reverse mode, in forward mode, central differences)."""
    reverse = jax.jit(lambda hyper: fv.hypergradient(slow, hyper, list(NAMES)))
    forward = jax.jit(lambda hyper: fv.hypergradient(fast, hyper, list(NAMES), mode="forward"))
    grids = {
        "lr": np.geomspace(0.02, 0.8, points),
        "scaffold.eta_g": np.linspace(0.3, 1.7, points),
        "fedprox.mu": np.geomspace(0.01, 3, points),
    }

    def at(name, value):
        return hyper | {name: jnp.asarray(value, float)}

    found = {}
    for name, grid in grids.items():
        steps = 1e-5 * grid
        losses, back, ahead, central = [], [], [], []
        for value, step in zip(grid, steps, strict=True):
            loss, gradients = reverse(at(name, value))
            losses.append(float(loss))
            back.append(float(gradients[name]))
            ahead.append(float(forward(at(name, value))[1][name]))
            both = [float(forward(at(name, value + s * step))[0]) for s in (1, -1)]
            central.append((both[0] - both[1]) / (2 * step))
        found[name] = tuple(np.array(x) for x in (grid, losses, back, ahead, central))
    return found


def error(found) -> float:
    """Largest error of a gradient against its central difference, relative to the largest gradient of the sweep."""
    pairs = [(gradients, f[4]) for f in found.values() for gradients in (f[2], f[3])]
    return max(float(np.abs(s - c).max() / np.abs(c).max()) for s, c in pairs)


# %%
def picture(found, num_rounds: int, path: Path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    matplotlib.rcParams.update({"font.size": 9, "axes.titlesize": 9})
    figure = Figure(figsize=(8, 5.6), layout="constrained")
    axes = figure.subplots(2, 3, sharex="col", height_ratios=(1.25, 1))
    for column, (name, (grid, losses, back, ahead, central)) in enumerate(found.items()):
        top, bottom = axes[:, column]
        top.plot(grid, losses, color="0.75", lw=1, zorder=1)
        scale = grid if name != "scaffold.eta_g" else np.ones_like(grid)
        width = 0.16 if name != "scaffold.eta_g" else 0.07
        for x, y, slope in zip(grid, losses, back, strict=True):  # a tangent at every point
            reach = (
                x * (np.exp([-width, 0, width]) - 1)
                if name != "scaffold.eta_g"
                else np.array([-width, 0, width])
            )
            tangent = {"color": "#c2334d", "lw": 2.2, "solid_capstyle": "round", "zorder": 2}
            top.plot(x + reach, y + slope * reach, **tangent)
        top.set(title=NAMES[name])
        bottom.plot(grid, scale * back, "o", mfc="none", mec="#c2334d", ms=9, label="reverse mode")
        bottom.plot(
            grid, scale * ahead, "x", color="#2b6cb0", ms=6, label="forward mode, fast executor"
        )
        bottom.plot(
            grid, scale * central, "-", color="0.4", lw=1, zorder=0, label="central differences"
        )
        bottom.axhline(0, color="0.8", lw=0.8)
        bottom.set(
            xlabel=f"{name}", ylabel="slope" + ("" if name == "scaffold.eta_g" else f" x {name}")
        )
        if name != "scaffold.eta_g":
            bottom.set_xscale("log")
            bottom.xaxis.set_major_formatter("{x:g}")
            bottom.xaxis.set_minor_formatter(NullFormatter())
        for ax in (top, bottom):
            ax.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("validation loss\nafter the rounds")
    handles, labels = axes[1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=3)
    figure.suptitle(
        f"Hypergradients through {num_rounds} rounds of FedProx under FedVG weights\n"
        "(digits, alpha 0.05; red: tangents from reverse mode); largest difference from\n"
        f"central differences, relative to the largest gradient: {error(found):.0e}",
        fontsize=10,
    )
    figure.savefig(path, dpi=160)


# %%
def main(fast: bool = False, path: Path = Path("hypergradients.png")):
    num_rounds, points = (1, 2) if fast else (5, 9)
    with jax.enable_x64(True):
        found = sweep(*problem(num_rounds), points)
    picture(found, num_rounds, path)
    return found


if __name__ == "__main__":
    print(
        f"largest relative difference from central differences: {error(main(fast='--fast' in sys.argv)):.1e}"
    )
