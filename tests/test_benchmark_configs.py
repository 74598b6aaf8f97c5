"""Headers of the shipped configs quote the results file, and the script that measures the configs works."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import configs
from fedvg_jax import data
from fedvg_jax.core.types import UsageError
from fedvg_jax.data.arrays import Arrays


def test_incomplete_measurement_is_refused():
    whole = {key: [1.0, 0.5] for key in ("train_loss", "val_loss", "test_accuracy", "seconds_per_round")}
    configs.refuse_incomplete(whole, 2)
    for column in whole:
        for values in ([1.0], [1.0, None], [float("nan"), 1.0], [1.0, float("inf")]):
            with pytest.raises(UsageError, match=column):
                configs.refuse_incomplete(whole | {column: values}, 2)


def test_data_set_is_reduced_evenly(tmp_path):
    x = np.arange(100, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 3, 1), np.uint8)
    arrays = Arrays("made", x, np.arange(100, dtype=np.int32) % 4, ("a", "b", "c", "d"), 100)
    assert configs.write_subset(arrays, 12, tmp_path / "small.npz") == [12, 2, 3, 1]
    subset = data.load("npz", tmp_path / "small.npz")
    rows = subset.x[:, 0, 0, 0].astype(int)
    assert rows.tolist() == [99 * i // 11 for i in range(12)] and subset.y.tolist() == (rows % 4).tolist()
    assert subset.class_names == arrays.class_names


def test_missing_data_sets_are_reported_and_nothing_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(configs.machine, "describe", lambda command: {})  # samples the load for a second
    assert configs.main(["--data-dir", str(tmp_path), "--out", str(tmp_path / "out.json")]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in errors] == list(configs.REDUCED) and not (tmp_path / "out.json").exists()


@pytest.mark.slow
def test_config_is_run_and_planned_and_its_header_written(tmp_path, monkeypatch):
    """LeNet5 on noise in the shape of CIFAR-10."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (400, 32, 32, 3), np.uint8), np.arange(400) % 10
    np.savez(tmp_path / "cifar10.npz", x=x, y=y)
    monkeypatch.setattr(configs, "REDUCED", {"cifar10_lenet5": configs.Reduced(200, configs.TINY)})
    out = tmp_path / "out.json"
    flags = ["--data-dir", str(tmp_path), "--out", str(out), "--note", "cifar10=noise"]
    assert configs.main(flags) == 0
    result = json.loads(out.read_text())["configs"]["cifar10_lenet5"]
    reduced = result["reduced"]
    assert result["images_found"] == 400 and result["note"] == "noise" and reduced["images"] == [200, 32, 32, 3]
    assert len(reduced["val_loss"]) == 5 and 0.1 < reduced["peak_memory_gib"] < 8
    assert re.search(r"200 images of 32 x 32, noise; .* s a round, .* GiB at most", configs.format_measurement(result))
    assert Path(reduced["command"].split()[-1]) == Path("cifar10.npz")
