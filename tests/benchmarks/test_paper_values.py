"""The paper's values beside ours: which runs have one, and which settings differ from the paper's."""

from pathlib import Path

import pytest
from support.run_folders import csv_rows, write_manifest, write_run, write_sweep

pytest.importorskip("scipy", reason="reports need the report extra")

from benchmarks.studies.paper import values
from fedvg_jax import paper
from fedvg_jax.config import Config, check, presets
from fedvg_jax.runs.record import history
from fedvg_jax.study.cells import Cell, Run, Study
from fedvg_jax.study.collect import collect


def test_papers_value_stands_beside_ours_in_joint_standard_errors(tmp_path):
    sweep = write_sweep(
        tmp_path / "s", {"method": ["fedvg", "feddyn"], "seed": [0, 1]}, lambda v: (0.5, 0.52 + 0.02 * v["seed"]),
        dataset="cifar10", model="resnet18", alpha=0.05,
    )  # fmt: skip
    table = values.against_paper(collect([sweep]))
    mean, std = paper.accuracy("cifar10", "resnet18", "FedVG", 0.05)
    numbers = csv_rows(table)[0]
    assert float(numbers["paper mean"]) == mean and float(numbers["difference"]) == pytest.approx(53 - mean)
    errors = (53 - mean) / (2 / 2 + std**2 / 5) ** 0.5  # deviation of 52 and 54 is the root of 2
    assert float(numbers["standard_errors"]) == pytest.approx(errors)
    assert any("rounds 2 (paper 200)" in note for note in table.notes)


@pytest.mark.parametrize(
    "changes",
    [
        {"fedvg": {"norm": "l2"}}, {"tuning": {"steps": 2}}, {"robust": {"rule": "clipped_mean"}},
        {"attack": {"kind": "sign_flip"}}, {"corrupt": {"kind": "label_flip"}}, {"validation": {"label_noise": 0.5}},
        {"validation": {"size": 50}},
        {"validation": {"source": "stl10", "data_dir": "d"}, "fedvg": {"granularity": "layerwise"}},
        {"method": "fedprox+fedvg", "fedprox": {"mu": 1.0}},
        {"method": "fedprox+fedvg", "fedvg": {"granularity": "layerwise"}},
    ],
    ids=str,
)  # fmt: skip
def test_method_with_other_settings_than_the_papers_has_no_value_of_the_paper(changes):
    assert values.paper_name(check(Config(**{"method": "fedvg", **changes}))) is None


@pytest.mark.parametrize("fidelity", ["corrected", "official"])
@pytest.mark.parametrize("method", presets.METHODS)
def test_every_method_of_the_paper_has_its_name(method, fidelity):
    name = values.paper_name(Config(method=method, fidelity=fidelity))
    assert name == " + ".join(values.PAPER_NAMES[part] for part in method.split("+"))


def test_granularities_and_external_sets_of_plain_fedvg_have_the_papers_names():
    layerwise = check(Config(method="fedvg", fedvg={"granularity": "layerwise"}))
    external = check(Config(method="fedvg", validation={"source": "stl10", "data_dir": "d"}))
    assert values.paper_name(layerwise) == "FedVG (Layerwise)"
    assert values.paper_name(external) == "FedVG val=STL-10"


def test_run_with_a_weighting_from_python_has_no_value_of_the_paper(tmp_path):
    settings = {"dataset": "cifar10", "model": "resnet18", "alpha": 0.05, "method": "fedvg"}
    folder = write_run(tmp_path / "a", **settings)
    assert values.against_paper(collect([tmp_path]))
    write_manifest(folder, {"data": "c", "partition": "p", "given": {"weighting": "mine"}})
    study = collect([tmp_path])
    assert values.against_paper(study) is None


@pytest.mark.parametrize("fidelity", ["corrected", "official"])
@pytest.mark.parametrize("dataset", ["cifar10", "organamnist", "tinyimagenet", "covid19", "dermamnist"])
def test_runs_with_the_papers_settings_have_its_scale(dataset, fidelity):
    runs = {}
    for i, method in enumerate(presets.METHODS):
        settings = presets.dataset_preset(dataset) | {"dataset": dataset, "alpha": 0.05, "seed": i}
        made = Config(method=method, fidelity=fidelity, record="client_drift", **settings)
        loaded = history.History([], {}, lambda: None, None, config=made)
        runs[method] = Cell(method, (), {(i, 42): Run(Path(method), loaded, {}, {}, ())})
    study = Study("a study", tuple(runs), ((),), {(method, ()): cell for method, cell in runs.items()}, "accuracy", {})
    assert not any("other scale" in note for note in values.against_paper(study).notes)


def test_runs_without_a_counterpart_in_the_paper_have_no_such_table(tmp_path):
    assert values.against_paper(collect([write_run(tmp_path / "a", method="fedavg")])) is None
