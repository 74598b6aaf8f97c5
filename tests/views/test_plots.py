"""Pictures of a run folder."""

import json

import numpy as np
import pytest
from support.files import disk_of

from fedvg_jax import config, plots
from fedvg_jax.config import Config
from fedvg_jax.views import plots as figures

pytest.importorskip("matplotlib", reason="pictures need the plot extra")


def make_records(num_clients: int, num_rounds: int = 12, **changes):
    """Returns records of random weights; client 0 never takes part."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(5, 200, num_clients)
    records = []
    for index in range(1, num_rounds + 1):
        clients = np.sort(rng.choice(np.arange(1, num_clients), max(2, num_clients // 2), replace=False))
        values = rng.dirichlet(np.ones(len(clients)))
        accuracy = 0.5 + 0.03 * index
        metrics = {"test_accuracy": accuracy, "val_accuracy": accuracy - 0.01, "test_majority_accuracy": 0.4}
        records.append(
            {"round": index, "clients": clients.tolist(), "weights": values.tolist(),
             "num_samples": sizes[clients].tolist(), **metrics, **changes}
        )  # fmt: skip
    return records


def test_accuracy_has_a_title_the_range_of_the_data_and_the_majority_line():
    settings = Config(algorithm="fedprox", weighting="samples", alpha=0.1, seed=7)
    figure = figures.curves(make_records(5), "accuracy", figures.run_label(settings))
    axes = figure.axes[0]
    for part in ("fedprox", "samples", "digits", "alpha 0.1", "seed 7"):
        assert part in axes.get_title(loc="left")
    low, high = axes.get_ylim()
    assert 35 < low < 40 and 86 < high < 95
    assert [40.0, 40.0] in [list(line.get_ydata()) for line in axes.lines]


def test_clients_are_sorted_by_size_and_absent_ones_left_out():
    records = make_records(20)
    records[0]["weights"][0] = 0.0
    records[0]["dropped"] = [records[0]["clients"][0]]
    ids, sizes, shares = figures.weight_shares(records)
    assert 0 not in ids and (np.diff(sizes) >= 0).all()
    first = list(ids).index(records[0]["clients"][0])
    assert np.isnan(shares[first, 0]) and np.isfinite(shares).sum() == sum(len(r["clients"]) for r in records) - 1
    assert shares[list(ids).index(records[1]["clients"][0]), 1] == records[1]["weights"][0] * 10


@pytest.mark.parametrize("num_clients", [3, 300])
def test_no_label_of_the_weights_is_cut_off(num_clients):
    records = [r | {"clients": [k + 10**6 for k in r["clients"]]} for r in make_records(num_clients, 5)]
    figure = figures.weights(records, "title")
    (left, low), (right, high) = figure.get_tightbbox().get_points().T
    width, height = figure.get_size_inches()
    assert left >= 0 and low >= 0 and right <= width and high <= height


def test_command_draws_a_run_folder_again(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(config.to_json(Config(clients=5))))
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(r) + "\n" for r in make_records(5)))
    assert plots.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / name) for name in ("accuracy.png", "weights.png")]
    assert (tmp_path / "weights.png").read_bytes().startswith(b"\x89PNG")
    before = (tmp_path / "accuracy.png").read_bytes()
    with disk_of(1000):
        assert plots.main([str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: cannot draw {tmp_path / 'accuracy.png'}: ") and "fix it, then" in line
    assert (tmp_path / "accuracy.png").read_bytes() == before
    assert len([*tmp_path.iterdir()]) == 4, "no draft is left"
