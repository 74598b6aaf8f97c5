"""Any outcome is compared: an own metric that falls, accuracies of clients' own models, and every pair of methods."""

import itertools

import flax.linen as nn
import jax
import numpy as np
import pytest
from support.files import one_line
from support.run_folders import write_run
from support.small_sweeps import power, root

pytest.importorskip("scipy", reason="reports need the report extra")
pytest.importorskip("matplotlib", reason="reports need the report extra")

from scipy import stats

import fedvg_jax as fv
from fedvg_jax import sweep
from fedvg_jax.study import report, statistics, tables
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
        error, own = ERRORS[method][seed], OWN[method][seed]
        last = {"mae": error, "personal_accuracy_mean": own, "personal_worst_decile": own / 2}
        first = last | {"mae": 2 * error, "personal_accuracy_mean": own / 2}
        fields = {1: first, 2: last}
        where = folder / f"{method}{seed}"
        write_run(where, (0.5, 0.6), method=method, seed=seed, fields=fields)
    return folder


@pytest.mark.parametrize("baseline", ["fedavg", "all"])
@pytest.mark.parametrize("metric", ["min:mae", "personal_accuracy_mean", "personal_worst_decile"])
def test_scipy_recomputes_the_effects_of_any_metric_with_one_correction(folder, metric, baseline):
    study = collect([folder], metric=metric)
    shares = 50 if metric.endswith("decile") else 100
    values = {m: ERRORS[m] if metric == "min:mae" else shares * OWN[m] for m in METHODS}
    study = tables.comparing(study, baseline)
    rows = [*tables.effects(study).numbers.itertuples()]
    assert len(rows) == {"all": 3, "fedavg": 2}[baseline]
    p_values = [stats.ttest_rel(values[row.method], values[row.against]).pvalue for row in rows]
    for row, p, holm in zip(rows, p_values, statistics.holm(p_values), strict=True):
        difference = np.mean(values[row.method] - values[row.against])
        assert (row.difference, row.t_p, row.t_p_holm) == pytest.approx((difference, p, holm))
    said = statistics.findings(study)[0]
    assert "Ditto is ahead of FedAvg by " in said or "FedAvg is behind Ditto by " in said
    runs = tables.runs(study).query("method == 'ditto'")
    for column in ("final", metric.removeprefix("min:")):
        assert [*runs[column]] == pytest.approx([*values["ditto"]])


def test_own_models_are_the_default_where_a_method_is_for_them_and_the_global_number_stands_beside(
    folder,
):
    study = collect([folder])
    assert study.outcome.metric == "personal_accuracy_mean"
    row = tables.means(study).numbers.query("method == 'ditto'").iloc[0]
    expected = 60, 100 * OWN["ditto"].mean()
    assert (row["accuracy"], row["personal_accuracy_mean"]) == pytest.approx(expected)
    others = [folder / f"{m}{s}" for m in METHODS[:2] for s in SEEDS]
    assert collect(others).outcome.metric == "accuracy"


def test_a_declared_direction_replaces_that_of_the_name(folder):
    said = fv.compare(folder, metric="max:mae").finding
    assert said.startswith("FedProx is behind FedAvg")


def test_a_metric_that_some_run_lacks_is_refused_with_those_that_all_have(folder, tmp_path):
    write_run(tmp_path / "other", (0.5,), method="fedavg", seed=0, alpha=9.0)
    with one_line(r"other has none; all runs have loss, accuracy"):
        collect([tmp_path], metric="mae")
    for nothing in ([], 3):
        with pytest.raises(fv.UsageError):
            fv.compare(nothing)


def write_clocked(folder, **clock):
    """Writes runs whose second or third round reaches 60 %, at other virtual seconds for every seed."""
    reached = {"fedavg": 3, "fedvg": 2}
    seconds = {m: n * (10 + np.arange(5) + RNG.random(5).round(6)) for m, n in reached.items()}
    for method, seed in itertools.product(reached, range(5)):
        last = reached[method]
        fields = {n: {"virtual_seconds": n / last * seconds[method][seed]} for n in (1, 2, 3)}
        accuracies = [0.5] * (last - 1) + [0.6] * (4 - last)
        settings = {"method": method, "seed": seed, "fields": fields, "clock": clock}
        write_run(folder / f"{method}{seed}", accuracies, **settings)
    return seconds


def test_virtual_seconds_to_a_target_are_compared_like_any_metric_and_the_answer_names_the_clock(
    tmp_path,
):
    seconds = write_clocked(tmp_path, step=0.5, speeds="lognormal:1")
    found = fv.compare(tmp_path, metric="min:time_to_target", target=0.6)
    test = stats.ttest_rel(seconds["fedvg"], seconds["fedavg"])
    row = found.tables["effects"].iloc[0]
    assert (row.t_low, row.t_high, row.t_p) == pytest.approx(
        (*test.confidence_interval(), test.pvalue)
    )
    assert found.finding.startswith("FedVG is ahead of FedAvg by ")
    assert "virtual seconds (95 % interval" in found.finding
    assert "target accuracy 60 %" in found.finding
    assert "clock.step 0.5, clock.speeds lognormal:1" in found.finding
    assert [*found.tables["means"]["time_to_target"]] == [np.median(seconds[m]) for m in seconds]
    write_clocked(tmp_path / "python" / "runs")
    assert "a clock from Python" in fv.compare(tmp_path / "python" / "runs").finding
    with one_line("target"):
        fv.compare(tmp_path, metric="time_to_target")
    write_run(tmp_path / "fedvg9", (0.5, 0.6), method="fedvg", seed=9)
    with one_line("clock"):
        fv.compare(tmp_path, metric="time_to_target", target=0.6, partial=True)


def largest(model, data):
    """Returns the largest parameter."""
    return max(abs(leaf).max() for leaf in jax.tree.leaves(model.params))


CONFIG = fv.Config(clients=4, rounds=1, model="linear", keep=0)
TUNED = {"metrics": {"size": largest}, "tune": {"lr": [1e-9, 0.1]}, "tune_seeds": "7:8"}
"""A learning rate of 0 learns nothing, so that the other one is chosen."""


def test_no_direction_is_guessed_from_the_name_of_a_metric(tmp_path):
    for method in ("fedavg", "fedvg"):
        fields = {3: {"error_rate": 2.0 if method == "fedvg" else 3.0}}
        write_run(tmp_path / method, method=method, fields=fields)
    with one_line("min:error_rate"):
        collect([tmp_path], metric="error_rate")
    for word, sign in (("min", -1), ("max", 1)):
        study = collect([tmp_path], metric=f"{word}:error_rate")
        assert study.outcome.sign == sign
    assert [*tables.means(study).numbers["error_rate"]] == [3, 2]  # of no own metric percent


def in_all_forms(axes, out, **given):
    """Yields the trials of a sweep in memory and in a folder, and the histories of each."""
    for folder in (None, out):
        trials = fv.run_sweep(CONFIG, axes, folder, **given)
        yield trials
        yield [trial.result for trial in trials]


def test_a_metric_that_says_its_direction_is_compared_by_it_in_memory_and_from_folders(tmp_path):
    metrics = {
        "size": fv.Metric(largest, better="lower"),
        "same": fv.Metric(largest, better="higher"),
        "plain": largest,
    }
    axes = {"method": ["fedavg", "fedvg"], "seed": "0:2"}
    for given in in_all_forms(axes, tmp_path / "s", metrics=metrics):
        assert "size (lower is better)" in fv.compare(given, metric="size").finding
        assert "lower is better" not in fv.compare(given, metric="same").finding
        with one_line("min:plain"):
            fv.compare(given, metric="plain")
    for history in given:
        last = history.records[-1]
        assert last["size"] == last["same"] == last["plain"]


@pytest.mark.parametrize(
    ("metric", "named"), [(fv.Metric(largest, better="smaller"), "better"), (fv.Metric(3), "size")]
)
def test_a_metric_that_is_none_is_one_line(metric, named):
    with one_line(named):
        fv.run(CONFIG, metrics={"size": metric})


X = np.random.default_rng(1).normal(size=(60, 3)).astype("float32")


def far(output, y):
    """Distance of an output from its target."""
    return abs(output[0] - y)


def test_a_metric_of_a_task_says_its_direction(tmp_path):
    config = fv.Config(clients=2, rounds=1, partition="iid", join_ratio=1.0)

    def swept(metric):
        task = fv.linen_task(
            nn.Dense(1), lambda out, y: (out[0] - y) ** 2, X[:1], metrics={"far": metric}
        )
        return fv.run_sweep(config, {"seed": "0:2"}, data=(X, X[:, 0]), task=task)

    for better in ("lower", "higher"):
        made = fv.compare(swept(fv.Metric(far, better=better)), metric="far", out=tmp_path)
        assert ("lower is better" in made.page.read_text()) == (better == "lower")
    with one_line("min:far"):
        fv.compare(swept(far), metric="far")


def test_runs_that_a_caller_left_out_are_missing_in_memory_as_in_folders(tmp_path):
    axes = {"method": ["fedavg", "fedvg"], "seed": "0:4"}
    for given in in_all_forms(axes, tmp_path / "s"):
        *some, _ = given  # without seed 3 of FedVG
        with one_line("no run with seed 3"):
            fv.compare(some)
        said = fv.compare(some, partial=True).finding
        assert said.startswith("FedVG has no result in 1 of 4 runs. ") and "n = 3" in said
        of_two_seeds = [*given[:2], *given[4:6]]
        assert "n = 2" in fv.compare(of_two_seeds).finding  # as many of every method
    zipped = fv.run_sweep(CONFIG, {("method", "alpha"): [("fedavg", 0.1), ("fedvg", 1.0)]})
    assert len(fv.compare(zipped).tables["runs"]) == 2


def test_failed_runs_that_a_caller_left_out_are_missing():
    """Three of four runs of FedVG fail; the fourth alone says nothing."""
    calls = itertools.count()

    def failing(model, data):
        if next(calls) in (4, 5, 6):
            raise ValueError("on purpose")
        return 0.0

    results = fv.run_sweep(
        CONFIG, {"method": ["fedavg", "fedvg"], "seed": "0:4"}, metrics={"own": failing}
    )
    assert sum(isinstance(r.result, fv.Failure) for r in results) == 3
    assert "no result in 3 of 4 runs" in fv.compare(results).finding
    with one_line("no run with seed"):
        fv.compare([r for r in results if isinstance(r.result, fv.History)])


def test_a_name_that_a_caller_gave_stays_in_memory_in_folders_and_as_the_baseline(tmp_path):
    axes = {"weighting": {"mine": root, "baseline": "samples", "FedAvg": "samples"}, "seed": "0:2"}
    for given in in_all_forms(axes, tmp_path / "s"):
        found = fv.compare(given, baseline="baseline")
        assert [*found.tables["effects"]["method"].unique()] == ["mine", "FedAvg"]
        assert "against baseline" in found.finding
    assert {*collect([tmp_path / "s" / "trials"]).methods} == {"mine", "baseline", "FedAvg"}
    assert {history.config.weighting for history in given[2:4]} == {"samples"}


def test_results_in_memory_of_other_data_or_other_code_are_noticed_as_in_folders():
    x, y = np.random.default_rng(0).normal(size=(2, 40, 3)).astype("float32"), np.arange(40) % 2
    on_data, of_code = [], []
    for i, method in enumerate(METHODS[:2]):
        on_data += fv.run_sweep(CONFIG, {"method": [method], "seed": "0:2"}, data=(x[i], y))
        of_code += fv.run_sweep(CONFIG, {"weighting": {"mine": power(i)}, "seed": [i]})
    with one_line("different data"):
        fv.compare(on_data)
    with one_line("weighting mine "):
        fv.compare(of_code)


def test_a_name_of_another_method_is_refused():
    with one_line("fedvg"):
        fv.run_sweep(CONFIG, {"weighting": {"fedvg": "samples"}})


def halved():
    """FedAvg with half of its step."""

    def residual(hyper, server, params, cohort):
        return jax.tree.map(lambda update: update / 2, cohort.update), server

    return fv.algorithms.fedavg()._replace(residual=residual)


def test_own_methods_beside_fedvg_with_tuned_rates_and_an_own_metric_are_alike_however_they_are_compared(
    tmp_path,
):
    """From folders, from memory, by the report and, of named methods, by the command line."""
    weightings = {"root": root, "equal": power(0.0), "fedvg": "fedvg"}
    results = fv.run_sweep(
        CONFIG, {"weighting": weightings, "seed": "0:2"}, tmp_path / "s", **TUNED
    )
    results += fv.run_sweep(
        CONFIG, {"algorithm": {"half": halved()}, "seed": "0:2"}, tmp_path / "half", **TUNED
    )
    assert {result.result.config.lr for result in results} == {0.1}
    folders = [tmp_path / "s", tmp_path / "half"]
    found = fv.compare(folders, metric="min:size", baseline="fedvg")
    chosen = {row["condition"]: row["values"] for row in collect(folders).tuned}
    assert chosen["weighting=root"] == "lr 0.1 (at an end of its grid)"
    sizes = np.reshape([each.result.records[-1]["size"] for each in results], (-1, 2))
    own = dict(zip((*weightings, "half"), sizes, strict=True))
    rows = found.tables["effects"].set_index("method")
    for method in {*own} - {"fedvg"}:
        (name,) = (name for name in rows.index if name.startswith(method))
        assert rows.loc[name, "difference"] == pytest.approx(
            np.mean(np.subtract(own[method], own["fedvg"]))
        )

    written = report.write(folders, "report", tmp_path / "out", baseline="fedvg", metric="min:size")
    again = fv.compare(results, "fedvg", "min:size").finding
    assert written.finding == found.finding == again

    words = "--clients 4 --rounds 1 --model linear --keep 0 --weighting fedvg --seed 0:2"
    words += f" --tune lr 1e-9 0.1 --tune-seeds 7:8 --out {tmp_path / 'words'}"
    assert sweep.main(words.split()) == 0
    named = fv.compare(tmp_path / "words", metric="macro_f1").tables["runs"]["final"]
    mine = fv.compare(results, metric="macro_f1").tables["runs"].query("method == 'fedvg'")["final"]
    assert [*named] == [*mine] and len(mine) == 2


def test_other_code_of_one_name_is_refused_in_folders(tmp_path):
    for name, rule, seeds in (("s", root, "0:2"), ("t", power(0.0), "2:4")):
        fv.run_sweep(CONFIG, {"weighting": {"root": rule}, "seed": seeds}, tmp_path / name)
    with one_line(f"weighting root .* in {tmp_path / 't'}"):
        collect([tmp_path / "s", tmp_path / "t"], partial=True)


def test_fedavg_records_the_global_model_as_its_clients_own():
    record = "accuracy_by_client,personal_accuracy"
    (last,) = fv.run(
        fv.Config(clients=4, rounds=1, model="linear", method="fedavg", record=record)
    ).records
    assert last["personal_accuracy"] == last["accuracy_by_client"]
