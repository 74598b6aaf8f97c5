"""A round of FedVG, as the paper writes it, on digits. Run it with: python examples/one_round.py"""

import jax
import jax.numpy as jnp

import fedvg_jax as fv

CONFIG = fv.Config(
    partition="dirichlet_equal", alpha=0.1, rounds=20, batch_size=16, validation={"size": 160}
)
"""Clients of one size, which take equally many steps, and a validation set of whole minibatches."""


def federated_round(loss, theta_g, lr, batches, val_batches):
    """Returns the global model after a round.

    Args:
        loss: (parameters, minibatch) -> scalar.
        theta_g: the global model.
        lr: learning rate of the clients.
        batches: minibatches of every client and local step, leaves [K, S, B, ...].
        val_batches: minibatches of D_val, leaves [V, B, ...].
    """

    def train(batches):
        def step(theta, batch):
            return jax.tree.map(lambda p, g: p - lr * g, theta, jax.grad(loss)(theta, batch)), None

        return jax.lax.scan(step, theta_g, batches)[0]

    clients = jax.vmap(train)(batches)  # theta_k, stacked [K, ...]
    gradients = fv.validation_gradients(loss, clients, val_batches)  # g_k, vmapped over clients
    norms = fv.gradient_norms(gradients)  # ||g_k^(l)||_1 of every layer
    weights = fv.inverse_norm_weights(norms)  # s_k = (1 / (G_k + eps)) / sum_j (1 / (G_j + eps))
    return fv.aggregate(theta_g, clients, weights)  # theta_g - sum_k s_k (theta_g - theta_k)


def minibatches(sim, number):
    """Returns the minibatches of a round, as (batch, mask): of the clients, and of D_val."""
    plan, scoring = sim.schedule(number), sim.data.scoring
    steps = plan.start[:, None] + jnp.arange(plan.num_steps[0])[None]  # [K, S]
    return [
        fv.tree.gather(sim.data.pool, rows)
        for rows in (plan.rows[steps], scoring[(scoring >= 0).all(1)])
    ]


def main():
    """Trains the model, and prints its test accuracy after every round."""
    sim = fv.simulation(CONFIG)
    model = sim.state.variables
    run = jax.jit(
        lambda *given: federated_round(
            lambda p, batch: sim.task.loss(p, {}, *batch, True)[0], *given
        )
    )
    for number in range(CONFIG.rounds):
        model = model._replace(params=run(model.params, sim.hyper["lr"], *minibatches(sim, number)))
        print(f"round {number + 1}: test accuracy {fv.evaluate(sim, model)['test_accuracy']:.1%}")


if __name__ == "__main__":
    main()
