"""Run folders become a study; mixed settings and missing runs are refused with a list."""

import itertools
import json

import pytest
from support.files import one_line
from support.run_folders import (
    problems,
    settings_of,
    write_document,
    write_json,
    write_run,
    write_sweep,
)

from fedvg_jax.study.collect import collect

AXES = {"method": ["fedavg", "fedvg"], "alpha": [0.05, 0.5], "seed": [0, 1, 2]}
LOW, HIGH = (("alpha", 0.05),), (("alpha", 0.5),)


def accuracies(values):
    """Final accuracy 0.6 + 0.1 for FedVG + 0.2 at alpha 0.5 + 0.01 per seed."""
    final = 0.6 + 0.1 * (values["method"] == "fedvg") + 0.2 * (values["alpha"] == 0.5)
    return (0.5, final + 0.01 * values["seed"])


def test_sweep_has_a_group_per_method_and_condition_and_a_run_per_seed(tmp_path):
    sweep = write_sweep(tmp_path / "s", AXES, accuracies)
    study = collect([sweep])
    of_folders = collect([sweep / "trials"])
    assert study.title == "a sweep"
    assert study.settings["rounds"] == 2 and "alpha" not in study.settings
    for each in (study, of_folders):
        assert each.methods == ("fedavg", "fedvg") and each.conditions == (LOW, HIGH)
        results = each.group("fedvg", HIGH).results()
        assert results == pytest.approx({(0, 0): 90, (1, 1): 91, (2, 2): 92})


def test_missing_and_unfinished_trials_are_listed_and_failed_ones_are_not_missing(tmp_path):
    def accuracy(values):
        is_missing = values["seed"] == 2 and values["alpha"] == 0.5
        return None if is_missing else accuracies(values)

    sweep = write_sweep(tmp_path / "s", AXES, accuracy, rounds=2)
    stopped, failed = (
        sweep / "trials" / f"method={name},alpha=0.05,seed={seed}"
        for name, seed in (("fedavg", 0), ("fedvg", 1))
    )
    lines = (stopped / "history.jsonl").read_text().splitlines(keepends=True)
    (stopped / "history.jsonl").write_text(lines[0])
    (stopped / "summary.json").unlink()
    (failed / "summary.json").unlink()
    failure = {"kind": "diverged", "round": 2, "reason": "client 3\nis not finite"}
    write_json(failed / "failure.json", failure)
    with one_line(
        r"fedavg,alpha=0\.05,seed=0: 1 of 2 rounds; .*seed=2: no run folder yet.*--partial"
    ):
        collect([sweep])
    study = collect([sweep], partial=True)
    assert sorted(study.group("fedavg", HIGH).runs) == [(0, 0), (1, 1)]
    group = study.group("fedvg", LOW)
    assert sorted(group.runs) == [(0, 0), (2, 2)] and not problems(group, "missing")
    assert problems(group, "diverged") == [
        f"{failed.name}: diverged in round 2: client 3\\nis not finite"
    ]
    assert len(problems(study.group("fedavg", LOW), "missing")) == 1


def num_missing(study):
    """Returns the number of missing runs of every group."""
    return [len(problems(group, "missing")) for group in study.groups.values()]


def test_seed_that_only_some_methods_have_is_missing_without_a_sweep(tmp_path):
    for method, seeds in {"fedavg": (0, 1), "fedvg": (0,)}.items():
        for seed in seeds:
            write_run(tmp_path / f"{method}{seed}", method=method, seed=seed)
    with one_line("fedvg: no run with seed 1"):
        collect([tmp_path])
    assert num_missing(collect([tmp_path], partial=True)) == [0, 1]


def test_setting_that_varies_between_methods_is_refused_by_name(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", method="fedavg", seed=seed)
        write_run(tmp_path / f"v{seed}", method="fedvg", seed=seed, init="w.safetensors")
    with one_line(r"fedavg, init w\.safetensors: no run with seed 0.*fedvg, init None: no run"):
        collect([tmp_path])
    assert len(collect([tmp_path], partial=True).conditions) == 2


def test_runs_that_differ_in_their_implementation_are_compared(tmp_path):
    write_run(tmp_path / "a", method="scaffold")
    write_run(tmp_path / "v", method="fedvg", placement="host", devices="1", lanes="2")
    write_run(tmp_path / "d", method="ditto", record="accuracy_by_client,personal_accuracy")
    assert collect([tmp_path]).conditions == ((),)


def write_tuned(folder, rates, grid=(0.03, 0.1, 0.3), seed=0):
    """Writes a sweep of methods that were tuned to these rates."""
    trials, chosen = {}, {}
    for method, lr in rates.items():
        name, values = f"method={method},seed={seed}", {"method": method, "seed": seed}
        write_run(folder / "trials" / name, (0.5, 0.6), **values, lr=lr)
        trials[name] = values, settings_of(rounds=2, **values, lr=lr)
        chosen[f"method={method}"] = {"values": {"lr": lr}}
    write_document(folder, [{"method": [*rates]}, {"seed": [seed]}], trials)
    tuning = {"settings": {"lr": [*grid]}, "seeds": [7], "chosen": chosen}
    edit(folder / "sweep.json", tuning=tuning)
    return folder


def test_settings_that_were_tuned_are_in_no_name_and_others_than_those_of_the_sweep_are_refused(
    tmp_path,
):
    sweep = write_tuned(tmp_path / "s", {"fedavg": 0.3, "fedvg": 0.1})
    study = collect([sweep])
    assert study.conditions == ((),) and "lr" not in study.settings and not study.notes
    tuned = {row["condition"]: row["values"] for row in study.tuned}
    at_end = "lr 0.3 (at an end of its grid)"
    assert tuned == {"method=fedavg": at_end, "method=fedvg": "lr 0.1"}
    write_run(tmp_path / "untuned", (0.5, 0.6), method="fedprox", lr=0.2)
    with one_line(r"fedavg, lr 0\.1: no run.*fedprox, lr 0\.1: no run"):
        collect([sweep, tmp_path / "untuned"])
    edit(sweep / "trials" / "method=fedavg,seed=0" / "config.json", lr=0.2)
    with one_line(r"fedavg,seed=0: other settings than those of the sweep: lr 0\.3 -> 0\.2"):
        collect([sweep])


def test_tuned_sweeps_are_compared_at_their_tuned_values(tmp_path):
    first = write_tuned(tmp_path / "a", {"fedavg": 0.3, "fedvg": 0.1})
    second = write_tuned(tmp_path / "b", {"fedprox": 0.03})
    study = collect([first, second])
    assert study.methods == ("fedavg", "fedvg", "fedprox") and study.conditions == ((),)
    assert len(study.tuned) == 3 and not study.notes
    third = write_tuned(tmp_path / "c", {"uniform": 0.5}, grid=(0.5, 0.7))
    assert "different values" in collect([first, third]).notes[-1]


def test_sweeps_that_are_tuned_to_different_values_are_different_settings(tmp_path):
    """Seeds of two sweeps would be one group of two learning rates."""
    first = write_tuned(tmp_path / "a", {"fedavg": 0.1}, seed=0)
    second = write_tuned(tmp_path / "b", {"fedavg": 0.3}, seed=1)
    assert collect([first, second]).conditions == ((("lr", 0.1),), (("lr", 0.3),))


@pytest.mark.parametrize("in_sweep", [True, False], ids=["sweep", "folders"])
def test_settings_that_follow_from_others_are_in_no_condition(tmp_path, in_sweep):
    """As models and those of a preset from the data set. A run that is missing has the settings that its sweep says."""
    of_set, trials = {"digits": ("mlp", 5), "literature": ("gru", 2)}, {}
    for method, dataset, seed in itertools.product(("fedavg", "fedvg"), of_set, (0, 1)):
        model, epochs = of_set[dataset]
        values = {"method": method, "dataset": dataset, "model": model, "seed": seed}
        name = f"{method},{dataset},{seed}"
        trials[name] = values, settings_of(rounds=1, local_epochs=epochs, **values)
        if name != "fedvg,digits,1":
            write_run(tmp_path / "s" / "trials" / name, (0.5,), local_epochs=epochs, **values)
    axes = [
        {"method": ["fedavg", "fedvg"]},
        {"dataset": [*of_set], "model": ["mlp", "gru"]},
        {"seed": [0, 1]},
    ]
    write_document(tmp_path / "s", axes, trials)
    study = collect([tmp_path / "s" if in_sweep else tmp_path / "s" / "trials"], partial=True)
    assert study.methods == ("fedavg", "fedvg")
    assert study.conditions == ((("dataset", "digits"),), (("dataset", "literature"),))
    assert num_missing(study) == [0, 0, 1, 0]
    assert not any("mixed" in note for note in study.notes)


def test_a_missing_run_is_named_by_the_settings_that_its_method_uses(tmp_path):
    """Of sweeps with other values of FedProx's mu, which FedAvg does not use."""
    axes = {"method": ["fedavg", "fedprox"], "seed": [0, 1]}
    lost = {"method": "fedavg", "seed": 1}
    write_sweep(tmp_path / "a", axes, lambda v: None if v == lost else (0.5,), fedprox={"mu": 0.1})
    write_sweep(
        tmp_path / "b",
        {"method": ["fedprox"], "seed": [0, 1]},
        lambda v: (0.5,),
        fedprox={"mu": 0.2},
    )
    study = collect([tmp_path / "a", tmp_path / "b"], partial=True)
    assert study.methods == ("fedavg", "fedprox, mu 0.1", "fedprox, mu 0.2")
    assert num_missing(study) == [1, 0, 0]


PERSONAL = ("fedavg", "fedvg", "fedper", "fedrep+fedvg", "fedbn")


@pytest.mark.parametrize(
    ("axes", "methods"),
    [
        (
            {"method": ["fedvg"], "fedvg": [{"norm": "l1"}, {"norm": "l2"}]},
            ("fedvg, norm l1", "fedvg, norm l2"),
        ),
        ({"method": PERSONAL}, PERSONAL),
        ({"method": ["fedprox"], "local": ["", "^fc/"]}, ("fedprox", "fedprox, local ^fc/")),
        (
            {"method": ["fedavg", "fedprox"], "weighting": ["native", "uniform"]},
            ("fedavg", "uniform", "fedprox", "fedprox+uniform"),
        ),
    ],
    ids=["settings", "local tensors", "varied local tensors", "weighting"],
)
def test_what_varies_between_methods_is_part_of_their_names(tmp_path, axes, methods):
    study = collect([write_sweep(tmp_path / "s", {**axes, "seed": [0]}, lambda v: (0.5,))])
    assert study.methods == methods and study.conditions == ((),)
    is_noted = "whose local tensors keep their initial values" in " ".join(study.notes)
    assert is_noted == ("local" in axes or methods is PERSONAL)


@pytest.mark.parametrize(
    ("name", "digest", "others", "partial"),
    [
        ("data", "digits", {"method": "fedvg"}, False),
        ("partition", r"0\.05-0", {"seed": 1, "partition_seed": 0}, True),
        ("data", "digits", {}, True),
    ],
    ids=["methods", "seeds", "equal settings"],
)
def test_no_mean_is_made_of_runs_of_different_data(tmp_path, name, digest, others, partial):
    """Not over seeds, not over methods, and not of equal settings."""
    a = write_run(tmp_path / "a", method="fedavg")
    b = write_run(tmp_path / "b", **{"method": "fedavg", **others})
    edit(b / "manifest.json", **{name: "another"})
    with one_line(f"{name} {digest} in {a}; {name} another in {b}"):
        collect([tmp_path], partial)


def test_a_folder_of_data_is_a_condition_where_a_sweep_varies_it(tmp_path):
    folders = ["one", "two"]
    sweep = write_sweep(
        tmp_path / "s", {"data_dir": folders, "seed": [0, 1]}, lambda v: (0.5,), dataset="npz"
    )
    for folder in (sweep / "trials").iterdir():
        edit(folder / "manifest.json", data=folder.name.partition(",")[0])
    study = collect([sweep])
    assert study.conditions == tuple((("data_dir", folder),) for folder in folders)
    assert all(len(group.runs) == 2 for group in study.groups.values())


def test_equal_runs_are_one_and_unequal_ones_refused(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, method="fedavg")
    study = collect([tmp_path])
    assert len(study.runs) == 1
    write_run(tmp_path / "c", (0.1, 0.2, 0.3), method="fedavg")
    with one_line("equal settings and seeds but other results"):
        collect([tmp_path])


def edit(path, **changes):
    """Changes entries of a JSON file of a run."""
    write_json(path, json.loads(path.read_text()) | changes)


def test_a_folder_without_its_settings_is_named_and_is_no_method_of_its_own(tmp_path):
    sweep = write_sweep(tmp_path / "s", {"seed": [0, 1]}, lambda v: (0.5,))
    trials = sweep / "trials"
    (trials / "seed=1" / "config.json").unlink()
    for named in (sweep, trials, trials / "seed=1"):
        with one_line(r"seed=1.*no config\.json"):
            collect([named])


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "{}",
        '{"axes": [], "trials": [1]}',
        '{"title": "", "trials": []}',
        '{"title": "", "axes": [], "trials": [{"name": "a", "config": {}}]}',
        '{"title": "", "axes": [], "trials": [], "of_another_version": 3}',
        '{"title": 3, "axes": [], "trials": []}',
        '{"title": "", "axes": [], "trials": [], "tuning": 3}',
        '{"title": "", "axes": [], "trials": [{"name": "a", "values": {}, "config": {}, "names": 3}]}',
    ],
)
def test_damaged_sweep_is_one_line(tmp_path, text):
    (tmp_path / "sweep.json").write_text(text)
    with one_line(r"sweep\.json is damaged"):
        collect([tmp_path])


def test_sweep_without_trials_is_refused(tmp_path):
    (tmp_path / "sweep.json").write_text('{"title": "", "axes": [], "trials": []}')
    with one_line("has no trials"):
        collect([tmp_path])


def test_folder_without_runs_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with one_line("holds no runs"):
            collect([folder])


def test_runs_with_and_without_accuracy_are_compared_by_loss(tmp_path):
    """Accuracies 0.5, 0.9 and 0.7 have the losses 0.5, 0.1 and 0.3 in `run_folders`."""
    write_run(tmp_path / "classes", (0.5, 0.9, 0.7), method="fedavg", dataset="digits")
    fields = {i: {"test_loss": 1 / i, "val_loss": 1 / i} for i in (1, 2)}
    write_run(tmp_path / "numbers", (None, None), method="fedavg", dataset="wine", fields=fields)
    study = collect([tmp_path], partial=True)
    assert study.outcome.metric == "loss"
    for choice, expected in {"final": 0.3, "at_best_val": 0.1, "max": 0.1}.items():
        classes, numbers = study.groups.values()
        assert [*classes.results(choice).values()] == pytest.approx([expected])
        assert [*numbers.results(choice).values()] == [0.5]


@pytest.mark.parametrize("first", ["fedper", "fedavg"])
def test_methods_of_which_no_run_has_begun_are_missing_under_their_own_names(tmp_path, first):
    """Without the local tensors of a personal method that has."""
    methods = [first, *(name for name in ("fedavg", "fedvg") if name != first)]
    sweep = write_sweep(
        tmp_path / "s",
        {"method": methods, "seed": [0, 1]},
        lambda v: (0.5,) if v == {"method": first, "seed": 0} else None,
    )
    study = collect([sweep], partial=True)
    assert study.methods == tuple(methods) and study.conditions == ((),)
    assert num_missing(study) == [1, *[2] * (len(methods) - 1)]


def test_runs_with_a_weighting_from_python_are_no_runs_of_the_config_s(tmp_path):
    own = write_run(tmp_path / "runs" / "own", (0.5,), method="fedvg")
    edit(own / "manifest.json", custom={"weighting": ""})
    (run,) = collect([tmp_path / "runs"]).runs
    assert run.custom == {"weighting": ""}
    write_run(tmp_path / "runs" / "named", (0.5,), method="fedvg")
    study = collect([tmp_path / "runs"], partial=True)
    assert set(study.methods) == {"fedvg", "custom weighting"}


def test_objects_in_place_of_data_and_model_are_settings(tmp_path):
    names = {"data": "dataset", "partition": "partition", "task": "model"}
    edit(
        write_run(tmp_path / "a", method="fedavg") / "manifest.json",
        custom=dict.fromkeys(names, ""),
    )
    settings = collect([tmp_path]).settings
    assert {name: settings[setting] for name, setting in names.items()} == {
        name: f"custom {name}" for name in names
    }


def test_run_without_a_finite_final_loss_has_no_result(tmp_path):
    for seed, loss in enumerate((0.25, None, 0.5)):
        fields = {1: {"test_loss": 0.75, "val_loss": 1.0}, 2: {"test_loss": loss, "val_loss": loss}}
        write_run(tmp_path / f"{seed}", (None, None), method="fedavg", seed=seed, fields=fields)
    study = collect([tmp_path])
    group = study.group("fedavg", ())
    assert sorted(group.runs) == [(0, 0), (1, 1), (2, 2)] and num_missing(study) == [0]
    assert sorted(group.results()) == [(0, 0), (2, 2)]


def test_run_without_an_evaluation_is_missing(tmp_path):
    write_run(tmp_path / "evaluated", method="fedavg")
    write_run(tmp_path / "never", (None, None, None), method="fedavg", seed=1)
    study = collect([tmp_path], partial=True)
    assert study.outcome.metric == "accuracy"
    missing = problems(study.group("fedavg", ()), "missing")
    assert missing == ["never: no evaluation in its history"]


def test_objects_and_their_hyperparameters_name_methods(tmp_path):
    axes = {"hyper.T": [0.5, 2.0], "seed": [0, 1]}
    sweep = write_sweep(tmp_path / "s", axes, lambda v: (0.5, 0.6 + v["hyper.T"] / 10))
    trials = json.loads((sweep / "sweep.json").read_text())["trials"]
    trials = [trial | {"custom": {"weighting": ""}} for trial in trials]
    edit(sweep / "sweep.json", objects={"weighting": ["mine.tempered"]}, trials=trials)
    study = collect([sweep])
    assert study.methods == ("custom weighting, T 0.5", "custom weighting, T 2")
    assert all(len(group.runs) == 2 for group in study.groups.values())
