"""Mistakes about clocks, and about servers that do not wait for all clients."""

import functools

import fedvg_jax as fv
from fedvg_jax import config
from messages import scratch

CLOCK = {"clock.step": 1.0, "model": "linear"}
BUFFERED = CLOCK | {"buffered.size": 3, "buffered.concurrency": 6}

SETTINGS = [
    ({"overselect": 1.5}, "overselect"),
    ({"deadline": 3.0}, "deadline"),
    (CLOCK | {"clock.speeds": "uniform:3,1"}, "clock.speeds"),
    (CLOCK | {"clock.file": "clock.csv"}, "clock.file"),
    ({"clock.file": "nowhere.csv"}, "nowhere.csv"),
    (CLOCK | {"overselect": 3.0}, "overselect"),
    (CLOCK | {"deadline": 0.5}, "deadline"),
    (CLOCK | {"overselect": 1.5, "dp.clip": 1.0, "weighting": "uniform"}, "dp"),
    ({"buffered.size": 3}, "clock"),
    (CLOCK | {"buffered.size": 21}, "buffered.size"),
    (BUFFERED | {"buffered.concurrency": 21}, "buffered.concurrency"),
    (BUFFERED | {"algorithm": "scaffold"}, "buffered.size"),
    (BUFFERED | {"send": "topk:0.1"}, "buffered.size"),
    (BUFFERED | {"local": "^classifier/", "model": "mlp"}, "local"),
    (BUFFERED | {"dp.clip": 1.0, "weighting": "uniform"}, "dp"),
    (BUFFERED | {"dropout": 0.1}, "dropout"),
    (BUFFERED | {"selection": "size"}, "selection"),
    (BUFFERED | {"deadline": 3.0}, "deadline"),
    (BUFFERED | {"overselect": 1.2}, "overselect"),
    (BUFFERED | {"reference": "cohorts"}, "cohorts"),
]
"""Settings that contradict each other, and the name."""

TABLES = {
    "client,step_seconds\n0,1\n": "clients 0..1",
    "client,seconds\n0,1\n1,1\n": "columns client, seconds",
    "client,step_seconds\n0,x\n1,1\n": "clients 0..1",
    "client,step_seconds\n0,-1\n1,1\n": "step_seconds",
}
"""Table of the clock of two clients -> the name."""

CLOCKS = {
    "too short": (fv.Clock([1.0, 2.0]), "step_seconds"),
    "negative": (fv.Clock(-1.0), "step_seconds"),
    "a text": (fv.Clock(["fast"]), "step_seconds"),  # pyright: ignore[reportArgumentType]
    "another type": (3.0, "clock"),
}
"""Argument `clock` -> it, and the name."""

TIMELINES = [
    ({"concurrency": 3}, "concurrency"),
    ({"buffer": 0}, "buffer"),
    ({"updates": 1.5}, "updates"),
    ({"durations": [-1.0, 1.0]}, "client"),
    ({"durations": [[1.0]]}, "durations"),
    ({"durations": lambda client, training: 1.0}, "num_clients"),
]
"""Arguments of a timeline of two clients."""


def simulate(settings, **objects):
    """Returns the call that makes a simulation of these settings."""
    return lambda: fv.simulation(config.apply(fv.Config(), settings, "test"), **objects)


def read(text):
    """Returns the call that reads a clock."""

    def use(path):
        path.write_text(text)
        simulate({"clock.file": path, "clients": 2, "alpha": 10.0})()

    return scratch(use, "clock.csv")


def timeline(arguments):
    """Returns the call that makes a timeline."""
    usual = {"durations": [1.0, 2.0], "concurrency": 2, "buffer": 1, "updates": 1}
    return functools.partial(fv.virtual_time.timeline, **usual | arguments)


CASES = [(str(settings), simulate(settings), name) for settings, name in SETTINGS]
CASES += [(repr(text), read(text), name) for text, name in TABLES.items()]
CASES += [(key, simulate({}, clock=clock), name) for key, (clock, name) in CLOCKS.items()]
CASES += [(f"timeline {given!s:.30}", timeline(given), name) for given, name in TIMELINES]
CASES += [
    ("both clocks", simulate(CLOCK, clock=fv.Clock(1.0)), "clock"),
    ("an update that is not planned", lambda: simulate(BUFFERED)().schedule(1000), "rounds"),
]
