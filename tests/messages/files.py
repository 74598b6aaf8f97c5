"""Mistakes in files that a run reads or writes."""

import numpy as np

import fedvg_jax as fv
from fedvg_jax import commands, feature_file, prepare
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.host import files
from messages import scratch


def read(content):
    """Returns the call that reads these bytes as a JSON object."""
    return scratch(lambda path: path.write_bytes(content) and files.read_object(path))


def settings(text):
    """Returns the call that reads these settings."""
    return scratch(lambda path: path.write_text(text) and commands.parse(["--config", str(path)]))


def export(make):
    """Returns the call that exports to what `make` makes of a path."""
    return scratch(lambda path: files.export_target(make(path) or path))


def features(value=0.0, name="own.npz", model="linear"):
    """Returns the call that writes features of three equal rows."""
    arrays = Arrays(
        "table", np.full((3, 2), value, np.float32), np.arange(3, dtype=np.int32), tuple("abc"), 3
    )
    return scratch(
        lambda path: feature_file.write(path.with_name(name), fv.Config(model=model), arrays)
    )


CASES = [
    ("a list in place of an object", read(b"[1]"), "mine.toml"),
    ("an object that is nested too deeply", read(b'{"a":' * 100_000), "mine.toml"),
    (
        "a folder in place of an object",
        scratch(lambda path: path.mkdir() or files.read_object(path)),
        "mine.toml",
    ),
    ("a file that names another file", settings('config = "base.toml"'), "config"),
    ("the file of a sweep", settings("[axes]\nseed = [0]"), "sweep"),
    ("an export to a folder", export(lambda path: path.mkdir()), "export"),
    ("an export to a folder that is missing", export(lambda path: path / "model"), "export"),
    ("features that 16 bits cannot hold", features(1e6), "--float32"),
    ("features of characters", features(model="gru"), "gru"),
    (
        "an option of runs for features",
        lambda: prepare.parse_features(
            ["--dataset", "digits", "--model", "mlp", "--out", "f.npz", "--lr", "0.1"]
        ),
        "--lr",
    ),
]
