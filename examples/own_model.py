# %% [markdown]
# # Your own model, your own weighting
# A model is a `Task`: a few pure functions. A weighting is a `Weighting`: a measurement of one client and a rule over
# the cohort. This example defines three models (a Flax Linen module, a Flax NNX module and a plain JAX function) and
# one weighting: the inverse mean entropy of a client's predictions on D_val. Each takes under 30 lines. Mistakes in
# them are reported before training.

# %%
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import fedvg_jax as fv
from fedvg_jax import Task, Variables, Weighting, tree
from fedvg_jax.weightings import broadcast_weights, shares, signals

# %% [markdown]
# Without Flax, any `apply(params, images) -> logits` is a classifier. `metrics` turns sums over batches into numbers.


# %%
def classifier(init, apply) -> Task:
    def losses(params, batch, mask):
        logits = predict(params, {}, batch)
        return jnp.where(mask, cross_entropy(logits, batch.y), 0), logits

    def loss(params, stats, batch, mask, train):
        each, _ = losses(params, batch, mask)
        return each.sum() / jnp.maximum(mask.sum(), 1).astype(each.dtype), stats

    def predict(params, stats, batch):
        return apply(params, batch.x.astype(tree.dtype(params)) / 255)

    def measure(params, stats, batch, mask):
        each, logits = losses(params, batch, mask)
        cell = batch.y * 10 + jnp.argmax(logits, -1).astype(batch.y.dtype)
        return {
            "loss": each.sum(),
            "confusion": jnp.zeros(100, jnp.int32).at[cell].add(mask.astype(jnp.int32)),
        }

    def first(path: str) -> str:
        return path.partition("/")[0]

    return Task(
        lambda key: Variables(init(key), {}),
        loss,
        predict,
        measure,
        fv.models.classification_metrics,
        first,
    )


# %% [markdown]
# A model of arrays only: random features of the pixels and a linear head, trained together.


# %%
def plain() -> Task:
    def init(key):
        first, second = jax.random.split(key)
        return {
            "features": 0.3 * jax.random.normal(first, (64, 64)),
            "phase": 6.28 * jax.random.uniform(second, (64,)),
            "head": jnp.zeros((64, 10)),
        }

    def apply(params, images):
        pixels = images.reshape(len(images), -1)
        return jnp.cos(pixels @ params["features"] + params["phase"][None]) @ params["head"]

    return classifier(init, apply)


# %% [markdown]
# Flax modules: `linen_task` and `nnx_task` take the loss of one example, and an example for its shape.


# %%
class Mixer(nn.Module):
    """Dense layers over columns and rows in turn."""

    @nn.compact
    def __call__(self, x):
        x = x[..., 0] / 255
        for _ in range(2):
            x = x + nn.Dense(8)(nn.gelu(nn.Dense(32)(x)))
            x = jnp.swapaxes(x, 1, 2)
        return nn.Dense(10)(x.reshape(len(x), -1))


class Network(nnx.Module):
    """One hidden layer."""

    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(64, 64, rngs=rngs)
        self.head = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.relu(self.hidden(x.reshape(len(x), -1) / 255)))


cross_entropy = optax.softmax_cross_entropy_with_integer_labels
images = np.zeros((1, 8, 8, 1), np.uint8)
hits = {"accuracy": lambda logits, label: logits.argmax() == label}


def linen() -> Task:
    return fv.linen_task(Mixer(), cross_entropy, images, metrics=hits)


def of_nnx() -> Task:
    return fv.nnx_task(Network, cross_entropy, images, metrics=hits)


# %% [markdown]
# A weighting: the mean entropy of a client's predictions on D_val, and its inverse.


# %%
def by_certainty(task: Task) -> Weighting:
    def entropy(hyper, client, data):
        def summed(rows):
            batch, mask = tree.gather(data.pool, rows)
            logs = jax.nn.log_softmax(task.predict(*client.variables, batch))
            return jnp.where(mask, -(jnp.exp(logs) * logs).sum(-1), 0).sum()

        return signals.mean_over(summed, data.val)

    def weigh(hyper, entropies, view):
        return broadcast_weights(
            shares(1 / (entropies + hyper["fedvg.eps"]), view.participating), view
        )

    return Weighting(entropy, weigh)


# %% [markdown]
# All models under four weightings. The run records a user's own metric, `confidence`, at every evaluation.


# %%
def run(task: Task, rule: str, num_rounds: int):
    named = "fedvg" if rule == "certainty" else rule
    config = fv.Config(
        rounds=num_rounds, alpha=0.05, partition_seed=42, lr=0.2, weighting=named, eval_every=2
    )

    def confidence(model, data):
        batch, mask = tree.gather(data.pool, data.test.reshape(-1))
        return jax.nn.softmax(task.predict(*model, batch)).max(-1).mean(where=mask)

    custom = by_certainty(task) if rule == "certainty" else None
    return fv.run(config, task=task, weighting=custom, metrics={"confidence": confidence}).records


COLOURS = {"uniform": "0.55", "samples": "#b07d2b", "fedvg": "#2b6cb0", "certainty": "#c2334d"}
LABELS = {"samples": "samples (FedAvg)", "certainty": "certainty (custom)"}


def picture(found, path: Path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"font.size": 9, "axes.titlesize": 9.5})
    figure = Figure(figsize=(8, 5.2), layout="constrained")
    axes = figure.subplots(2, len(found), sharex=True, sharey="row", height_ratios=(1.6, 1))
    for column, (model, by_rule) in enumerate(found.items()):
        top, bottom = axes[:, column]
        for rule, records in by_rule.items():
            evaluated = [r for r in records if "test_accuracy" in r]
            rounds = [r["round"] for r in evaluated]
            accuracies = [100 * r["test_accuracy"] for r in evaluated]
            confidences = [100 * r["confidence"] for r in evaluated]
            style = {"color": COLOURS[rule], "lw": 1.8}
            top.plot(rounds, accuracies, label=LABELS.get(rule, rule), **style)
            bottom.plot(rounds, confidences, **style)
        top.set(title=model.replace(": ", ":\n"), ylim=(0, 100))
        bottom.set(xlabel="round", ylim=(0, 100))
        for ax in (top, bottom):
            ax.grid(alpha=0.25)
            ax.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("test accuracy (%)")
    axes[1, 0].set_ylabel("custom metric:\nmean confidence (%)")
    axes[0, 0].legend(frameon=False, loc="lower right")
    figure.suptitle(
        "Three models and a weighting from outside the library\n(digits, alpha 0.05, one seed)",
        fontsize=10,
    )
    figure.savefig(path, dpi=160)


# %%
def main(fast: bool = False, path: Path = Path("own_model.png")):
    models = {
        "plain JAX: random cosine features": plain(),
        "Flax Linen: a small mixer": linen(),
        "Flax NNX: a network": of_nnx(),
    }
    rules = ["certainty"] if fast else list(COLOURS)
    rounds = 2 if fast else 60
    found = {}
    for name, task in models.items():
        found[name] = {rule: run(task, rule, rounds) for rule in rules}
    picture(found, path)
    return found


if __name__ == "__main__":
    main(fast="--fast" in sys.argv)
