"""Runs on texts and tables: settings that need images are refused in one line, and all others work."""

import functools

import numpy as np
import pytest
from files import one_line

from fedvg_jax.api import run
from fedvg_jax.config import Config
from fedvg_jax.models import gru
from fedvg_jax.runs import registry, simulation


def text_config(**settings) -> Config:
    return Config(**({"dataset": "literature", "model": "gru", "partition": "group"} | settings))


def table_config(**settings) -> Config:
    return Config(**({"dataset": "iris", "clients": 3, "alpha": 10.0} | settings))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            text_config(model="mlp"),
            r"model mlp needs class labels.*y of literature is int32 \[3541, 64\]; use --model gru",
        ),
        (table_config(model="gru"), r"model gru takes sequences.*iris is float32 \[150, 4\].*use --model mlp"),
        (table_config(model="cnn"), "model cnn takes images.*use mlp"),
        (text_config(partition="dirichlet"), "partition dirichlet needs class labels.*use iid, quantity, group"),
        (text_config(augment="flip"), "augment flip is for images"),
        (text_config(normalise="half"), "normalise half is for images.*use none"),
        (text_config(corrupt={"kind": "rotate"}), "corrupt.kind rotate is for images.*use label_flip, label_noise"),
        (text_config(validation={"rho": 0.5}), "validation.rho 0.5 needs class labels"),
        (
            text_config(validation={"source": "npz", "data_dir": "x"}, val_ratio=0.0),
            "validation.source npz is for images.*use --validation.source clients",
        ),
    ],
)
def test_setting_that_does_not_fit_the_rows_is_one_line(config, message):
    with one_line(message):
        simulation.simulation(config)


@pytest.fixture
def texts(tmp_path):
    """Returns a folder of two short texts."""
    rng = np.random.default_rng(0)
    for author in ("first", "second"):
        (tmp_path / f"{author}.txt").write_text("".join(rng.choice(list("abc \n"), 1400)), encoding="utf-8")
    return tmp_path


def test_run_on_texts_records_accuracy_per_character(texts, monkeypatch):
    monkeypatch.setitem(
        registry.MODELS, "gru", registry.Model(functools.partial(gru.GRU, width=2, hidden=3), gru.blocks)
    )
    settings = {"clients": 2, "join_ratio": 1.0, "rounds": 1, "local_epochs": 1}
    config = text_config(
        dataset="text",
        data_dir=texts,
        record="client_accuracy, confusion",
        weighting="val_accuracy",
        corrupt={"kind": "label_noise", "clients": 0.5},
        validation={"label_noise": 0.2},
        **settings,
    )
    record = run(config).records[-1]
    confusion = np.array(record["test_confusion"])  # 21 rows of each author, of which 5 are for test
    assert confusion.shape == (5, 5) and confusion.sum() == 2 * 5 * 64
    assert record["test_accuracy"] == pytest.approx(np.trace(confusion) / confusion.sum())
    assert np.array(record["client_accuracy"]).shape == (2,) and 0 < np.min(record["client_accuracy"]) < 1
