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
    regression = fv.models.MLP(10, hidden=())  # softmax regression on 64 pixels
    return fv.simulation(config, task=fv.models.classification(regression, 10, (8, 8, 1)))


def mean_loss(sim, model, rows):
    """Mean cross-entropy on a table of rows."""

    def one(total, batch):
        sums = sim.task.measure(*model, *fv.tree.gather(sim.data.pool, batch))
        return total + sums["loss"], None

    total, _ = jax.lax.scan(one, jnp.zeros(()), rows)
    return total / (rows >= 0).sum().astype(total.dtype)


# %% [markdown]
# A run is one differentiable function of the hyperparameters. The schedule is an argument, so every seed uses the same
# program.


# %%
def unrolled_round(sim, most: int):
    """The function (state, schedule, data, hyper) -> (state, metrics) of a round with loops of `most` steps."""
    executor, clients = fv.unrolled(most, epochs=2), sim.config.clients
    return fv.make_round(sim.task, sim.algorithm, sim.weighting, executor, fv.sgd, clients)


def plans(seeds, num_rounds: int):
    """The schedules of each seed, in tables of one size, so that seeds share a program; and the most local steps."""
    sims = [simulation("uniform", seed) for seed in seeds]
    planned = [sim.schedule(r) for sim in sims for r in range(num_rounds)]
    stacked = fv.stack_schedules(planned)
    by_seed = jax.tree.map(lambda x: x.reshape(-1, num_rounds, *x.shape[1:]), stacked)
    return [fv.tree.take(by_seed, i) for i in range(len(sims))], fv.max_steps(planned)


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


def learn(sim, most: int, schedules, num_updates: int):
    """Adam on the D_val loss, with one training seed per update."""
    runs = fv.over_rounds(unrolled_round(sim, most))

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
    """Rounds with the test loss of every round as metrics."""
    step = unrolled_round(sim, most)

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
        label, colour = f"{name}  {mean[-1]:.2f} ± {error[-1]:.2f}", COLOURS[name]
        middle.plot(rounds, mean, color=colour, label=label, lw=1.8)
        middle.fill_between(rounds, mean - error, mean + error, color=colour, alpha=0.18, lw=0)
    middle.set(xlabel="round", ylabel="test loss")
    middle.set_title(f"{len(losses)} fresh seeds: mean ± standard error")
    middle.legend(frameon=False, title="after the last round", alignment="left")
    hyper = as_hyper(learned)
    multipliers = hyper["multipliers"]
    names = [f"norm of {path}" for path in fv.tree.paths(multipliers)]
    factors = [hyper["generalised.exponent"], hyper["generalised.temperature"]]
    factors += jax.tree.leaves(multipliers)
    labels = ["exponent p", "temperature T", *names]
    right.barh(labels, np.log2(factors), color=COLOURS["learned"], height=0.55)
    right.axvline(0, color="0.3", lw=1)
    right.invert_yaxis()
    part = f"part of n_k/N: {hyper['generalised.mix']:.2f} (FedAvg: 1)"
    right.set(xlabel=f"log2 of the factor; 0 is FedVG\n{part}", title="what was learned")
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        "A weighting rule learned through federated rounds\n(digits, alpha 0.05, softmax regression)",
        fontsize=10,
    )
    figure.savefig(path, dpi=160)


# %%
def main(fast: bool = False, path: Path = Path("learned_weighting.png")):
    num_rounds, num_train, num_fresh, num_updates = (2, 1, 2, 2) if fast else (6, 4, 12, 60)
    sims = {name: simulation(rule, 0) for name, rule in RULES.items()}
    sim = sims["learned"]
    schedules, most = plans([*range(100, 100 + num_train), *range(num_fresh)], num_rounds)
    training, fresh = schedules[:num_train], schedules[num_train:]
    learned, values = learn(sim, most, training, num_updates)
    found = curves(sims, learned, fresh, most)
    picture(values, found, learned, num_train, path)
    return learned, values, found


if __name__ == "__main__":
    main(fast="--fast" in sys.argv)
