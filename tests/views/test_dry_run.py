"""The plan of a run predicts what the run takes."""

import re
import types

from fedvg_jax import config, resolve, sim
from fedvg_jax.runs import chunks
from fedvg_jax.runs.assemble import programs
from fedvg_jax.views import display

FLAGS = "--rounds 5 --local-epochs 2 --alpha 1 --eval-every 2 --model linear --dry-run"
SETTINGS = config.Config(rounds=5, local_epochs=2, alpha=1.0, eval_every=2, model="linear")


def test_dry_run_shows_seconds_and_memory_and_writes_only_the_cache(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert sim.main([*FLAGS.split(), "--cache-dir", str(tmp_path / "cache")]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    shown = capsys.readouterr().out
    assert all(
        re.search(rf"{name} .*\d", shown)
        for name in ("compiling", "one round", "5 rounds", "memory")
    )


def test_the_plan_of_a_run_adds_up(monkeypatch):
    """A second round of 1 s in a chunk of 3 s, and so evaluations of 2 s, after rounds 2, 4 and 5."""
    made = resolve.experiment.simulation(SETTINGS)
    seconds = iter([0.0, 10.0, 13.0])
    clock = types.SimpleNamespace(perf_counter=lambda: next(seconds))
    monkeypatch.setattr(display, "time", clock)
    timed = [(made.state, [{"seconds": 9.0}]), (made.state, [{"seconds": 1.0}])]
    monkeypatch.setattr(display.chunks, "run_chunks", lambda *arguments, **options: timed)
    compiled = chunks.Programs(None, None, 4.0)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(display.chunks, "compile_programs", lambda sim: compiled)
    monkeypatch.setattr(display.programs, "program_bytes", lambda chunk: 3 * 2**29)
    assert display.plan_rows(made) == {
        "compiling": "4.0 s",
        "one round": "1 s",
        "5 rounds": "11 s",
        "memory": "1.50 GiB",
    }


def test_the_memory_of_a_plan_holds_the_images_and_the_models_of_a_cohort_of_ten():
    compiled = chunks.compile_programs(resolve.experiment.simulation(SETTINGS))
    pixels, model = 1797 * 64, 4 * (64 * 10 + 10)
    assert programs.program_bytes(compiled.chunk) > pixels + 10 * model


def test_two_rounds_are_timed():
    made = resolve.experiment.simulation(SETTINGS)
    drawn = []
    watched = made._replace(
        draw=lambda number, *rest: drawn.append(number) or made.draw(number, *rest)
    )
    assert "5 rounds" in display.plan_rows(watched) and set(drawn) == {0, 1}
