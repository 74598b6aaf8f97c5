"""Tables of a report: values, marks, notes, findings, and escaping in every format."""

import json
import re

import pytest
from support.run_folders import write_json, write_run, write_summary, write_sweep

pytest.importorskip("scipy", reason="reports need the report extra")
pytest.importorskip("jinja2", reason="reports need the report extra")

import pandas

from fedvg_jax.study import markup, statistics, tables
from fedvg_jax.study.collect import collect
from fedvg_jax.study.markup import Table
from fedvg_jax.study.outcomes import CHOICES

AXES = {"method": ["fedavg", "fedprox", "fedvg"], "alpha": [0.05, 0.5], "seed": [0, 1, 2]}
BASE = {"fedavg": 0.6, "fedprox": 0.5, "fedvg": 0.7}


def accuracies(values):
    """The best round is the second of three; seeds differ by 2 points."""
    final = BASE[values["method"]] + 0.2 * (values["alpha"] == 0.5) + 0.02 * values["seed"]
    return (0.3, final + 0.05, final)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return collect([write_sweep(tmp_path_factory.mktemp("tables") / "s", AXES, accuracies)])


def shown(table, method):
    """Returns the first row of a method by column, as people see it."""
    return next(row for row in table.shown.to_dict("records") if row["method"] == method)


def results(study, **options):
    return tables.accuracy(tables.comparing(study, **options))


def effects(study, **options):
    """Returns method -> the row of its first comparison."""
    table = tables.effects(tables.comparing(study, **options))
    return {row["method"]: row for row in reversed(table.numbers.to_dict("records"))}


def bold(study, **options):
    """Returns the methods that are bold in some column of the results."""
    rows = results(study, **options).shown.to_dict("records")
    return {row["method"] for row in rows if "**" in str(row)}


def findings(study, **options):
    return statistics.findings(tables.comparing(study, **options))


def write_finals(folder, finals, alpha=0.1):
    """Writes a run of one round for every accuracy of every method."""
    for method, values in finals.items():
        for seed, value in enumerate(values):
            name = f"{method}{alpha}-{seed}"
            write_run(folder / name, (value,), method=method, seed=seed, alpha=alpha)
    return folder


def test_results_are_means_and_deviations_by_method_and_condition(study):
    """Final accuracies of FedVG at 0.05: 70, 72, 74; their sample deviation is 2."""
    table = results(study)
    assert [*table.shown] == ["method", "alpha 0.05", "alpha 0.5"]
    assert shown(table, "FedVG")["alpha 0.05"] == "72.00 ± 2.00"
    first = table.numbers.query("method == 'fedvg'").iloc[0]
    assert (first["mean"], first["std"], first["n"]) == pytest.approx((72, 2, 3))


@pytest.mark.parametrize("choice", CHOICES)
def test_tables_compare_the_chosen_round_of_the_table_of_runs(study, choice):
    runs = tables.runs(study)
    assert [*runs][:4] == ["alpha", "method", "seed", "partition_seed"] and len(runs) == 18
    assert {*runs["rounds"]} == {3} and {*runs["seconds"]} == {1.5}
    means = runs.groupby(["alpha", "method"], sort=False)[choice].mean()
    table = results(study, choice=choice)
    assert [*table.numbers["mean"]] == pytest.approx([*means.sort_index()])
    assert CHOICES[choice] in table.title
    difference = effects(study, choice=choice)["fedvg"]["difference"]
    assert difference == pytest.approx(means[0.05, "fedvg"] - means[0.05, "fedavg"])


def test_rounds_to_a_target_are_medians_over_all_runs(tmp_path):
    """The second round of FedVG has 75, 77, 79 % and of FedProx 55, 57, 59 %."""
    sweep = write_sweep(tmp_path / "s", {**AXES, "alpha": [0.05]}, accuracies)
    table = tables.means(collect([sweep], target=0.76))
    assert [shown(table, m)["rounds_to_target"] for m in ("FedVG", "FedProx")] == ["2", "–"]
    study = collect([sweep], metric="min:rounds_to_target", target=0.76)
    assert findings(study)[0].startswith("FedAvg has no result in 3 of 3 runs. FedProx has no")
    assert "target accuracy 76 %" in results(study).title


def test_baseline_is_named_as_a_method_or_as_a_printed_name(study):
    assert {tables.comparing(study, text).baseline for text in ("fedavg", "FedAvg")} == {"fedavg"}


def test_results_that_lack_runs_are_marked_explained_not_tested_and_not_bold(tmp_path):
    """FedProx leads by 20 points in the runs that are left, FedVG in all but one that was not run."""
    finals = {"fedavg": 0.5, "fedprox": 0.7, "fedvg": 0.7, "uniform": 0.7, "elastic": 0.7}
    last = {"method": "fedvg", "seed": 7}

    def accuracy(values):
        noise = 0.001 * values["seed"] * len(values["method"])
        return None if values == last else (0.1, finals[values["method"]] + noise)

    axes = {"method": [*finals], "seed": [*range(8)]}
    sweep = write_sweep(tmp_path / "s", axes, accuracy)
    for seed in (0, 1):
        failure = {"kind": "diverged", "round": 28, "reason": "round 28: too large"}
        write_json(sweep / "trials" / f"method=fedprox,seed={seed}" / "failure.json", failure)
    write_summary(sweep / "trials" / "method=elastic,seed=0", stopped_early="no progress")
    study = collect([sweep], partial=True)
    table = results(study)
    marked = ["†" in text for text in table.shown.iloc[:, 1]]
    assert marked == [False, True, True, False, False]
    assert bold(study) == {"uniform", "Elastic"}
    assert "† method=fedvg,seed=7: no run folder yet" in table.notes
    assert "† method=fedprox,seed=0: diverged in round 28: too large" in table.notes
    said, _ = findings(study)
    assert said.startswith("FedProx has no result in 2 of 8 runs. FedVG has no result in 1 of 8")
    assert "FedVG is ahead of FedAvg by " in said
    assert "FedProx against FedAvg is undecided: " in said
    assert pandas.isna(effects(study)["fedprox"]["t_p"]) and effects(study)["fedvg"]["n"] == 7
    assert " is undecided: " in findings(study, baseline="fedprox")[0]


def test_runs_that_stopped_early_are_marked(tmp_path):
    write_finals(tmp_path, {"fedavg": (0.5,)})
    run = write_run(tmp_path / "s", (0.5,), rounds=2, method="fedavg", seed=1)
    write_summary(run, stopped_early="no progress")
    table = results(collect([tmp_path], partial=True))
    assert "† s: stopped after 1 of 2 rounds: no progress" in table.notes


def test_a_metric_that_is_not_finite_in_the_chosen_round_is_marked_and_not_tested(tmp_path):
    """The best round of every run is the second of three; the third is finite everywhere."""
    for method, best in {"fedavg": [2.0, 2.1, 2.2, 2.3], "fedvg": [None, None, 1.2, 1.1]}.items():
        for seed, error in enumerate(best):
            fields = {1: {"mae": 5.0}, 2: {"mae": error}, 3: {"mae": 3.0}}
            where = tmp_path / f"{method}{seed}"
            write_run(where, (0.5, 0.9, 0.8), method=method, seed=seed, fields=fields)
    study = collect([tmp_path], metric="min:mae")
    best = {"choice": "at_best_val"}
    assert pandas.isna(effects(study, **best)["fedvg"]["t_p"]) and not bold(study, **best)
    notes = " ".join(results(study, **best).notes)
    assert [f"† fedvg{seed}: mae" in notes for seed in range(3)] == [True, True, False]
    undecided = "FedVG has no result in 2 of 4 runs. FedVG against FedAvg is undecided: "
    assert findings(study, **best)[0].startswith(undecided)
    assert effects(study)["fedvg"]["n"] == 4 and "†" not in " ".join(results(study).notes)


def test_equal_differences_have_no_p_value_and_the_note_does_not_count_them(tmp_path):
    finals = {"fedavg": (0.5, 0.6, 0.55), "fedprox": (0.6, 0.7, 0.65), "fedvg": (0.51, 0.62, 0.58)}
    study = collect([write_finals(tmp_path, finals)])
    assert pandas.isna(effects(study)["fedprox"]["t_p"])
    assert effects(study)["fedvg"]["t_p"] == effects(study)["fedvg"]["t_p_holm"]
    assert "over 1 comparison with" in findings(study)[-1]


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_only_significant_leads_are_bold_and_ahead(tmp_path, metric):
    """FedVG leads FedAvg by 20 points in every seed, give or take 2; uniform weights vary by 30 around FedVG's."""
    finals = {
        "fedavg": [0.5] * 4,
        "fedvg": [0.7, 0.71, 0.69, 0.72],
        "uniform": [0.55, 0.85, 0.54, 0.86],
    }
    study = collect([write_finals(tmp_path, finals)], metric=metric)
    said, how = findings(study)
    # 3.18 x 1.29 / 2
    sizes = {"accuracy": "20.5 points (95 % interval 18.4 to 22.6)", "loss": "0.20 in loss"}
    assert said.startswith(f"FedVG is ahead of FedAvg by {sizes[metric]}") and "(n = 4)" in how
    assert ". uniform against FedAvg is undecided: the difference is " in said
    assert bold(study) == {"FedVG"} and not bold(study, baseline="all")
    assert "FedAvg is behind FedVG by " in findings(study, baseline="fedvg")[0]
    titles = [table.title for table in tables.all_tables(tables.comparing(study))]
    assert ("lower is better" in titles[0]) == (metric == "loss")


def test_a_difference_of_one_pair_of_runs_has_no_interval(tmp_path):
    study = collect([write_finals(tmp_path, {"fedavg": (0.5,), "fedvg": (0.75,)})])
    undecided = "FedVG against FedAvg is undecided: the difference is 25.0 points."
    assert findings(study)[0] == undecided


@pytest.mark.parametrize("num_alphas", [1, 4])
def test_bold_and_findings_have_one_correction_over_the_study(tmp_path, num_alphas):
    """FedVG's lead has p = 0.02 at alpha 1; with four alphas 0.08 after correction."""
    leading, mixed = [0.51, 0.54, 0.55, 0.53, 0.56, 0.5], [0.51, 0.46, 0.55, 0.47, 0.56, 0.5]
    for alpha in range(1, num_alphas + 1):
        ours = leading if alpha == 1 else mixed
        write_finals(tmp_path, {"fedavg": [0.5] * 6, "fedvg": ours}, alpha=float(alpha))
    study = collect([tmp_path])
    is_ahead = num_alphas == 1
    assert 0.05 / 4 < effects(study)["fedvg"]["t_p"] < 0.05
    assert (bold(study) == {"FedVG"}) == is_ahead
    assert ("is ahead of" in findings(study)[0]) == is_ahead


def test_every_undecided_comparison_is_named(tmp_path):
    methods = ("fedavg", "fedprox", "fedvg", "uniform", "fednova", "scaffold")
    said, _ = findings(collect([write_finals(tmp_path, dict.fromkeys(methods, (0.5, 0.6)))]))
    titles = ("FedProx", "FedVG", "uniform", "FedNova", "Scaffold")
    assert all(f"{title} against FedAvg" in said for title in titles)


def test_means_have_epsilon_bytes_and_every_metric_that_all_runs_of_a_method_record(tmp_path):
    for seed, epsilon in enumerate((2.0, 3.0)):
        entries = {"worst_decile": 0.25, "bytes_down": 2_000_000, "bytes_up": 1_000_000}
        settings = {"method": "fedavg", "seed": seed, "fields": dict.fromkeys((1, 2), entries)}
        write_summary(write_run(tmp_path / f"{seed}", (0.5, 0.6), **settings), epsilon=epsilon)
    table = tables.means(collect([tmp_path]))
    expected = {"epsilon": 2.5, "worst_decile": 25, "bytes_sent": 6e6, "accuracy": 60, "rounds": 2}
    assert {name: table.numbers[name][0] for name in expected} == pytest.approx(expected)


HOSTILE = "a|b_c*d & <script>$x$ 50% #1 {y} \\z ~ ^"


def test_no_form_of_a_table_reads_a_name_as_its_own_language():
    frame = pandas.DataFrame({HOSTILE: [HOSTILE, "[x]"], "value": ["**1.00**", "2.00"]})
    table = Table("t", HOSTILE, frame, frame, [HOSTILE])
    html, latex = markup.hypertext(table), markup.latex(table)
    assert "<script>" not in html and html.count("&lt;script&gt;") == 4 and "bold" in html
    body = latex.split(r"\midrule")[1].split(r"\bottomrule")[0]
    assert r"\&" in body and r"50\%" in body and r"\$x\$" in body and r"\textbf{1.00}" in body
    assert len(re.findall(r"(?<!\\)&", body)) == 2


def test_choices_of_tuning_are_one_table(tmp_path):
    axes = {"method": ["fedavg", "fedvg"], "seed": [0, 1]}
    sweep = write_sweep(tmp_path / "s", axes, lambda v: (0.5,))
    content = json.loads((sweep / "sweep.json").read_text())
    choice = {"values": {"lr": 0.3}, "metric": "accuracy", "score": 0.625, "num_runs": 4}
    chosen = {"method=fedavg": choice, "method=fedvg": choice}
    content["tuning"] = {"settings": {"lr": [0.1, 0.3]}, "seeds": [7], "chosen": chosen}
    write_json(sweep / "sweep.json", content)
    study = collect([sweep])
    (table,) = (t for t in tables.all_tables(tables.comparing(study)) if t.name == "tuning")
    assert len(table.shown) == 2 and "lr 0.3" in table.shown["chosen"][0]
    assert [*table.numbers["score"]] == [0.625, 0.625]
