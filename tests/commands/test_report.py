"""`fedvg report`: writes tables and figures of run folders; mistakes are one line."""

from pathlib import Path

import pytest
from support.run_folders import write_run, write_sweep

pytest.importorskip("scipy", reason="reports need the report extra")
pytest.importorskip("matplotlib", reason="reports need the report extra")

from fedvg_jax import report

AXES = {"method": ["fedavg", "fedvg"], "alpha": [0.05, 0.5], "seed": [0, 1]}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "s"
    return write_sweep(folder, AXES, lambda v: (0.5, 0.6 + 0.01 * v["seed"]))


def written(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files}


def test_command_writes_the_same_bytes_every_time(sweep, tmp_path, capsys):
    assert report.main([str(sweep), "--out", str(tmp_path)]) == 0
    first = written(tmp_path)
    assert report.main([str(sweep), "--out", str(tmp_path)]) == 0
    assert written(tmp_path) == first
    names = {path.name for path in first}
    assert names >= {"report.html", "curves.png", "curves.pdf", "runs.csv"}
    assert f"report of {len(first)} files: {tmp_path / 'report.html'}" in capsys.readouterr().out


def test_report_is_written_into_the_sweep_and_read_past(sweep):
    for _ in range(2):
        assert report.main([str(sweep)]) == 0
    assert (sweep / "report" / "tables" / "effects.tex").exists()


def test_incomplete_study_needs_partial(tmp_path, capsys):
    write_run(tmp_path / "a", method="fedavg")
    write_run(tmp_path / "b", rounds=9, method="fedvg")
    assert report.main([str(tmp_path)]) == 2
    assert "3 of 9 rounds" in capsys.readouterr().err
    assert report.main([str(tmp_path), "--partial"]) == 0


def test_missing_extra_is_one_line(sweep, capsys, monkeypatch):
    monkeypatch.setattr("fedvg_jax.study.report.EXTRA", ("scipy", "no_such_package"))
    assert report.main([str(sweep)]) == 2
    needed = "reports need no_such_package; pip install 'fedvg_jax[report]'"
    assert needed in capsys.readouterr().err


def test_one_run_is_drawn(tmp_path, capsys):
    run = write_run(tmp_path / "run", (0.5, None, 0.8), method="fedvg")
    (run / "summary.json").unlink()  # as while it runs
    assert report.main([str(run)]) == 0
    drawn = capsys.readouterr().out.splitlines()
    assert drawn == [str(run / name) for name in ("curves.png", "weights.png")]
    assert all(Path(path).read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_one_run_with_an_option_has_a_report(tmp_path):
    run = write_run(tmp_path / "run", (0.5, 0.8), method="fedvg")
    assert report.main(["--out", str(tmp_path / "r"), str(run)]) == 0
    assert (tmp_path / "r" / "report.html").exists()
