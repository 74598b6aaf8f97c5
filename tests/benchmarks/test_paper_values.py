"""The paper's values beside ours: which runs have one."""

import pytest
from support.run_folders import write_manifest, write_run, write_sweep

pytest.importorskip("scipy", reason="reports need the report extra")

from benchmarks.studies.paper import values
from fedvg_jax.config import Config, check, presets
from fedvg_jax.study.collect import collect


def test_papers_value_stands_beside_ours(tmp_path):
    sweep = write_sweep(
        tmp_path / "s", {"method": ["fedvg", "feddyn"], "seed": [0, 1]}, lambda v: (0.5, 0.52 + 0.02 * v["seed"]),
        dataset="cifar10", model="resnet18", alpha=0.05,
    )  # fmt: skip
    shown = values.against_paper(collect([sweep]))
    mean, std = values.published(
        Config(dataset="cifar10", model="resnet18", method="fedvg", alpha=0.05)
    )
    ours = ["", "fedvg", "53.00 ± 1.41", "53.00 ± 1.41"]
    assert shown.iloc[0].tolist() == [*ours, f"{mean} ± {std}", f"{53 - mean:+.2f}"]


@pytest.mark.parametrize(
    "changes",
    [
        {"fedvg": {"norm": "l2"}}, {"tuning": {"steps": 2}}, {"robust": "clipped_mean"},
        {"attack": "sign_flip"}, {"corrupt": {"kind": "label_flip"}}, {"validation": {"label_noise": 0.5}},
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


def test_run_with_a_weighting_from_python_has_no_value_of_the_paper(tmp_path):
    settings = {"dataset": "cifar10", "model": "resnet18", "alpha": 0.05, "method": "fedvg"}
    folder = write_run(tmp_path / "a", **settings)
    assert len(values.against_paper(collect([tmp_path]))) == 1
    write_manifest(folder, {"data": "c", "partition": "p", "custom": {"weighting": "mine"}})
    study = collect([tmp_path])
    assert values.against_paper(study).empty
