"""Tables of a report: values, marks, notes, and escaping in every format."""

import csv
import dataclasses
import io
import itertools
import json
import re
import statistics

import pytest
from rich.console import Console
from support.run_folders import csv_rows, write_json, write_run, write_summary, write_sweep

pytest.importorskip("scipy", reason="reports need the report extra")
pytest.importorskip("matplotlib", reason="reports need the report extra")

from fedvg_jax.study import markup, report, tables
from fedvg_jax.study.collect import collect
from fedvg_jax.study.markup import Table, label, number
from fedvg_jax.study.outcomes import CHOICES

AXES = {"method": ["fedavg", "fedprox", "fedvg"], "alpha": [0.05, 0.5], "seed": [0, 1, 2]}
BASE = {"fedavg": 0.6, "fedprox": 0.5, "fedvg": 0.7}


def accuracies(values):
    """The best round is the second of three; seeds differ by 2 points."""
    final = BASE[values["method"]] + 0.2 * (values["alpha"] == 0.5) + 0.02 * values["seed"]
    return (0.3, final + 0.05, final)


def unequal(values):
    """The methods differ by almost the same in all seeds."""
    noise = 0.001 * ["fedvg", "fedavg", "fedprox"].index(values["method"]) * values["seed"] ** 2
    return tuple(value + noise for value in accuracies(values))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return collect([write_sweep(tmp_path_factory.mktemp("tables") / "s", AXES, accuracies)])


def row(table, *lead):
    """Returns the entries of the row of a setting, where there is one, and a method."""
    rows = ([*row.values()] for row in table.rows)
    return next(
        r for r in rows if tuple(v for e in r[: len(lead)] for v in e.values.values()) == lead
    )


def test_accuracy_has_mean_and_deviation(study):
    """Final accuracies of FedVG at 0.05: 70, 72, 74; their sample deviation is 2."""
    table = tables.accuracy(study, tables.options(study))
    groups = {method: row(table, method)[1] for method in study.methods}
    assert groups["fedvg"].text == "72.00 ± 2.00" and [
        *groups["fedvg"].values.values()
    ] == pytest.approx([72, 2, 3])
    assert row(table, "always the largest class")[1].text == "40.00"
    assert [*table.rows[0]] == ["method", "alpha 0.05", "alpha 0.5"]


def test_effects_are_paired_and_corrected_over_the_table(study):
    table = tables.effects(study, tables.options(study))
    assert [r["method"].text for r in table.rows] == ["FedProx", "FedVG"] * 2
    values = csv_rows(table)[1]
    assert values["n"] == "3" and float(values["difference"]) == pytest.approx(10)
    assert float(values["wilcoxon_p"]) == 0.25
    assert float(values["wilcoxon_p_holm"]) == 1  # 4 x 0.25


@pytest.mark.parametrize("choice", CHOICES)
def test_tables_compare_the_chosen_round(study, choice):
    means = {
        (r["setting"], r["method"]): float(r[f"{choice} mean"])
        for r in csv_rows(tables.choices(study))
    }
    settings = {setting for setting, _ in means}
    compared = csv_rows(tables.accuracy(study, tables.options(study, choice=choice)))
    assert {
        (s, r["method"]): float(r[f"{s} mean"]) for r in compared for s in settings if r[f"{s} n"]
    } == means
    table = tables.effects(study, tables.options(study, choice=choice))
    for r in csv_rows(table):
        assert float(r["difference"]) == pytest.approx(
            means[r["setting"], r["method"]] - means[r["setting"], "fedavg"]
        )
    assert (
        CHOICES[choice] in table.notes[0]
        and CHOICES[choice] in tables.accuracy(study, tables.options(study, choice=choice)).title
    )


def test_the_table_of_runs_has_what_all_other_tables_are_made_from(study):
    """Means of its lines are the means of the table of choices, for every method, alpha and choice."""
    lines = csv_rows(tables.runs(study))
    assert len(lines) == len(study.runs) == 18
    assert {(r["alpha"], r["method"], r["seed"]) for r in lines} == {
        (a, m, s) for a in ("0.05", "0.5") for m in BASE for s in "012"
    }
    for r in csv_rows(tables.choices(study)):
        mine = [
            x for x in lines if (f"alpha {x['alpha']}", x["method"]) == (r["setting"], r["method"])
        ]
        for choice in CHOICES:
            assert statistics.fmean(float(x[choice]) for x in mine) == pytest.approx(
                float(r[f"{choice} mean"])
            )
    assert {(x["rounds"], x["seconds"]) for x in lines} == {("3", "1.5")}


def test_rounds_to_the_target_are_of_the_runs_that_reach_it(study):
    """At alpha 0.05 FedVG's second round has 75, 77, 79 %, FedProx's 55, 57, 59 %."""
    table = tables.cost(study, tables.options(study, target=0.76))
    assert row(table, "alpha 0.05", "fedvg")[4].text == "2, not reached by 1 of 3"
    assert row(table, "alpha 0.05", "fedprox")[4].text == "not reached by 3 of 3"


@pytest.mark.parametrize(("metric", "count"), [("accuracy", 29), ("loss", 41)])
def test_runs_of_equal_results_reach_their_own_mean(tmp_path, metric, count):
    """The mean of three equal numbers is not always that number."""
    value = float(f"{count / 450:.9g}")
    accuracies = (value / 2, value) if metric == "accuracy" else (None, None)
    fields = (
        {}
        if metric == "accuracy"
        else {i: {"test_loss": value * (3 - i), "val_loss": 1.0} for i in (1, 2)}
    )
    for seed in range(3):
        write_run(tmp_path / f"{seed}", accuracies, method="fedavg", seed=seed, fields=fields)
    study = collect([tmp_path])
    assert (
        study.outcome.metric == metric
        and row(tables.cost(study, tables.options(study)), "fedavg")[3].text == "2"
    )


def test_baseline_is_named_as_a_method_or_as_a_printed_name(study):
    for text in ("fedavg", "FedAvg"):
        assert tables.options(study, text).baseline == "fedavg"


def test_a_mean_that_lacks_runs_has_a_footnote_and_is_not_bold(tmp_path):
    last = {"method": "fedvg", "alpha": 0.5, "seed": 2}
    sweep = write_sweep(tmp_path / "s", AXES, lambda v: None if v == last else unequal(v))
    failed = sweep / "trials" / "method=fedvg,alpha=0.05,seed=1"
    write_json(failed / "failure.json", {"kind": "diverged", "round": 3, "reason": "not finite"})
    study = collect([sweep], partial=True)
    table = tables.accuracy(study, tables.options(study))
    assert [row(table, "fedvg")[i].text[-2:] for i in (1, 2)] == [" ‡", " †"]
    assert "72.00 ± 2.83 ‡" in markup.hypertext(table) and "FedVG ‡" in markup.hypertext(
        tables.choices(study)
    )
    assert "† method=fedvg,alpha=0.5,seed=2: no run folder yet" in table.notes
    assert "‡ method=fedvg,alpha=0.05,seed=1: diverged in round 3: not finite" in table.notes
    assert {method for method in BASE for entry in row(table, method)[1:] if entry.is_bold} == {
        "fedavg"
    }


def test_a_mean_without_others_to_compare_with_is_not_the_best(tmp_path):
    """Method and alpha that go together leave one method in every column."""
    for method, alpha in {"fedavg": 0.05, "fedvg": 0.5}.items():
        write_run(tmp_path / method, method=method, alpha=alpha)
    study = collect([tmp_path], partial=True)
    table = tables.accuracy(study, tables.options(study))
    assert not any(entry.is_bold for row in table.rows for entry in row.values())


def test_equal_differences_have_no_p_value_and_the_note_does_not_count_them(tmp_path):
    finals = {"fedavg": (0.5, 0.6, 0.55), "fedprox": (0.6, 0.7, 0.65), "fedvg": (0.51, 0.62, 0.58)}
    for method, several in finals.items():
        for seed, final in enumerate(several):
            write_run(tmp_path / f"{method}{seed}", (final,), method=method, seed=seed)
    study = collect([tmp_path])
    table = tables.effects(study, tables.options(study))
    by_method = {r["method"]: r for r in csv_rows(table)}
    assert (
        by_method["fedprox"]["t_p"] == ""
        and by_method["fedvg"]["t_p"] == by_method["fedvg"]["t_p_holm"] != ""
    )
    assert "over one comparison" in table.notes[0]


def test_the_cost_is_that_of_the_final_round_whatever_is_compared(study):
    table = tables.cost(study, tables.options(study, choice="max"))
    assert row(table, "alpha 0.05", "fedvg")[2].text == "72.00 ± 2.00"
    assert [*table.rows[0]][2] == "test accuracy, %, final round"


def test_the_best_loss_is_the_smallest(tmp_path):
    for method, loss in {"fedavg": 0.5, "fedvg": 0.25}.items():
        fields = {2: {"test_loss": loss, "val_loss": loss}}
        run = write_run(tmp_path / method, (None, None), method=method, fields=fields)
        write_json(
            run / "partition.json",
            {"partition": "given", "validation": {"source": "clients", "samples": 7}},
        )
    made = {
        t.name: t for t in tables.all_tables(collect([tmp_path]), tables.Options("fedavg", 0.3))
    }
    assert row(made["accuracy"], "fedvg")[1] == markup.spread("test loss", 0.25, float("nan"), 1, 4)
    assert (
        row(made["choices"], "fedvg")[3].text == "0.2500"
        and "minimum" in [*made["choices"].rows[0]][3]
    )
    assert (
        row(made["effects"], "fedvg")[2].text == "-0.2500"
        and row(made["cost"], "fedvg")[3].text == "2"
    )


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_only_significant_leads_are_bold_and_ahead(tmp_path, metric):
    """FedVG leads FedAvg by 20 points in every seed, give or take 2; uniform weights vary by 30 around FedVG's."""
    leads = {"fedavg": [0, 0, 0, 0], "fedvg": [20, 21, 19, 22], "uniform": [5, 35, 4, 36]}
    for method, points in leads.items():
        for seed, lead in enumerate(points):
            value = 0.5 + lead / 100
            fields = {} if metric == "accuracy" else {1: {"test_loss": 1 - value, "val_loss": 1.0}}
            accuracies = (value,) if metric == "accuracy" else (None,)
            write_run(
                tmp_path / f"{method}{seed}", accuracies, method=method, seed=seed, fields=fields
            )
    study = collect([tmp_path])
    said, how = report.findings(study, tables.options(study))
    # 3.18 x 1.29 / 2
    size = (
        "20.5 points (95 % interval 18.4 to 22.6)" if metric == "accuracy" else "0.20 in test loss"
    )
    assert said.startswith(f"FedVG is ahead of FedAvg by {size}")
    assert ". Undecided: uniform against FedAvg, " in said and "(n = 4)" in how
    assert bold(study, tables.options(study)) == {"fedvg"} and not bold(
        study, tables.options(study, "all")
    )
    two = dataclasses.replace(study, methods=("fedavg", "fedvg"))
    assert bold(two, tables.options(two, "all")) == {"fedvg"}
    said, _ = report.findings(two, tables.options(two, "fedvg"))
    assert said.startswith("FedAvg is behind FedVG by ")


def bold(study, chosen):
    """Returns the methods that are bold in some column of the table of accuracy."""
    rows = tables.accuracy(study, chosen).rows
    return {
        r["method"].values["method"] for r in rows if any(entry.is_bold for entry in r.values())
    }


def test_a_difference_of_one_pair_of_runs_has_no_interval(tmp_path):
    for method, final in {"fedavg": 0.5, "fedvg": 0.75}.items():
        write_run(tmp_path / method, (final,), method=method)
    study = collect([tmp_path])
    said, _ = report.findings(study, tables.options(study))
    assert said == "Undecided: FedVG against FedAvg, 25.0 points."


HOSTILE = "a|b_c*d & <script>$x$ 50% #1 {y} \\z ~ ^"


def hostile_table():
    row = {HOSTILE: label("name", HOSTILE), "value": number("value", 1.0)._replace(is_bold=True)}
    return Table("t", HOSTILE, [row], [HOSTILE])


@pytest.mark.parametrize("form", [*markup.FORMATS, "terminal"])
def test_methods_of_sixty_characters_that_differ_in_the_last_stay_distinct(form):
    # a word that no line of a terminal holds
    names = [f"fedvg,{'alongname' * 5}of12path{end}" for end in "abcd"]
    numbers = {f"{i}": number(f"{i}", 1.0) for i in range(6)}
    table = Table("t", "", [{"method": label("method", name)} | numbers for name in names])
    if form == "terminal":
        console = Console(width=60, file=io.StringIO())
        console.print(markup.terminal(table))
        lines = (
            line.split("│")[1].strip()
            for line in console.file.getvalue().splitlines()
            if "│" in line
        )
        text = "".join(lines).replace(" ", "")
        assert all(name.replace(" ", "") in text for name in names)
    else:
        assert all(name in markup.FORMATS[form](table) for name in names)


def test_no_lead_is_claimed_on_the_runs_that_did_not_diverge(tmp_path):
    """FedProx leads by 20 points in the six of eight seeds that are left, FedVG in all."""

    def accuracy(values):
        return (
            0.5
            + 0.2 * (values["method"] != "fedavg")
            + 0.001 * values["seed"] * len(values["method"]),
        )

    sweep = write_sweep(tmp_path / "s", {"method": list(BASE), "seed": list(range(8))}, accuracy)
    for seed in (0, 1):
        failed = sweep / "trials" / f"method=fedprox,seed={seed}"
        write_json(
            failed / "failure.json",
            {"kind": "diverged", "round": 28, "reason": "round 28: too large"},
        )
    study = collect([sweep], partial=True)
    said, _ = report.findings(study, tables.options(study))
    assert said.startswith("FedProx diverged in 2 of 8 runs. FedVG is ahead of FedAvg by ")
    assert ". Undecided: FedProx against FedAvg, " in said
    table = tables.effects(study, tables.options(study))
    assert [e.text for e in row(table, "fedprox")[-len(tables.P_VALUES) :]] == ["–"] * len(
        tables.P_VALUES
    )
    assert "‡ method=fedprox,seed=0: diverged in round 28: too large" in table.notes
    said, _ = report.findings(study, tables.options(study, "fedprox"))
    assert said.startswith("FedProx diverged in 2 of 8 runs. Undecided: FedVG against FedProx")


def test_tables_of_private_runs_have_their_mean_epsilon(tmp_path):
    for seed, epsilon in enumerate((2.0, 3.0)):
        write_run(tmp_path / f"{seed}", method="fedavg", seed=seed)
        write_summary(tmp_path / f"{seed}", epsilon=epsilon)
    study = collect([tmp_path])
    cost = tables.cost(study, tables.options(study))
    assert cost.rows[0]["epsilon"].text == "2.50"
    assert [line["epsilon"] for line in csv_rows(tables.runs(study))] == ["2", "3"]


@pytest.mark.parametrize("is_complete", [True, False])
def test_accuracies_of_clients_are_means_where_all_runs_have_recorded_them(tmp_path, is_complete):
    worst = {2: {"worst_decile": 0.25}}
    for method, seed, fields in (
        ("fedavg", 0, worst),
        ("fedavg", 1, worst if is_complete else {}),
        ("fedvg", 0, {}),
    ):
        write_run(tmp_path / f"{method}{seed}", (0.5, 0.6), method=method, seed=seed, fields=fields)
    table = tables.clients(collect([tmp_path], partial=True))
    assert [*table.rows[0]] == ["method", "global, all test rows", "global: worst decile"]
    assert {
        row["method"].text.split()[0]: row["global: worst decile"].text for row in table.rows
    } == {
        "FedAvg": "25.00" if is_complete else "–",
        "FedVG": "–",
    }


def test_no_form_of_a_table_reads_a_name_as_its_own_language():
    table = hostile_table()
    html, latex = markup.hypertext(table), markup.latex(table)
    assert "<script>" not in html and html.count("&lt;script&gt;") == 4 and "<b>1.00</b>" in html
    body = latex.split(r"\midrule")[1].split(r"\bottomrule")[0]
    assert r"\&" in body and r"\textbackslash{}z" in body and r"50\%" in body and r"\$x\$" in body
    assert len(re.findall(r"(?<!\\)&", body)) == 1 and r"\textbf{1.00}" in body
    assert list(csv.reader(io.StringIO(markup.comma_separated(table)))) == [
        ["name", "value"],
        [HOSTILE, "1"],
    ]


# --- what happened


def six_seeds(folder, method, values, **others):
    """Writes a run of two rounds for every value, the accuracy of the second one; None is not finite."""
    for seed, value in enumerate(values):
        fields = {2: {"test_accuracy": value, "test_loss": 0.5, **others}}
        write_run(folder / f"{method}{seed}", (0.5, 0.6), method=method, seed=seed, fields=fields)


def effect(study, chosen, method):
    """Returns the row of a method in the table of effects."""
    return next(r for r in csv_rows(tables.effects(study, chosen)) if r["method"] == method)


def test_a_metric_that_is_not_finite_in_the_chosen_round_is_marked_and_not_tested(tmp_path):
    """The best round of every run is the second of three; the third is finite everywhere."""
    for method, seed in itertools.product(("fedavg", "fedvg"), range(6)):
        error = None if method == "fedvg" and seed < 3 else 1.0 + (method == "fedavg") + seed / 10
        fields = {2: {"mae": error}, 1: {"mae": 5.0 + seed}, 3: {"mae": 3.0 - seed / 10}}
        write_run(
            tmp_path / f"{method}{seed}", (0.5, 0.9, 0.8), method=method, seed=seed, fields=fields
        )
    study = collect([tmp_path], metric="min:mae")
    best = tables.options(study, choice="at_best_val")
    assert effect(study, best, "fedvg")["t_p"] == effect(study, best, "fedvg")["wilcoxon_p"] == ""
    assert not bold(study, best) and row(tables.accuracy(study, best), "fedvg")[1].text.endswith(
        "‡"
    )
    notes = tables.effects(study, best).notes
    assert [sum(f"‡ fedvg{seed}: mae" in note for note in notes) for seed in range(4)] == [
        1,
        1,
        1,
        0,
    ]
    assert report.findings(study, best)[0].startswith(
        "FedVG had no finite mae in 3 of 6 runs. Undecided: "
    )
    final = tables.options(study)
    assert (
        effect(study, final, "fedvg")["t_p"] != ""
        and "‡" not in row(tables.accuracy(study, final), "fedvg")[1].text
    )


def test_an_own_metric_that_is_not_finite_at_the_end_is_not_called_diverged(tmp_path):
    for method, seed in itertools.product(("fedavg", "fedvg"), range(4)):
        error = None if method == "fedvg" and seed else 1.0
        write_run(
            tmp_path / f"{method}{seed}",
            (0.5,),
            method=method,
            seed=seed,
            fields={1: {"mae": error}},
        )
    study = collect([tmp_path], metric="min:mae")
    said = " ".join(report.findings(study, tables.options(study)))
    assert "no finite mae in 3 of 4 runs" in said and "diverged" not in said


def test_runs_that_stopped_early_are_named_and_their_comparison_says_the_rounds(tmp_path):
    six_seeds(tmp_path, "fedavg", [0.8, 0.81, 0.82])
    six_seeds(tmp_path, "fedprox", [0.8, 0.81, 0.83])
    for seed in range(3):
        write_run(
            tmp_path / f"s{seed}", (0.5 + seed**2 / 100,), rounds=2, method="fedvg", seed=seed
        )
        write_summary(tmp_path / f"s{seed}", stopped_early="no progress")
    study = collect([tmp_path])
    said = report.findings(study, tables.options(study))[0]
    assert "FedVG stopped early in 3 of 3 runs." in said and "behind FedAvg" in said
    assert said.count("after 1 against 2 rounds") == 1
    table = tables.effects(study, tables.options(study))
    assert {r["method"]: r["rounds"] for r in csv_rows(table)} == {
        "fedprox": "",
        "fedvg": "1 against 2",
    }
    assert "§ s0: stopped after 1 of 2 rounds: no progress" in table.notes
    assert row(tables.accuracy(study, tables.options(study)), "fedvg")[1].text.endswith("§")
    assert "rounds 1 against 2" in markup.latex(tables.pairs(study, tables.options(study, "all")))


@pytest.mark.parametrize("num_alphas", [1, 4])
def test_bold_and_findings_have_one_correction_over_the_study(tmp_path, num_alphas):
    """FedVG's lead has p = 0.02 at alpha 1; with four alphas 0.08 after correction."""
    leads = [0.01, 0.04, 0.05, 0.03, 0.06, 0.0]
    for alpha, seed in itertools.product(range(1, num_alphas + 1), range(6)):
        write_run(
            tmp_path / f"a{alpha}{seed}", (0.5,), method="fedavg", seed=seed, alpha=float(alpha)
        )
        lead = leads[seed] if alpha == 1 else leads[seed] * (-1) ** seed
        write_run(
            tmp_path / f"v{alpha}{seed}",
            (0.5 + lead,),
            method="fedvg",
            seed=seed,
            alpha=float(alpha),
        )
    study = collect([tmp_path])
    chosen = tables.options(study)
    p_values = [float(r["t_p"]) for r in csv_rows(tables.effects(study, chosen))]
    assert 0.05 / 4 < min(p_values) < 0.05
    is_ahead = num_alphas == 1
    assert (bold(study, chosen) == {"fedvg"}) == is_ahead
    assert ("is ahead of" in report.findings(study, chosen)[0]) == is_ahead
    triangle = tables.pairs(study, tables.options(study, "all"))
    assert any(entry.is_bold for entries in triangle.rows for entry in entries.values()) == is_ahead


def test_a_study_without_a_test_does_not_count_its_comparisons(tmp_path):
    for method in ("fedavg", "fedvg"):
        write_run(tmp_path / method, method=method)
    study = collect([tmp_path])
    said = report.findings(study, tables.options(study))
    assert "the 0 comparisons" not in " ".join(
        (*said, *tables.effects(study, tables.options(study)).notes)
    )
    assert "No comparison has a p value" in said[-1]


def test_every_undecided_comparison_is_named(tmp_path):
    methods = ("fedavg", "fedprox", "fedvg", "uniform", "fednova", "scaffold")
    for method, seed in itertools.product(methods, range(2)):
        write_run(tmp_path / f"{method}{seed}", (0.5 + 0.1 * seed,), method=method, seed=seed)
    said, _ = report.findings(collect([tmp_path]), tables.options(collect([tmp_path])))
    assert all(title in said for title in ("FedProx", "FedVG", "uniform", "FedNova", "Scaffold"))


def test_tables_say_where_lower_values_are_better(tmp_path):
    for method in ("fedavg", "fedvg"):
        write_run(
            tmp_path / method,
            (None,),
            method=method,
            fields={1: {"test_loss": 0.5, "val_loss": 0.5}},
        )
    study = collect([tmp_path])
    made = {table.name: table for table in tables.all_tables(study, tables.options(study))}
    shown = [
        " ".join((made[name].title, *made[name].rows[0]))
        for name in ("accuracy", "choices", "effects", "cost")
    ]
    assert all("lower is better" in text for text in shown)


def test_no_number_is_minus_zero():
    assert number("x", -0.001).text == "0.00" and number("x", -0.001, signed=True).text == "+0.00"
    assert markup.spread("x", -0.001, 0.5, 2).text == "0.00 ± 0.50"


def test_rows_of_latex_that_begin_with_a_bracket_or_an_asterisk_are_no_argument_of_the_line_before():
    table = Table("t", "", [{"[title]": label("name", text)} for text in ("[x]", "*", "plain")])
    lines = [line for line in markup.latex(table).splitlines() if line.endswith(r"\\")]
    assert not any(line.lstrip().startswith(("[", "*")) for line in lines) and len(lines) == 4


def test_choices_of_tuning_are_one_table_and_no_note(tmp_path):
    sweep = write_sweep(
        tmp_path / "s", {"method": ["fedavg", "fedvg"], "seed": [0, 1]}, lambda v: (0.5,)
    )
    content = json.loads((sweep / "sweep.json").read_text())
    choice = {"values": {"lr": 0.3}, "metric": "accuracy", "score": 0.625, "num_runs": 4}
    tuned = {
        "settings": {"lr": [0.1, 0.3]},
        "chosen": {"method=fedavg": choice, "method=fedvg": choice},
    }
    write_json(sweep / "sweep.json", content | {"tuning": tuned})
    study = collect([sweep])
    made = tables.all_tables(study, tables.options(study))
    assert [table.name for table in made].count("tuning") == 1
    (table,) = (table for table in made if table.name == "tuning")
    assert row(table, "method=fedvg")[3].text == "62.50" and len(table.rows) == 2
    assert not any("lr 0.3" in note for table in made for note in table.notes)


def test_only_a_study_with_fedvg_has_a_note_on_the_rows_of_d_val(tmp_path):
    notes = {}
    for method in ("fedprox", "fedvg"):
        write_run(tmp_path / method / "run", method=method)
        notes[method] = " ".join(tables.choices(collect([tmp_path / method])).notes)
    assert "D_val" not in notes["fedprox"] and "D_val" in notes["fedvg"]
