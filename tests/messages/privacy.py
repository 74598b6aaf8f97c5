"""What has no bound under differential privacy."""

import jax
from support import worlds

import fedvg_jax as fv
from fedvg_jax.engine import privacy, robust

CONFIG = fv.Config(
    clients=4, rounds=1, alpha=10.0, weighting="uniform", train="^classifier/", dp={"clip": 0.5}
)
TASK = fv.models.classification(fv.models.MLP(3, hidden=(4,)), 3, (2, 2, 1))


def residual_of_weights(hyper, server, params, cohort):
    return jax.tree.map(lambda p, w: p * w.sum(), params, cohort.weights), server


def simulate(settings, **own):
    """Returns the call that assembles a private run."""
    given = {"data": worlds.images(120), "task": TASK} | own
    return lambda: fv.simulation(fv.config.apply(CONFIG, settings, "test"), **given)


def round_step(**options):
    uneven, fedavg = worlds.uneven(), worlds.algorithm("fedavg")
    return lambda: worlds.round_step(uneven, fedavg, "uniform", private=privacy.fixed, **options)


CASES = [
    ("client states", simulate({"algorithm": "moon", "train": ""}), "states"),
    ("messages of clients", simulate({"algorithm": "scaffold"}), "messages"),
    ("errors of a compression", simulate({"send": "topk"}), "topk"),
    (
        "weights",
        simulate({}, algorithm=fv.algorithms.fedavg()._replace(residual=residual_of_weights)),
        "residual",
    ),
    (
        "statistics",
        simulate({"train": ""}, data=worlds.random_images(), task=worlds.TASK),
        "running statistics",
    ),
    (
        "a description of the rows",
        simulate({}, weighting=fv.weightings.samples()._replace(describe=lambda rows: len(rows.y))),
        "describe",
    ),
    ("own cohorts", simulate({}, selection=fv.Selection(lambda population: [0, 1])), "selection"),
    ("a robust rule", round_step(aggregate=robust.median), "private"),
    ("a local part", round_step(local=fv.local_part("left")), "private"),
]
