"""Mistakes in the settings of a run: in calls, files and flags."""

from pathlib import Path

import fedvg_jax as fv
from fedvg_jax import config, resolve
from fedvg_jax.config import command_line
from fedvg_jax.resolve.custom import Custom
from messages import scratch

DP = {"dp.clip": 1.0, "weighting": "uniform"}
MEDIAN = {"robust": "median", "weighting": "uniform"}
TABLE = {"dataset": "iris", "clients": 3, "alpha": 10.0}
TEXT = {"dataset": "literature", "model": "gru", "partition": "group"}
DITTO = {"algorithm": "ditto"}

VALUES = {
    "alpha": (0.0, float("nan"), float("inf")),
    "clients": (0, 2**1000),
    "rounds": (2.5, "many", True),
    "lr": (0.0, {}),
    "lanes": ("0", "some", "٣"),
    "dataset": ("nosuch",),
    "weighting": (
        "nosuch",
        "samples+nosuch",
        "samples+",
        "uniform+samples+fedvg",
        "permuted(samples",
        "permuted",
    ),
    "fedvg.include": ("(" * 3000, "a{99999999999}"),
    "out": ("",),
    "local": ("1.5:^head",),
    "local_epochs": ("5:",),
    "send": ("topk:2", "topk:many", "topk:", "none:1"),
    "partition": ("file",),
    "validation.source": ("clients:0", "npz"),
    "nosuch": (1,),
    "fedvg.nrom": ("l2",),
    "fedvg": ("l1",),
}
"""Setting -> values that it cannot have."""

TOGETHER = [
    ({"partition": "official", "holdout": "global"}, "holdout"),
    ({"partition": "balanced_client", "clients": 1}, "balanced_client"),
    ({"clients": 6, "corrupt.kind": "feature_noise", "corrupt.clients": 0.01}, "corrupt.clients"),
    ({"robust": "median"}, "robust median"),
    (MEDIAN | {"algorithm": "feddyn"}, "feddyn"),
    ({"robust": "krum:4", "weighting": "uniform"}, "krum"),
    ({"clients": 4, "client_chunk": 1, "weighting": "permuted(fedvg)"}, "client_chunk"),
    (MEDIAN | {"client_chunk": 1}, "client_chunk"),
    (DP | {"tuning.steps": 1}, "tuning.steps"),
    (DP | {"robust": "median"}, "robust"),
    (DP | {"local": "^classifier/"}, "local"),
    (DP | {"selection": "size"}, "selection"),
    (DP | TABLE, "iris"),
    ({"export": "model.safetensors", "local": "^classifier/"}, "local"),
    (DP | {"dp.delta": 0.05}, "dp.delta"),
    ({"algorithm": "elastic", "reference": "server-stats"}, "server-stats"),
    ({"model": "vit_s16", "norm_layers": "group"}, "norm-layers"),
    ({"model": "resnet18", "norm_layers": "frozen"}, "norm_layers"),
    ({"selection": "power_of_choice:9"}, "power_of_choice"),
    (DITTO | {"reference": "server-stats"}, "server-stats"),
    (MEDIAN | {"local": "^fc1/"}, "local"),
]
"""Settings that contradict each other, without the data."""

WITH_DATA = [
    ({"selection": "power_of_choice", "reference": "cohorts"}, "cohorts"),
    ({"selection": "power_of_choice", "placement": "host"}, "placement"),
    ({"local": "nosuch"}, "local"),
    ({"local": "."}, "local"),
    ({"record": "personal_accuracy", "holdout": "global"}, "personal_accuracy"),
    (TEXT | {"model": "mlp"}, "mlp"),
    (TABLE | {"model": "gru"}, "gru"),
    (TEXT | {"partition": "dirichlet"}, "dirichlet"),
    (TEXT | {"augment": "flip"}, "augment"),
    (TEXT | {"corrupt.kind": "feature_noise"}, "corrupt.kind"),
    (
        TEXT | {"validation.source": "npz", "validation.data_dir": "x", "val_ratio": 0.0},
        "validation.source",
    ),
    (TEXT | {"validation.rho": 0.5}, "validation.rho"),
]
"""Settings that contradict each other, or the data."""

FILES = {
    "[fedgv]\nnorm = 'l1'": "fedvg.norm", "rounds = 2.5": "mine.toml: rounds", "[fedvg.norm]": "fedvg.norm",
    "alpha = = 1": "mine.toml", 'data_dir = "C:\\Users\\me"': "mine.toml",
}  # fmt: skip
"""Text of a file -> the name."""

FLAGS = {
    "--roun 1": "--rounds", "-lr 1": "--lr", "--fedvg-norm=l2": "--fedvg.norm", "--no-fedvg.norm": "--fedvg.norm",
    "--seeds 1": "--seed", "stray": "stray", "--dry-run=stray": "--dry-run", "--": "--", "--out": "--out",
    "--rounds 3.0": "--rounds",
}  # fmt: skip
"""Command line -> the name."""


def check(settings, then=config.check):
    """Returns the call that makes and checks these settings."""
    return lambda: then(config.apply(fv.Config(), settings, "test"))


def contradicts(settings):
    """Makes the method of settings, after their check."""
    resolve.method.make_method(config.check(settings), Custom())


def read(text):
    """Returns the call that reads a file."""

    def use(path):
        path.write_text(text)
        config.apply(fv.Config(), config.read_toml(path), "mine.toml")

    return scratch(use)


CASES = [
    (f"{name} {value!s:.20}", check({name: value}), name)
    for name in VALUES
    for value in VALUES[name]
]
CASES += [(f"{settings}", check(settings, contradicts), name) for settings, name in TOGETHER]
CASES += [(f"{settings}", check(settings, fv.simulation), name) for settings, name in WITH_DATA]
CASES += [(repr(text), read(text), name) for text, name in FILES.items()]
CASES += [
    (words[:20], lambda words=words: command_line.parse(words.split(), "sim"), name)
    for words, name in FLAGS.items()
]
CASES += [
    ("no config", lambda: fv.run({"lr": 1.0}), "Config"),  # pyright: ignore[reportArgumentType]
    ("a name of a group", lambda: fv.Config(fedvg={"nrom": "l2"}), "fedvg.norm"),
    ("a name of a setting", lambda: fv.Config(learning_rate=0.1), "learning_rate"),
    ("a missing file", lambda: config.read_toml(Path("nowhere.toml")), "nowhere.toml"),
]
