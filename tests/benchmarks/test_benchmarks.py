"""Benchmarks run, refuse contestants that disagree, and write the tables of the documentation. No test uses timings."""

import importlib
import importlib.util
import json

import jax
import numpy as np
import pytest

pytest.importorskip("scipy", reason="pictures need the report extra")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.text import Text

from benchmarks import machine, parity
from benchmarks.gpu import process, session
from benchmarks.pages import cpu, pictures
from benchmarks.speed import cases, contest, ours, rounds


def torch_or_skip():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def test_every_module_imports():
    """Modules that need PyTorch or Flower are exempt where these are not installed."""
    for path in sorted(machine.ROOT.glob("benchmarks/**/*.py")):
        name = ".".join(path.relative_to(machine.ROOT).with_suffix("").parts)
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            assert error.name in ("torch", "flwr"), name


# --- agreement of contestants


def test_pytorch_loop_agrees_with_our_models_and_weights_on_the_same_minibatches_only(tmp_path):
    torch_or_skip()
    from benchmarks.speed import peers

    case = cases.CASES["logistic"]._replace(rounds=1, checked_steps=4)
    sim = ours.simulation(case)
    planned = [sim.schedule(0)]
    ours.write_workload(tmp_path, case, sim, planned)
    contestant = ours.Ours(sim, planned, case.checked_steps)
    assert contestant.checked.num_steps.sum() < planned[0].num_steps.sum()
    workload = peers.read(tmp_path)
    (clients,) = workload.rounds
    clients = jax.tree.map(lambda rows: rows[1:], clients)
    for other, is_same in ((workload, True), (workload._replace(rounds=[clients]), False)):
        checked = contestant.check(), peers.check(peers.Lean(other)), contestant.exact()
        with np.load(tmp_path / "workload.npz") as file:
            gaps = contest.differences(*checked, dict(file))
        assert contest.agrees(gaps) == is_same, gaps


@pytest.mark.slow
def test_rounds_writes_timings_of_all_contestants(tmp_path):
    torch_or_skip()
    file = tmp_path / "results.json"
    options = "--cases logistic --rounds 1 --repeats 1 --peers lean flower --threads 1 --out"
    assert rounds.main([*options.split(), str(file)]) == 0
    results = json.loads(file.read_text())
    case = results["cases"]["logistic"]
    assert case["seconds"].keys() == {"ours", "lean"} and "flower" in case["skipped"]
    lean, own = (case["seconds"][name]["round"]["median"] for name in ("lean", "ours"))
    assert case["ratio"]["lean"] == pytest.approx(lean / own, abs=1e-3)
    fields = {"processor", "cores", "versions", "others_before", "others_after", "command", "busy"}
    assert results["machine"].keys() >= fields
    assert "logistic" in cpu.render(tmp_path)


# --- other benchmarks


def test_gpu_section_runs_on_the_cpu_and_a_timeout_is_recorded(tmp_path):
    args = session.parse(["--cpu-smoke", "--cache-dir", str(tmp_path)])
    assert process.run_section("peaks", 600, args, {})["TF/s"]["float32"] > 0
    assert "stopped" in process.run_section("peaks", 0.01, args, {})


def test_a_file_of_gpu_results_gains_sessions_and_loses_none(tmp_path, monkeypatch):
    out = tmp_path / "gpu.json"
    results = iter([{"device": {"accelerator": "A"}, "TF/s": {}}, {"failed": "no result"}])
    monkeypatch.setattr(process, "run_section", lambda *_: next(results))
    monkeypatch.setattr(machine, "other_load", lambda: 0.0)
    codes = [session.main(["--sections", "peaks", "--out", str(out)]) for _ in range(2)]
    first, second = json.loads(out.read_text())["sessions"]
    assert codes == [0, 1] and second["sections"]["peaks"]["failed"]
    assert first["machine"].keys() >= {"accelerator", "commit", "versions"}


def test_pytorch_s_round_on_a_gpu_is_ours():
    """Gradients in float64, and whole rounds in float32, of which a ReLU may flip; without CUDA graphs."""
    torch_or_skip()
    from benchmarks.gpu import pytorch, workload
    from benchmarks.speed import torch_nets

    sim = workload.simulation(workload.Box(0, smoke=True))
    assert pytorch.difference(sim, "lenet5", "cpu") < pytorch.AGREES
    state, metrics = sim.step(sim.state, 0)
    expected = contest.flatten_model("", *jax.device_get(state.variables))
    for channels_last in (False, True):
        peer = pytorch.Round(
            sim, "lenet5", pytorch.Variant("eager", "float32", channels_last), "cpu"
        )
        peer.run()
        np.testing.assert_allclose(peer.weights, metrics.weights, rtol=contest.WEIGHTS)
        for path, model in zip(peer.start, peer.averaged, strict=True):
            name = path.split("/", 1)[1]
            np.testing.assert_allclose(
                torch_nets.from_torch("lenet5", name, model), expected[f"/{path}"], atol=1e-3
            )


@pytest.mark.slow
def test_all_gpu_sections_and_the_study_run_on_the_cpu(tmp_path):
    out = tmp_path / "gpu.json"
    smoke = ["--cpu-smoke", "--minutes", "15", "--cache-dir", str(tmp_path)]
    assert session.main([*smoke, "--out", str(out)]) == 0
    (measured,) = json.loads(out.read_text())["sessions"]
    failed = [name for name, s in measured["sections"].items() if "failed" in s or "error" in s]
    assert failed == ([] if importlib.util.find_spec("torch") else ["torch"])
    assert session.main(["study", *smoke, "--out", str(tmp_path / "study")]) == 0
    assert list((tmp_path / "study").glob("*/trials/*/summary.json"))


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_no_text_of_a_picture_is_under_nine_pixels_on_a_page(monkeypatch, name):
    """The site shows pictures 640 pixels wide, in a window of 1,280."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    pictures.main([name])
    for figure in figures:
        figure.draw_without_rendering()
        scale = 640 / (72 * figure.get_figwidth())
        texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
        assert texts and min(text.get_fontsize() for text in texts) * scale >= 9
        assert not any("^{" in text.get_text() for text in texts), "exponents are smaller"
    plt.close("all")


# --- recorded rounds


def read_recording(folder, *missing):
    """Returns a recording of one round of two clients, whose model has one tensor, without some arrays."""
    arrays = {
        "param_names": np.array(["w", "bn.num_batches_tracked"]),
        "val_rows": np.arange(4),
        "init/w": np.zeros(2),
        "r0/clients": np.array([1, 0]),
        "r0/global/w": np.ones(2),
    }
    for k in range(2):
        arrays |= {
            f"part/{k}/train": np.arange(4),
            f"r0/rows/{k}": np.arange(4),
            f"r0/client{k}/w": np.ones(2),
        }
    meta = {"method": "fedgrad", "model": "lenet5", "clients": 2, "rounds": 1}
    arrays |= {"r0/weights": np.array([0.5, 0.5]), "meta": np.array(json.dumps(meta))}
    for name in missing:
        del arrays[name]
    np.savez(folder / "recording.npz", **arrays)
    return parity.read(folder / "recording.npz")


def test_recording_of_global_models_only_is_read_and_its_missing_arrays_are_listed(tmp_path):
    assert parity.not_compared(read_recording(tmp_path)) == []
    partial = read_recording(tmp_path, "r0/client1/w", "r0/weights")
    expected = ["client models of round 1", "modelwise weights of rounds 1"]
    assert parity.not_compared(partial) == expected
