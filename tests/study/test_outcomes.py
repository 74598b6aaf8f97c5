"""Any outcome is compared: an own metric that falls, accuracies of clients' own models, and every pair of methods."""

import itertools

import flax.linen as nn
import jax
import numpy as np
import pytest
from support.files import one_line
from support.run_folders import write_run

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
        own = {
            "personal_accuracy_mean": OWN[method][seed],
            "personal_worst_decile": OWN[method][seed] / 2,
        }
        last = {"mae": ERRORS[method][seed], **own}
        first = {name: 2 * value if name == "mae" else value / 2 for name, value in last.items()}
        write_run(
            folder / f"{method}{seed}",
            (0.5, 0.6),
            method=method,
            seed=seed,
            fields={1: first, 2: last},
        )
    return folder


def corrected(p_values):
    """Returns Holm's correction by its definition: max over smaller p of p times the number of tests left."""
    ordered = sorted(p_values)
    times_left = [(p, min(1, p * (len(ordered) - i))) for i, p in enumerate(ordered)]

    def largest_up_to(own):
        return max(product for p, product in times_left if p <= own)

    return [largest_up_to(own) for own in p_values]


@pytest.mark.parametrize("baseline", ["fedavg", "all"])
@pytest.mark.parametrize("metric", ["min:mae", "personal_accuracy_mean", "personal_worst_decile"])
def test_scipy_recomputes_the_effects_of_any_metric_with_one_correction(folder, metric, baseline):
    study = collect([folder], metric=metric)
    shares = 50 if metric.endswith("decile") else 100
    values = {m: ERRORS[m] if metric == "min:mae" else shares * OWN[m] for m in METHODS}
    study = tables.comparing(study, baseline)
    rows = [*tables.effects(study).numbers.itertuples()]
    assert len(rows) == (3 if baseline == "all" else 2)
    p_values = [stats.ttest_rel(values[row.method], values[row.against]).pvalue for row in rows]
    for row, p, holm in zip(rows, p_values, corrected(p_values), strict=True):
        difference = np.mean(values[row.method] - values[row.against])
        assert (row.difference, row.t_p, row.t_p_holm) == pytest.approx((difference, p, holm))
    said = statistics.findings(study)[0]
    assert "Ditto is ahead of FedAvg by " in said or "FedAvg is behind Ditto by " in said
    runs = tables.runs(study).query("method == 'ditto'")
    assert (
        [*runs["final"]]
        == [*runs[metric.removeprefix("min:")]]
        == pytest.approx([*values["ditto"]])
    )


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
    study = collect([folder], metric="max:mae")
    said = statistics.findings(tables.comparing(study))[0]
    assert said.startswith("FedProx is behind FedAvg")


def test_a_metric_that_some_run_lacks_is_refused_with_those_that_all_have(folder, tmp_path):
    write_run(tmp_path / "other", (0.5,), method="fedavg", seed=0, alpha=9.0)
    with pytest.raises(fv.UsageError, match=r"other has none; all runs have loss, accuracy"):
        collect([tmp_path], metric="mae")
    for nothing in ([], 3):
        with pytest.raises(fv.UsageError):
            fv.compare(nothing)


def write_clocked(folder, **clock):
    """Writes runs whose second or third round reaches 60 %, at other virtual seconds for every seed."""
    reached = {"fedavg": 3, "fedvg": 2}
    for method, seed in itertools.product(reached, range(5)):
        seconds = 10.0 + seed + 0.1 * seed * reached[method]
        fields = {number: {"virtual_seconds": number * seconds} for number in (1, 2, 3)}
        accuracies = [0.6 if number >= reached[method] else 0.5 for number in (1, 2, 3)]
        settings = {"method": method, "seed": seed, "fields": fields, "clock": clock}
        write_run(folder / f"{method}{seed}", accuracies, **settings)
    seeds = np.arange(5)
    return {m: n * (10 + seeds + 0.1 * seeds * n) for m, n in reached.items()}


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


def root(task):
    """Weights by the square root of the rows."""
    return fv.weightings.by_scalar(
        lambda hyper, client, data: client.num_samples.astype(float) ** 0.5
    )


def equal(task):
    """Equal weights."""
    return fv.weightings.by_scalar(
        lambda hyper, client, data: 1.0 + 0 * client.num_samples.astype(float)
    )


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
    signs = [
        collect([tmp_path], metric=f"{word}:error_rate").outcome.sign for word in ("min", "max")
    ]
    assert signs == [-1, 1]
    study = collect([tmp_path], metric="min:error_rate")
    assert [*tables.means(study).numbers["error_rate"]] == [3, 2]  # of no own metric percent


def test_a_metric_that_says_its_direction_is_compared_by_it_in_memory_and_from_folders(tmp_path):
    metrics = {
        "size": fv.Metric(largest, better="lower"),
        "same": fv.Metric(largest, better="higher"),
        "plain": largest,
    }
    axes = {"method": ["fedavg", "fedvg"], "seed": "0:2"}
    for out in (None, tmp_path / "s"):
        results = fv.run_sweep(CONFIG, axes, out, metrics=metrics)
        for given in (results, [result.result for result in results]):
            assert "size (lower is better)" in fv.compare(given, metric="size").finding
            assert "lower is better" not in fv.compare(given, metric="same").finding
            with one_line("min:plain"):
                fv.compare(given, metric="plain")
    records = [result.result.records[-1] for result in results]
    assert all(record["size"] == record["same"] == record["plain"] for record in records)


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
    found = {}
    for metric in (fv.Metric(far, better="lower"), fv.Metric(far, better="higher"), far):
        task = fv.linen_task(
            nn.Dense(1), lambda out, y: (out[0] - y) ** 2, X[:1], metrics={"far": metric}
        )
        config = fv.Config(clients=2, rounds=1, partition="iid", join_ratio=1.0)
        found[metric] = fv.run_sweep(config, {"seed": "0:2"}, data=(X, X[:, 0]), task=task)
    lower, higher, unknown = found.values()
    for results, is_lower in ((lower, True), (higher, False)):
        made = fv.compare(results, metric="far", out=tmp_path)
        assert ("lower is better" in made.page.read_text()) == is_lower
    with one_line("min:far"):
        fv.compare(unknown, metric="far")


def test_runs_that_a_caller_left_out_are_missing_in_memory_as_in_folders(tmp_path):
    axes = {"method": ["fedavg", "fedvg"], "seed": "0:4"}
    for out in (None, tmp_path / "s"):
        results = fv.run_sweep(CONFIG, axes, out)
        some = [r for r in results if r.values != {"method": "fedvg", "seed": 3}]
        for given in (some, [r.result for r in some]):
            with one_line("no run with seed 3"):
                fv.compare(given)
            said = fv.compare(given, partial=True).finding
            assert said.startswith("FedVG has no result in 1 of 4 runs. ") and "n = 3" in said
        of_two_seeds = [r for r in results if r.values["seed"] < 2]
        assert "n = 2" in fv.compare(of_two_seeds).finding  # as many of every method
    zipped = fv.run_sweep(CONFIG, {("method", "alpha"): [("fedavg", 0.1), ("fedvg", 1.0)]})
    assert len(fv.compare(zipped).tables["runs"]) == 2


def failing(model, data):
    """Fails where the model is that of FedVG, by its number of calls."""
    CALLS.append(model)
    if len(CALLS) in (5, 6, 7):
        raise ValueError("on purpose")
    return 0.0


CALLS = []


def test_failed_runs_that_a_caller_left_out_are_missing(tmp_path):
    """Three of four runs of FedVG fail; the fourth alone says nothing."""
    CALLS.clear()
    results = fv.run_sweep(
        CONFIG, {"method": ["fedavg", "fedvg"], "seed": "0:4"}, metrics={"own": failing}
    )
    assert sum(isinstance(r.result, fv.Failure) for r in results) == 3
    assert "no result in 3 of 4 runs" in fv.compare(results).finding
    with one_line("no run with seed"):
        fv.compare([r for r in results if isinstance(r.result, fv.History)])


def test_a_name_that_a_caller_gave_stays_in_memory_in_folders_and_as_the_baseline(tmp_path):
    axes = {"weighting": {"mine": root, "baseline": "samples", "FedAvg": "samples"}, "seed": "0:2"}
    for out in (None, tmp_path / "s"):
        results = fv.run_sweep(CONFIG, axes, out)
        for given in (results, [r.result for r in results]):
            found = fv.compare(given, baseline="baseline")
            assert [*found.tables["effects"]["method"].unique()] == ["mine", "FedAvg"]
            assert "against baseline" in found.finding
    assert set(collect([tmp_path / "s" / "trials"]).methods) == {"mine", "baseline", "FedAvg"}
    assert {r.result.config.weighting for r in results if r.values["weighting"] == "baseline"} == {
        "samples"
    }


def test_results_in_memory_of_other_data_or_other_code_are_noticed_as_in_folders():
    x, y = np.random.default_rng(0).normal(size=(2, 40, 3)).astype("float32"), np.arange(40) % 2
    on_data = [
        fv.run_sweep(CONFIG, {"method": [m], "seed": "0:2"}, data=(x[i], y))
        for i, m in enumerate(METHODS[:2])
    ]
    with one_line("different data"):
        fv.compare([*on_data[0], *on_data[1]])
    of_code = [
        fv.run_sweep(CONFIG, {"weighting": {"mine": f}, "seed": [s]})
        for s, f in enumerate((root, equal))
    ]
    with one_line("weighting mine "):
        fv.compare([*of_code[0], *of_code[1]])


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
    weightings = {"root": root, "equal": equal, "fedvg": "fedvg"}
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
        p = stats.ttest_rel(own[method], own["fedvg"]).pvalue
        # differences of records with nine digits
        assert rows.loc[name, "t_p"] == pytest.approx(p, rel=1e-4)
    written = report.write(
        folders, "report", tmp_path / "report", baseline="fedvg", metric="min:size"
    )
    again = fv.compare(results, "fedvg", "min:size").finding
    assert written.finding == found.finding == again

    words = "--clients 4 --rounds 1 --model linear --keep 0 --weighting fedvg --seed 0:2 --tune lr 1e-9 0.1"
    assert (
        sweep.main([*words.split(), "--tune-seeds", "7:8", "--out", str(tmp_path / "words")]) == 0
    )
    named = fv.compare(tmp_path / "words", metric="macro_f1").tables["runs"]["final"]
    mine = fv.compare(results, metric="macro_f1").tables["runs"].query("method == 'fedvg'")["final"]
    assert [*named] == [*mine] and len(mine) == 2


def test_results_in_memory_are_compared_as_those_of_a_folder_and_other_code_of_one_name_is_refused(
    tmp_path,
):
    axes = {"weighting": {"root": root, "fedvg": "fedvg"}, "seed": "0:2"}
    stored, in_memory = (fv.run_sweep(CONFIG, axes, out) for out in (tmp_path / "s", None))
    pairs = [fv.compare(given, baseline="all").tables["effects"] for given in (stored, in_memory)]
    assert pairs[0].equals(pairs[1]) and [*pairs[0]["method"]] == ["fedvg"]
    fv.run_sweep(CONFIG, {"weighting": {"root": equal}, "seed": "2:4"}, tmp_path / "t")
    with one_line(f"weighting root .* in {tmp_path / 't'}"):
        collect([tmp_path / "s", tmp_path / "t"], partial=True)
    with pytest.raises(fv.UsageError, match="out"):
        fv.run_sweep(CONFIG, axes, tune={"lr": [0.1]})


def test_fedavg_records_the_global_model_as_its_clients_own():
    record = "accuracy_by_client,personal_accuracy"
    (last,) = fv.run(
        fv.Config(clients=4, rounds=1, model="linear", method="fedavg", record=record)
    ).records
    assert last["personal_accuracy"] == last["accuracy_by_client"]
