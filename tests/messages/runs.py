"""Mistakes about run folders and the run to resume."""

import dataclasses
import tempfile
from pathlib import Path

import fedvg_jax as fv
from fedvg_jax.runs.record import digests, history
from fedvg_jax.runs.record import folder as run_folder

SMALL = fv.Config(clients=7, rounds=6)


def resume(**changes):
    """Returns the call that resumes a run with two of six rounds; its folder is `RUN` in the changes."""

    def call():
        with tempfile.TemporaryDirectory() as scratch:
            folders = {name: Path(scratch, name) for name in ("run", "bad", "later", "sweep")}
            for folder in folders.values():
                folder.mkdir()
            run_folder.write_settings(folders["run"], SMALL)
            history.append(folders["run"], [{"round": 1}, {"round": 2}], is_first=True)
            (folders["bad"] / "config.json").write_text("{")
            (folders["later"] / "config.json").write_text('{"newer": 1}')
            (folders["sweep"] / "sweep.json").write_text("{}")
            settings = {"resume": "run", **changes}
            settings["resume"] = str(Path(scratch, settings["resume"]))
            run_folder.settings_to_resume(dataclasses.replace(SMALL, **settings))

    return call


def unreadable_checkpoints():
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "checkpoints").symlink_to("checkpoints")  # which it never reaches
        digests.checkpoints(Path(scratch))


CASES = [
    ("fewer rounds than are done", resume(rounds=1), "--rounds must be 3"),
    ("as many rounds as are done, of which the last was not evaluated", resume(rounds=2), "--rounds must be 3"),
    ("two folders", resume(out=Path("elsewhere")), "--out"),
    ("another setting", resume(lr=0.5), "lr"),
    ("no such folder", resume(resume="nowhere"), "is not a run folder"),
    ("damaged settings", resume(resume="bad"), "config.json"),
    ("a setting of another version", resume(resume="later"), "'newer'"),
    ("the folder of a sweep", resume(resume="sweep"), "is a sweep"),
    ("checkpoints that cannot be read are not none", unreadable_checkpoints, "checkpoints cannot be read"),
    ("a model of clients without a folder", lambda: history.History([], {}, None, None).client_variables(0), "out="),
]
