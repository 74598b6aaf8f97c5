"""Benchmarks run, refuse contestants that disagree, and write the tables of the documentation. No test uses timings."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import jax
import numpy as np
import pytest

import fedvg_jax as fv
from benchmarks import machine, parity
from benchmarks.gpu import process, session, study
from benchmarks.pages import cpu
from benchmarks.speed import cases, contest, ours, rounds
from fedvg_jax.models import cnn, task


def torch_or_skip():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def test_every_module_imports():
    """Those of PyTorch, pfl and Flower, which need them, in another test."""
    for path in sorted(machine.ROOT.glob("benchmarks/**/*.py")):
        name = ".".join(path.relative_to(machine.ROOT).with_suffix("").parts)
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            assert error.name in ("torch", "pfl", "flwr"), name


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
    gaps = compare(tmp_path, contestant, peers.Lean(peers.read(tmp_path)))
    assert contest.agrees(gaps), gaps
    other = peers.read(tmp_path)
    other = other._replace(rounds=[[[rows[1:] for rows in client] for client in other.rounds[0]]])
    assert not contest.agrees(compare(tmp_path, contestant, peers.Lean(other)))


def compare(folder, contestant, peer):
    from benchmarks.speed import peers

    with np.load(folder / "workload.npz") as file:
        return contest.differences(contestant.check(), peers.check(peer), contestant.exact(), dict(file))


@pytest.mark.slow
def test_rounds_writes_timings_of_all_contestants(tmp_path):
    torch_or_skip()
    file = tmp_path / "results.json"
    options = ["--rounds", "1", "--repeats", "1", "--peers", "lean", "pfl", "--threads", "1", "--out", str(file)]
    assert rounds.main(["--cases", "logistic", *options]) == 0
    results = json.loads(file.read_text())
    case = results["cases"]["logistic"]
    assert case["seconds"].keys() == {"ours", "lean"} and "pfl" in case["skipped"]
    assert case["ratio"]["lean"] == pytest.approx(
        case["seconds"]["lean"]["round"]["median"] / case["seconds"]["ours"]["round"]["median"], abs=1e-3
    )
    fields = {"processor", "cores", "versions", "load_before", "load_after", "command", "busy"}
    assert results["machine"].keys() >= fields
    assert "logistic" in cpu.render(tmp_path)


# --- other benchmarks


def test_gpu_section_runs_on_the_cpu_and_a_timeout_is_recorded(tmp_path):
    args = session.parse(["--cpu-smoke", "--cache-dir", str(tmp_path)])
    assert process.run_section("peaks", 600, args, {})["TF/s"]["float32"] > 0
    assert "stopped" in process.run_section("peaks", 0.01, args, {})


def test_a_file_of_gpu_results_gains_sessions_and_loses_none(tmp_path, monkeypatch):
    out, results = tmp_path / "gpu.json", iter([{"device": {"accelerator": "A"}, "TF/s": {}}, {"failed": "no result"}])
    monkeypatch.setattr(process, "run_section", lambda *_: next(results))
    monkeypatch.setattr(machine, "other_load", lambda: 0.0)
    codes = [session.main(["--sections", "peaks", "--out", str(out)]) for _ in range(2)]
    first, second = json.loads(out.read_text())["sessions"]
    assert codes == [0, 1] and second["sections"]["peaks"]["failed"]
    assert first["sections"]["peaks"]["on"].keys() >= {"accelerator", "commit", "versions", "peaks"}


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
        peer = pytorch.Round(sim, "lenet5", pytorch.Variant("eager", "float32", channels_last), "cpu")
        peer.run()
        np.testing.assert_allclose(peer.weights, metrics.weights, rtol=contest.WEIGHTS)
        for path, model in zip(peer.start, peer.averaged, strict=True):
            name = path.split("/", 1)[1]
            np.testing.assert_allclose(torch_nets.from_torch("lenet5", name, model), expected[f"/{path}"], atol=1e-3)


def test_a_study_joins_its_data_and_packs_finished_runs_without_models(tmp_path):
    for name, content in (("part-ab", b"cd"), ("part-aa", b"ab")):
        (tmp_path / name).write_bytes(content)
    assert study.assemble(tmp_path).read_bytes() == b"abcd"
    for file in ("done/summary.json", "done/history.jsonl", "done/checkpoints/1/x", "begun/history.jsonl"):
        path = tmp_path / "study" / "cell" / "points" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    study.pack(tmp_path / "study", tmp_path / "study.tar.xz")
    with tarfile.open(tmp_path / "study.tar.xz") as packed:
        files = {Path(info.name).relative_to("study/cell/points").as_posix() for info in packed if info.isfile()}
    assert files == {"done/summary.json", "done/history.jsonl"}


@pytest.mark.slow
def test_all_gpu_sections_and_the_study_run_on_the_cpu(tmp_path):
    out, smoke = tmp_path / "gpu.json", ["--cpu-smoke", "--minutes", "15", "--cache-dir", str(tmp_path)]
    assert session.main([*smoke, "--out", str(out)]) == 0
    (measured,) = json.loads(out.read_text())["sessions"]
    failed = [name for name, s in measured["sections"].items() if "failed" in s or "error" in s]
    assert failed == ([] if importlib.util.find_spec("torch") else ["torch"])
    assert session.main(["study", *smoke, "--out", str(tmp_path / "study")]) == 0
    assert (tmp_path / "study.tar.xz").stat().st_size > 0


SMALLEST = {
    "speed.costs": "--only width planning --points 1 --repeats 1",
    "speed.limits": "--sections help start --repeats 1",
}
"""Module of a measurement -> its arguments at a small size."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_a_measurement_runs_and_writes_its_machine_and_command(name, tmp_path):
    words = [*SMALLEST[name].split(), "--out", str(tmp_path / "results.json")]
    environment = {n: v for n, v in os.environ.items() if not n.startswith("JAX_NUM")}
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *words], check=True, env=environment, cwd=machine.ROOT)
    results = json.loads((tmp_path / "results.json").read_text())
    assert (
        results["machine"]["command"].startswith(f"python -m benchmarks.{name} ") and results["machine"]["load_after"]
    )


# --- recorded rounds


def read_recording(folder, **changes):
    """Returns a recording of one round of two clients, whose model has one tensor; None removes an array."""
    arrays = {
        "param_names": np.array(["w", "bn.num_batches_tracked"]),
        "val_rows": np.arange(4),
        "init/w": np.zeros(2),
        "r0/clients": np.array([1, 0]),
        "r0/global/w": np.ones(2),
    }
    for k in range(2):
        arrays |= {f"part/{k}/train": np.arange(4), f"r0/rows/{k}": np.arange(4), f"r0/client{k}/w": np.ones(2)}
    meta = {"method": "fedgrad", "model": "lenet5", "clients": 2, "rounds": 1}
    arrays |= {"r0/weights": np.array([0.5, 0.5]), "meta": np.array(json.dumps(meta))} | changes
    np.savez(folder / "recording.npz", **{key: array for key, array in arrays.items() if array is not None})
    return parity.read(folder / "recording.npz")


def test_recording_of_global_models_only_is_read_and_its_missing_arrays_are_listed(tmp_path):
    assert parity.not_compared(read_recording(tmp_path)) == []
    partial = read_recording(tmp_path, **{"r0/client1/w": None, "r0/weights": None})
    assert parity.not_compared(partial) == ["client models of round 1", "modelwise weights of rounds 1"]


@pytest.mark.parametrize("key", ["init/w", "r0/rows/1", "r0/clients"])
def test_recording_without_a_required_array_is_refused(tmp_path, key):
    with pytest.raises(fv.UsageError, match=f"lacks {key}"):
        read_recording(tmp_path, **{key: None})


def differences(**changes):
    """Returns the differences of two rounds that agree, with changes to the second."""
    row = {"ratio": 2e-6, "chained": 2e-6, "weights": 1e-6, "chained_weights": 1e-6, "tensors": {}}
    clients = changes.pop("client_models", [1e-7])
    return parity.Differences(clients, [row, row | changes], [], {})


@pytest.mark.parametrize(
    ("changes", "fails"),
    [({}, []), ({"client_models": None, "weights": None}, []), ({"client_models": [1e-5]}, ["client models"]),
     ({"ratio": 6e-3}, ["round 2"]), ({"chained": 3e-2}, ["round 2, chained"]), ({"weights": 3e-3}, ["weights"]),
     ({"chained_weights": 6e-3}, ["chained: weights"])],
)  # fmt: skip
def test_difference_beyond_its_bound_fails(changes, fails):
    """Client models, single rounds, chained rounds and weights have different bounds."""
    failed = [name for name, gap, bound in parity.checks("fedgrad", differences(**changes)) if gap > bound]
    assert len(failed) == len(fails)
    assert all(expected in name for expected, name in zip(fails, failed, strict=True))


@pytest.mark.slow
def test_recording_of_global_models_only_is_replayed(tmp_path):
    """The recorded model after the round is the initial one plus 0.1, so that ours differs."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "cifar10.npz", x=rng.integers(0, 256, (40, 32, 32, 3), np.uint8), y=np.arange(40) % 10)
    settings = {"clients": 2, "rounds": 1, "epochs": 1, "batch": 8, "lr": 0.01, "method": "fedgrad", "model": "lenet5"}
    model = parity.torch_layout.to_torch(task.classification(cnn.LeNet5(10), 10, (32, 32, 3)).init(jax.random.key(0)))
    arrays = {f"init/{name}": x for name, x in model.items()}
    arrays |= {f"r0/global/{name}": x + 0.1 for name, x in model.items()}
    arrays |= {f"part/{k}/train": np.arange(16 * k, 16 * k + 16) for k in range(2)}
    arrays |= {f"r0/rows/{k}": np.arange(16 * k, 16 * k + 16) for k in range(2)}
    arrays |= {"param_names": np.array([*model]), "val_rows": np.arange(32, 40), "r0/clients": np.arange(2)}
    np.savez(tmp_path / "recording.npz", meta=json.dumps(settings), **arrays)
    results = tmp_path / "results.json"
    command = ["--golden", str(tmp_path / "recording.npz"), "--data-dir", str(tmp_path), "--results", str(results)]
    assert parity.main(command) == 1
    result = json.loads(results.read_text())["methods"]["fedvg"]
    assert result["client_models"] is None and result["rounds"][0]["ratio"] > 0.1
    assert result["not_compared"] == ["client models of round 1", "modelwise weights of rounds 1"]
