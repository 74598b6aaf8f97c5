"""Federated regression: no images, no classes.

    python examples/regression.py

scikit-learn's 442 diabetes patients (Efron et al. 2004): ten measurements, and the progression of the disease after a
year. Every clinic has patients of a different severity, so none can learn the trend alone. A small network is trained
under three weightings and compared with least squares on all rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import flax.linen as nn
import numpy as np
from sklearn.datasets import load_diabetes

import fedvg_jax

WEIGHTINGS = ("samples", "uniform", "fedvg")


class Net(nn.Module):
    """Ten measurements -> one number."""

    hidden: int = 16

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(self.hidden)(x)))[:, 0]


def patients() -> tuple[np.ndarray, np.ndarray]:
    """x float32 [442, 10] of unit variance, y float32 [442] in units of 100 points."""
    x, y = load_diabetes(return_X_y=True)
    return np.float32(x * len(x) ** 0.5), np.float32(y / 100)


def clinics(y: np.ndarray, num_clients: int, seed: int) -> tuple[list, list, list]:
    """(train, val, test) rows of every clinic: patients sorted by severity and split into clinics.

    A tenth of each clinic is for validation, a quarter for testing.
    """
    rng = np.random.default_rng(seed)
    parts = [rng.permutation(rows) for rows in np.array_split(np.argsort(y), num_clients)]
    cuts = [
        np.split(rows, [len(rows) // 10 + 1, len(rows) // 10 + 1 + len(rows) // 4])
        for rows in parts
    ]
    val, test, train = (list(part) for part in zip(*cuts, strict=True))
    return train, val, test


def least_squares(x: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> float:
    """Mean squared error on `test` of the best linear model on `train`."""
    with_one = np.c_[x, np.ones(len(x))]
    solution, *_ = np.linalg.lstsq(with_one[train], y[train])
    return float(np.square(with_one[test] @ solution - y[test]).mean())


def squared_error(output, y):
    """Squared error of one patient."""
    return (output - y) ** 2


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Prints and returns the mean squared error on all clinics' test patients, by weighting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    x, y = patients()
    train, val, test = clinics(y, args.clients, args.seed)
    task = fedvg_jax.linen_task(
        Net(), squared_error, x[:1], metrics={"absolute_error": lambda out, y: abs(out - y)}
    )
    pooled, tested = np.concatenate(train), np.concatenate(test)
    errors = {
        "the mean of the training rows": float(np.square(y[tested] - y[pooled].mean()).mean()),
        "least squares on all rows": least_squares(x, y, pooled, tested),
    }
    for weighting in WEIGHTINGS:
        config = fedvg_jax.Config(
            clients=args.clients,
            rounds=args.rounds,
            lr=args.lr,
            seed=args.seed,
            weighting=weighting,
            batch_size=8,
        )
        history = fedvg_jax.run(config, data=(x, y), partition=(train, val, test), task=task)
        errors[f"federated, weights {weighting}"] = history.summary["test_loss_at_best_val"]
    print(
        f"mean squared error on the {len(tested)} test patients of {args.clients} clinics, units of 100 points"
    )
    for name, error in errors.items():
        print(f"  {name:32}{error:.3f}")
    return errors


if __name__ == "__main__":
    main()
