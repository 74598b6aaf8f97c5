# %% [markdown]
# # Learned weighting
# FedVG weighs a client by the inverse of its validation-gradient norm. That is one point of a family with an exponent,
# a temperature, an eps, a part from sample counts and a factor for every tensor's norm. This example learns those
# numbers by gradient descent *through* several federated rounds, at Dirichlet alpha 0.05 on scikit-learn's digits. It
# compares the learned weighting with FedVG, FedAvg and uniform weights on other seeds.
#
# The training objective is the loss on D_val after each unrolled run. The reported number is the loss on the test set
# for cohorts and minibatches (seeds) that were not used in training. The partition is the same.

# %%
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedvg_jax as fv
from fedvg_jax import Data, SimState

RULES = {"uniform": "uniform", "FedAvg": "samples", "FedVG": "fedvg", "learned": "generalised"}


# %% [markdown]
# The simulation: digits over 20 clients of very unequal size, 10 a round, logistic regression.


# %%
def simulation(weighting: str, seed: int):
    """The simulation of a weighting and a seed."""
    config = fv.Config(
        weighting=weighting, seed=seed, local_epochs=2, lr=0.1, alpha=0.05, partition_seed=42
    )
    config = replace(config, fedvg=replace(config.fedvg, granularity="modelwise"))
    return fv.simulation(config, task=logistic())


def logistic():
    """Softmax regression on 64 pixels."""
    return fv.models.classification(fv.models.MLP(10, hidden=()), 10, (8, 8, 1))


def mean_loss(sim, model, rows):
    """Mean cross-entropy on a table of rows."""

    def one(total, batch):
        sums = sim.task.measure(*model, *fv.tree.gather(sim.data.pool, batch))
        return total + sums["loss"], None

    total, _ = jax.lax.scan(one, jnp.zeros(()), rows)
    return total / (rows >= 0).sum().astype(total.dtype)


# %% [markdown]
# A run of `num_rounds` rounds as one differentiable function of the hyperparameters. The schedule is an argument, so
# every seed uses the same program.


# %%
def unrolled_run(sim, num_rounds: int, most: int):
    """The function (state, schedules, data, hyper) -> (state, metrics)."""
    algorithm = sim.algorithm
    rule = sim.weighting
    executor = fv.unrolled(most, epochs=2)
    step = fv.make_round(sim.task, algorithm, rule, executor, fv.sgd, sim.config.clients)
    return fv.over_rounds(step)


def plans(seed: int, num_rounds: int, capacity: int):
    """The schedules of a seed, with tables of minibatches padded to one size, so that seeds share a program."""
    sim = simulation("uniform", seed)
    stacked = fv.stack_schedules([sim.schedule(r) for r in range(num_rounds)])
    spare = capacity - stacked.rows.shape[1]
    return stacked._replace(
        rows=np.pad(stacked.rows, ((0, 0), (0, spare), (0, 0)), constant_values=-1)
    )


# %% [markdown]
# Positive numbers are learned as logarithms, the mix as its logit. The initial values are FedVG's, except for a mix of
# 2 %, because the logit of 0 is infinite.


# %%
def start(model):
    return {
        "log_exponent": jnp.zeros(()),
        "log_temperature": jnp.zeros(()),
        "log_eps": jnp.log(jnp.float32(1e-3)),
        "logit_mix": jnp.float32(-4.0),
        "log_multipliers": jax.tree.map(lambda _: jnp.zeros(()), model.params),
    }


def as_hyper(learned):
    return {
        "generalised.exponent": jnp.exp(learned["log_exponent"]),
        "generalised.temperature": jnp.exp(learned["log_temperature"]),
        "fedvg.eps": jnp.exp(learned["log_eps"]),
        "generalised.mix": jax.nn.sigmoid(learned["logit_mix"]),
        "multipliers": jax.tree.map(jnp.exp, learned["log_multipliers"]),
    }


def learn(sim, runs, schedules, num_updates: int):
    """Adam on the D_val loss, with one training seed per update."""

    def objective(learned, plan):
        state, _ = runs(sim.state, plan, sim.data, {**sim.hyper, **as_hyper(learned)})
        return mean_loss(sim, state.variables, sim.data.val)

    optimiser = optax.adam(0.1)

    @jax.jit
    def update(learned, state, plan):
        value, slope = jax.value_and_grad(objective)(learned, plan)
        updates, state = optimiser.update(slope, state)
        return optax.apply_updates(learned, updates), state, value

    learned, values = start(sim.state.variables), []
    state = optimiser.init(learned)
    for i in range(num_updates):
        learned, state, value = update(learned, state, schedules[i % len(schedules)])
        values.append(float(value))
    return learned, values


# %% [markdown]
# All weightings on fresh seeds.


# %%
def curves(sims, learned, schedules, most: int):
    """Weighting -> test loss after every round, [seeds, rounds]."""
    found = {}
    for name, sim in sims.items():
        step = _with_test_loss(sim, most)
        hyper = {**sim.hyper, **(as_hyper(learned) if name == "learned" else {})}
        run = jax.jit(
            lambda plan, step=step, sim=sim, hyper=hyper: step(sim.state, plan, sim.data, hyper)[1]
        )
        found[name] = np.stack([run(plan) for plan in schedules])
    return found


def _with_test_loss(sim, most: int):
    """Rounds whose metrics are the test loss of every round."""
    algorithm = sim.algorithm
    rule = sim.weighting
    step = fv.make_round(
        sim.task, algorithm, rule, fv.unrolled(most, epochs=2), fv.sgd, sim.config.clients
    )

    def step_and_loss(state: SimState, schedule, data: Data, hyper):
        state, _ = step(state, schedule, data, hyper)
        return state, mean_loss(sim, state.variables, sim.data.test)

    return fv.over_rounds(step_and_loss, remat=False)


# %%
COLOURS = {"uniform": "0.55", "FedAvg": "#b07d2b", "FedVG": "#2b6cb0", "learned": "#c2334d"}


def picture(values, found, learned, num_train: int, path: Path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"font.size": 9, "axes.titlesize": 9.5})
    figure = Figure(figsize=(8, 6.4), layout="constrained")
    grid = figure.add_gridspec(2, 2)
    left, right = (figure.add_subplot(grid[0, column]) for column in range(2))
    middle = figure.add_subplot(grid[1, :])
    passes = np.reshape(values, (-1, num_train))  # one update per training seed and pass
    left.plot(np.arange(1, len(passes) + 1), passes, color="0.8", lw=0.9)
    left.plot(np.arange(1, len(passes) + 1), passes.mean(1), color=COLOURS["learned"], lw=1.8)
    left.set(xlabel="pass over the training seeds", ylabel="D_val loss after the unrolled rounds")
    left.set_title(f"learning on {num_train} seeds (red: mean)")
    rounds = np.arange(1, next(iter(found.values())).shape[1] + 1)
    for name, losses in found.items():
        mean, error = losses.mean(0), losses.std(0, ddof=1) / np.sqrt(len(losses))
        middle.plot(
            rounds,
            mean,
            color=COLOURS[name],
            label=f"{name}  {mean[-1]:.2f} ± {error[-1]:.2f}",
            lw=1.8,
        )
        middle.fill_between(
            rounds, mean - error, mean + error, color=COLOURS[name], alpha=0.18, lw=0
        )
    middle.set(
        xlabel="round",
        ylabel="test loss",
        title=f"{len(losses)} fresh seeds: mean ± standard error",
    )
    middle.legend(frameon=False, title="after the last round", alignment="left")
    hyper = as_hyper(learned)
    shown = {
        name: float(hyper[name])
        for name in (
            "generalised.exponent",
            "generalised.temperature",
            "generalised.mix",
            "fedvg.eps",
        )
    }
    bars = {f"norm of {key}": float(v) for key, v in _by_path(hyper["multipliers"]).items()}
    bars = {
        "exponent p": shown["generalised.exponent"],
        "temperature T": shown["generalised.temperature"],
        **bars,
    }
    right.barh(
        list(bars), [np.log2(v) for v in bars.values()], color=COLOURS["learned"], height=0.55
    )
    right.axvline(0, color="0.3", lw=1)
    right.invert_yaxis()
    part = f"part of n_k/N: {shown['generalised.mix']:.2f} (FedAvg: 1)"
    right.set(xlabel=f"log2 of the factor; 0 is FedVG\n{part}", title="what was learned")
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        "A weighting rule learned through federated rounds\n(digits, alpha 0.05, softmax regression)",
        fontsize=10,
    )
    figure.savefig(path, dpi=160)


def _by_path(pytree):
    return {
        jax.tree_util.keystr(p, simple=True, separator="/"): x
        for p, x in jax.tree.leaves_with_path(pytree)
    }


# %%
def main(fast: bool = False, path: Path = Path("learned_weighting.png")):
    num_rounds, num_train, num_fresh, num_updates = (2, 1, 2, 2) if fast else (6, 4, 12, 60)
    sims = {name: simulation(rule, 0) for name, rule in RULES.items()}
    sim = sims["learned"]
    seeds = range(100, 100 + num_train), range(num_fresh)
    drafts = [[plans(s, num_rounds, 4000) for s in part] for part in seeds]
    most = max(int(plan.num_steps.max()) for part in drafts for plan in part)
    length = max(int((plan.start + plan.num_steps).max()) for part in drafts for plan in part)
    training, fresh = (
        [plan._replace(rows=plan.rows[:, :length]) for plan in part] for part in drafts
    )
    learned, values = learn(sim, unrolled_run(sim, num_rounds, most), training, num_updates)
    found = curves(sims, learned, fresh, most)
    picture(values, found, learned, num_train, path)
    return learned, values, found


if __name__ == "__main__":
    main(fast="--fast" in sys.argv)
