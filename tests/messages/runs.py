"""Mistakes about run folders and the run to resume."""

import dataclasses
from pathlib import Path

import fedvg_jax as fv
from fedvg_jax import resolve
from fedvg_jax.host import hardware as hw
from fedvg_jax.runs import launch
from fedvg_jax.runs.record import folder as run_folder, history, stored
from messages import scratch

BY_HAND = {"distributed": "localhost:9911", "processes": "2", "process": "1"}
ADDRESSES = ("localhost", "a:b", ":", ":9911", "host:0", "host:99999", "http://host:9911")
SMALL = fv.Config(clients=7, rounds=6)


def resume(**changes):
    """Returns the call that resumes a run with two of six rounds under changed settings."""

    def use(run):
        run.mkdir()
        run_folder.write_settings(run, SMALL)
        history.append(run, [{"round": 1}, {"round": 2}])
        run_folder.settings_to_resume(dataclasses.replace(SMALL, **{"resume": str(run)} | changes))

    return scratch(use, "run")


def resume_of(file, text):
    """Returns the call that resumes a run in a folder with one file."""

    def use(path):
        path.write_text(text)
        run_folder.settings_to_resume(dataclasses.replace(SMALL, resume=str(path.parent)))

    return scratch(use, file)


def unreadable_checkpoints(path):
    path.symlink_to("checkpoints")  # which it never reaches
    stored.checkpoints(path.parent)


def launched(**values):
    """Returns the call that reads these options of several processes."""
    return lambda: launch.read([f"--{name}={value}" for name, value in (BY_HAND | values).items()])


def shared(num_devices, num_processes, **settings):
    """Returns the call that divides a run among the devices of several processes."""

    def call():
        machine = hw.Hardware(
            "gpu", "H100", num_devices, cores=16, memory_bytes=None, num_processes=num_processes
        )
        with hw.assumed(machine):
            resolve.machine.make_executor(
                fv.Config(**{"clients": 10, "join_ratio": 1.0} | settings)
            )

    return call


CASES = [
    ("a process without the others", lambda: launch.read(["--process=0"]), "--distributed"),
    *((f"the address {a}", launched(distributed=a), "HOST:PORT") for a in ADDRESSES),
    ("devices that processes cannot share", shared(8, 2, devices="3"), "devices"),
    ("more processes than clients", shared(3, 3, clients=2), "3 process"),
    ("fewer rounds than are done", resume(rounds=1), "--rounds must be 3"),
    (
        "as many rounds as are done, of which the last was not evaluated",
        resume(rounds=2),
        "--rounds must be 3",
    ),
    ("two folders", resume(out=Path("elsewhere")), "--out"),
    ("another setting", resume(lr=0.5), "lr"),
    ("damaged settings", resume_of("config.json", "{"), "config.json"),
    ("a setting of another version", resume_of("config.json", '{"newer": 1}'), "'newer'"),
    ("the folder of a sweep", resume_of("sweep.json", "{}"), "is a sweep"),
    (
        "checkpoints that cannot be read are not none",
        scratch(unreadable_checkpoints, "checkpoints"),
        "checkpoints cannot be read",
    ),
]
