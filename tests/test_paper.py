"""The paper's numbers, and the headers of the configs."""

import tomllib
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.studies.paper import values
from fedvg_jax.config import Config, presets

CONFIGS = Path(__file__).parent.parent / "configs"
ALPHAS = (100, 10, 1, 0.1, 0.05)
PAIRS = {  # the seven of the paper's result tables
    ("cifar10", "resnet18"),
    ("organamnist", "resnet18"),
    ("tinyimagenet", "resnet50"),
    ("covid19", "resnet50"),
    ("covid19", "vit_s16"),
    ("dermamnist", "resnet50"),
    ("dermamnist", "vit_b16"),
}


def test_result_tables_are_complete():
    """Seven pairs, seven methods, five alphas; the table of integrations has methods with and without FedVG."""
    rows = pd.read_csv(Path(values.__file__).with_name("tables.csv"))
    counts = rows.table.value_counts()
    assert len(rows) == 555
    assert counts["results_resnet"] == 5 * 7 * 5 and counts["results_vit"] == 2 * 7 * 5
    results = rows[rows.table.str.startswith("results")]
    assert {*results[["dataset", "model"]].itertuples(index=False, name=None)} == PAIRS
    assert {*results.alpha} == {*ALPHAS}
    assert results["mean"].between(0, 100, "neither").all() and (results["std"] > 0).all()


@pytest.mark.parametrize(("method", "mean"), [("fedavg", 70.17), ("fedvg", 73.23)])
def test_text_and_tables_give_the_same_means(method, mean):
    """The mean over the seven pairs at alpha 0.05: FedVG 73.23, FedAvg 70.17 (text of section 4)."""
    total = 0.0
    for dataset, model in PAIRS:
        config = Config(dataset=dataset, model=model, method=method, alpha=0.05)
        total += values.published(config)[0]
    assert round(total / 7, 2) == mean


@pytest.mark.parametrize(("dataset", "model"), sorted(PAIRS))
def test_config_equals_the_preset_of_its_data_set(dataset, model):
    """The model is excluded, because a data set may have two."""
    config = tomllib.loads((CONFIGS / f"{dataset}_{model}.toml").read_text())
    assert config["dataset"] == dataset and config["model"] == model
    preset = presets.DATASETS[dataset]
    assert (preset | {"model": model}).items() <= config.items()
    assert (dataset, preset["model"]) in PAIRS
