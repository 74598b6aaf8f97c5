"""The plan of a run predicts what the run takes."""

import re

from fedvg_jax import config, resolve, sim
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


def test_the_plan_of_a_run_adds_up():
    plan = display.predict(resolve.experiment.simulation(SETTINGS))
    assert plan.rounds == 5
    evaluation = (plan.seconds - 5 * plan.seconds_per_round) / 3  # after rounds 2, 4 and 5
    assert plan.seconds_per_round > 0 and evaluation > 0 and plan.compile_seconds > 0
    pixels, model = 1797 * 64, 4 * (64 * 10 + 10)
    assert plan.memory_bytes > pixels + 10 * model, "the images, and the models of a cohort of ten"


def test_two_rounds_are_timed():
    made = resolve.experiment.simulation(SETTINGS)
    drawn = []
    watched = made._replace(
        schedule=lambda number, *rest: drawn.append(number) or made.schedule(number, *rest)
    )
    assert display.predict(watched).rounds == 5 and set(drawn) == {0, 1}
