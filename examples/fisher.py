# %% [markdown]
# # Fisher information of every client in every round
# FedVG's score is a norm of the MEAN gradient over D_val. The trace of the Fisher information is a mean of the squared
# norms of the gradients of SINGLE examples. Opposite gradients cancel in the first and add up in the second, so neither
# replaces the other. This example computes four measurements of every client of every round, under FedVG's weights:
#
# - the L1 norm that FedVG inverts, and the squared L2 norm of the same mean gradient,
# - the empirical trace, with the labels of D_val,
# - the model-sampled trace, with labels drawn from the client's own predictions, as Fisher information is defined.

# %%
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import fedvg_jax as fv
from fedvg_jax import Batch, Weighting, norms
from fedvg_jax.weightings import signals

# %% [markdown]
# A weighting may record more than it needs for its weights: the signal includes the measurements, and `detail` names
# them. The weights are FedVG's.


# %%
def with_traces(fedvg: Weighting, model) -> Weighting:
    def signal(hyper, client, data):
        mean = signals.validation_gradient(model, False, 1)(hyper, client, data)
        pool, _ = fv.tree.gather(data.pool, data.val.reshape(-1))
        own = jax.tree.map(lambda x: x[None], client.variables.params)
        drawn = fv.sampled_joint_fisher(logits, own, pool.x, jax.random.key(0), num_samples=2)
        return {
            "fedvg": fedvg.signal(hyper, client, data),
            "squared_l2": sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(mean)),
            "empirical": jax.tree.map(norms.l1, signals.fisher(model)(hyper, client, data)),
            "sampled": jax.tree.map(lambda x: x[0], drawn),
        }

    def logits(params, x):
        return model.predict(params, {}, Batch(x[None], None))[0]

    def traces(measured):
        return {
            "squared_l2": measured["squared_l2"],
            "empirical": fv.fisher_trace(measured["empirical"]),
            "sampled": fv.fisher_trace(measured["sampled"]),
        }

    return Weighting(
        signal,
        lambda hyper, measured, view: fedvg.weigh(hyper, measured["fedvg"], view),
        lambda measured: fedvg.score(measured["fedvg"]),
        lambda measured: {name: value[:, None] for name, value in traces(measured).items()},
    )


# %%
def records(num_rounds: int, hidden):
    federation = {"clients": 10, "join_ratio": 1.0, "alpha": 0.05, "partition_seed": 42}
    config = fv.Config(rounds=num_rounds, lr=0.1, local_epochs=2, **federation)
    model = fv.models.classification(fv.models.MLP(10, hidden=hidden), 10, (8, 8, 1))
    rule = with_traces(fv.simulation(config, task=model).weighting, model)
    return fv.run(config, task=model, weighting=rule).records


def table(found):
    """Name -> [rounds, clients], clients in order of their ids."""
    order = [np.argsort(r["clients"]) for r in found]
    named = {"L1 norm of the mean gradient": [r["scores"] for r in found]}
    named |= {
        title: [[x[0] for x in r[name]] for r in found]
        for name, title in (
            ("squared_l2", "squared L2 norm of the mean gradient"),
            ("empirical", "empirical Fisher trace"),
            ("sampled", "model-sampled Fisher trace"),
        )
    }
    return {
        title: np.array([np.array(r)[o] for r, o in zip(rows, order, strict=True)])
        for title, rows in named.items()
    }


def rank_correlation(a, b):
    """Spearman's rank correlation over the clients of a round."""
    a, b = (np.argsort(np.argsort(x)) for x in (a, b))
    return np.corrcoef(a, b)[0, 1]


# %%
def picture(named, path: Path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"font.size": 9, "axes.titlesize": 9.5})
    figure = Figure(figsize=(8, 9), layout="constrained")
    grid = figure.add_gridspec(3, 2)
    num_rounds, num_clients = next(iter(named.values())).shape
    rounds = np.arange(1, num_rounds + 1)
    colours = matplotlib.colormaps["viridis"](np.linspace(0.05, 0.92, num_clients))
    by_end = np.argsort(next(iter(named.values()))[-1])
    for column, (title, values) in enumerate(named.items()):
        axes = figure.add_subplot(grid[divmod(column, 2)])
        for rank, client in enumerate(by_end):
            axes.plot(rounds, values[:, client], color=colours[rank], lw=1.1)
        axes.set(yscale="log", xlabel="round", title=title)
        _plain_numbers(axes)
        axes.spines[["top", "right"]].set_visible(False)
    titles = list(named)
    ratio = figure.add_subplot(grid[2, 0])
    share = named[titles[1]] / named[titles[2]]
    ratio.plot(rounds, share, color="0.8", lw=0.7)
    ratio.plot(rounds, np.median(share, 1), color="#c2334d", lw=2)
    ratio.set(xlabel="round", yscale="log", ylim=(None, 1.3))
    ratio.axhline(1, color="0.4", lw=0.8, ls=":")
    ratio.set_title(
        "||mean gradient||² / empirical trace (red: median);\n1 if no examples pulled apart"
    )
    _plain_numbers(ratio)
    ranks = figure.add_subplot(grid[2, 1])
    for title, colour in ((titles[2], "#b07d2b"), (titles[3], "#2b6cb0")):
        found = [
            rank_correlation(a, b) for a, b in zip(named[titles[0]], named[title], strict=True)
        ]
        ranks.plot(rounds, found, color=colour, lw=1.6, label=title)
    ranks.axhline(0, color="0.6", lw=0.8)
    ranks.set(xlabel="round", ylim=(-1.05, 1.05))
    ranks.set_title("rank correlation over clients\nwith FedVG's L1 score")
    ranks.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.62))
    for axes in (ratio, ranks):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"A gradient norm and Fisher traces: {num_clients} clients on D_val after local training\n"
        "(digits, alpha 0.05, FedVG weights, one seed;\na line per client, dark: smallest L1 score at the end)",
        fontsize=10,
    )
    figure.savefig(path, dpi=160)


def _plain_numbers(axes) -> None:
    """Labels a logarithmic axis with whole numbers and fractions, without exponents."""
    from matplotlib import ticker

    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))


# %%
def main(fast: bool = False, path: Path = Path("fisher.png")):
    named = table(records(2 if fast else 40, () if fast else (32,)))
    picture(named, path)
    return named


if __name__ == "__main__":
    main(fast="--fast" in sys.argv)
