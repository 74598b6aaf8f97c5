"""Any outcome is compared: an own metric that falls, accuracies of clients' own models, and every pair of methods."""

import itertools

import numpy as np
import pytest
from support.run_folders import csv_rows, write_run

pytest.importorskip("scipy", reason="reports need the report extra")
pytest.importorskip("matplotlib", reason="reports need the report extra")

from scipy import stats

import fedvg_jax as fv
from fedvg_jax.study import report, tables
from fedvg_jax.study.collect import collect

SEEDS = range(6)
METHODS = ("fedavg", "fedprox", "ditto")
RNG = np.random.default_rng(3)
ERRORS = {m: (3 - i + RNG.random(6)).round(6) for i, m in enumerate(METHODS)}
OWN = {m: (0.5 + i / 10 + RNG.random(6) / 20).round(6) for i, m in enumerate(METHODS)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of three methods; the later ones have smaller errors and better models of their clients."""
    folder = tmp_path_factory.mktemp("outcomes")
    for method, seed in itertools.product(METHODS, SEEDS):
        own = {"personal_accuracy_mean": OWN[method][seed], "personal_worst_decile": OWN[method][seed] / 2}
        last = {"mae": ERRORS[method][seed], **own}
        first = {name: 2 * value if name == "mae" else value / 2 for name, value in last.items()}
        write_run(folder / f"{method}{seed}", (0.5, 0.6), method=method, seed=seed, fields={1: first, 2: last})
    return folder


def corrected(p_values):
    """Returns Holm's correction by its definition: max over smaller p of p times the number of tests left."""
    ordered = sorted(p_values)
    return [max(min(1, p * (len(ordered) - i)) for i, p in enumerate(ordered) if p <= own) for own in p_values]


@pytest.mark.parametrize("metric", ["mae", "personal_accuracy_mean", "personal_worst_decile"])
def test_scipy_recomputes_the_effects_of_any_metric(folder, metric):
    study = collect([folder], metric=metric)
    shares = 50 if metric.endswith("decile") else 100
    values = {m: ERRORS[m] if metric == "mae" else shares * OWN[m] for m in METHODS}
    rows = {r["method"]: r for r in csv_rows(tables.effects(study, tables.options(study)))}
    p_values = [stats.ttest_rel(values[m], values["fedavg"]).pvalue for m in METHODS[1:]]
    for method, p, holm in zip(METHODS[1:], p_values, corrected(p_values), strict=True):
        assert float(rows[method]["difference"]) == pytest.approx(np.mean(values[method] - values["fedavg"]))
        assert float(rows[method]["t_p"]) == pytest.approx(p) and float(rows[method]["t_p_holm"]) == pytest.approx(holm)
    assert report.findings(study, tables.options(study))[0].startswith("Ditto ahead of FedAvg")
    row = next(r for r in csv_rows(tables.choices(study)) if r["method"] == "ditto")
    assert float(row["max mean"]) == pytest.approx(np.mean(values["ditto"]))  # the better of two rounds is the last


def test_scipy_recomputes_the_triangle_with_one_correction_over_all_pairs(folder):
    study = collect([folder], metric="mae")
    (row, last) = csv_rows(tables.pairs(study, tables.options(study, "all")))
    pairs = [(a, b) for b, a in itertools.combinations(study.methods, 2)]
    p_values = [stats.ttest_rel(ERRORS[a], ERRORS[b]).pvalue for a, b in pairs]
    found = {r["method"]: r for r in (row, last)}
    for (a, b), p, holm in zip(pairs, p_values, corrected(p_values), strict=True):
        assert float(found[a][f"{b} difference"]) == pytest.approx(np.mean(ERRORS[a] - ERRORS[b]))
        assert float(found[a][f"{b} t_p"]) == pytest.approx(p)
        assert float(found[a][f"{b} t_p_holm"]) == pytest.approx(holm)
    assert row[f"{study.methods[1]} difference"] == ""
    assert "the 3 comparisons" in tables.pairs(study, tables.options(study, "all")).notes[0]


def test_own_models_are_the_default_where_a_method_is_for_them_and_the_global_number_stands_beside(folder):
    study = collect([folder])
    assert study.metric == "personal_accuracy_mean"
    row = next(r for r in csv_rows(tables.clients(study)) if r["method"] == "ditto")
    assert float(row["test_accuracy"]) == pytest.approx(60)
    assert float(row["personal_accuracy_mean"]) == pytest.approx(100 * OWN["ditto"].mean())
    assert collect([folder / f"{m}{s}" for m in METHODS[:2] for s in SEEDS]).metric == "accuracy"


def test_a_declared_direction_replaces_that_of_the_name(folder):
    for metric, text in {"min:mae": "Ditto ahead of FedAvg", "max:mae": "FedProx behind FedAvg"}.items():
        study = collect([folder], metric=metric)
        assert report.findings(study, tables.options(study))[0].startswith(text)


def test_the_table_of_runs_has_every_recorded_metric_as_it_is_compared(folder):
    for metric in ("mae", "loss", "accuracy", "personal_worst_decile"):
        for line in csv_rows(tables.runs(collect([folder], metric=metric))):
            assert line["final"] == line[metric]


def test_a_metric_that_some_run_lacks_is_refused_with_those_that_all_have(folder, tmp_path):
    write_run(tmp_path / "other", (0.5,), method="fedavg", seed=0, alpha=9.0)
    with pytest.raises(fv.UsageError, match=r"other has none; all runs have loss, accuracy"):
        collect([tmp_path], metric="mae")
    with pytest.raises(fv.UsageError, match="got none"):
        fv.compare([])


def root(task):
    """Weights by the square root of the rows."""
    return fv.weightings.by_scalar(lambda hyper, client, data: client.num_samples.astype(float) ** 0.5)


def equal(task):
    """Equal weights."""
    return fv.weightings.by_scalar(lambda hyper, client, data: 1.0 + 0 * client.num_samples.astype(float))


def largest(model, data):
    """Returns the largest parameter."""
    import jax

    return max(abs(leaf).max() for leaf in jax.tree.leaves(model.params))


def test_own_methods_are_compared_alike_in_memory_from_their_folder_and_by_the_report(tmp_path):
    axes = {"weighting": {"root": root, "equal": equal, "fedvg": "fedvg"}, "seed": "0:3"}
    config, metrics = fv.Config(clients=4, rounds=1, model="linear"), {"size": largest}
    stored = fv.run_sweep(config, axes, tmp_path / "s", metrics=metrics)
    in_memory = fv.run_sweep(config, axes, metrics=metrics)
    by_files = fv.compare(tmp_path / "s", metric="min:size", baseline="all")
    for results in (stored, in_memory):
        found = fv.compare(results, metric="min:size", baseline="all")
        assert found.finding == by_files.finding and "size" in found.finding
        assert found.tables["pairs"].equals(by_files.tables["pairs"])
    assert set(by_files.tables["pairs"]["method"]) < {"root", "equal", "fedvg"}
    written = report.write([tmp_path / "s"], tmp_path / "again", baseline="all", metric="min:size", figures=[])
    assert "\n".join(written.findings) == by_files.finding


def test_fedavg_records_the_global_model_as_its_clients_own():
    record = "accuracy_by_client,personal_accuracy"
    (last,) = fv.run(fv.Config(clients=4, rounds=1, model="linear", method="fedavg", record=record)).records
    assert last["personal_accuracy"] == last["accuracy_by_client"]


def test_tuned_values_are_chosen_for_every_own_method_before_its_runs(tmp_path):
    """A learning rate of 0 learns nothing, so that the other one is chosen."""
    config = fv.Config(clients=4, rounds=1, model="linear")
    axes = {"weighting": {"root": root, "equal": equal}, "seed": "0:2"}
    results = fv.run_sweep(config, axes, tmp_path / "s", tune={"lr": [1e-9, 0.1]}, tune_seeds="7:8")
    assert [result.result.config.lr for result in results] == 4 * [0.1]
    notes = collect([tmp_path / "s"]).notes
    assert any("weighting=root: lr 0.1 (the largest of its grid)" in note for note in notes)
    with pytest.raises(fv.UsageError, match="out"):
        fv.run_sweep(config, axes, tune={"lr": [0.1]})
