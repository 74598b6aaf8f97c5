"""Flips, zeroes or truncates random bytes of run folders and caches, and counts the survived faults."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.faults.kills import outcome, simulate
from fedvg_jax import config
from fedvg_jax.core.types import SimState, UsageError, Variables
from fedvg_jax.host import files
from fedvg_jax.runs.record import folder as run_folder


def damage(folder: Path, trials: int, rng: random.Random) -> Counter:
    """Returns counts of trials; each damages one to three files of a run folder of six rounds with checkpoints."""
    import jax.numpy as jnp

    counts, state = Counter(), SimState(jnp.int32(0), Variables({"w": jnp.zeros(300)}, {}), {"m": jnp.zeros(3)}, ())
    run = folder / "run"
    settings = config.Config(out=run, rounds=9, checkpoint_every=1, keep=3)
    truth = record(settings, state)
    for trial in range(trials):
        copy = folder / f"trial-{trial}"
        shutil.copytree(run, copy)
        victims = sorted(path for path in copy.rglob("*") if path.is_file() and path.name != files.LOCK)
        kinds = {spoil(rng.choice(victims), rng) for _ in range(rng.randint(1, 3))}
        result, how = resume_damaged(copy, state, truth)
        counts.update([result, how, *kinds])
        shutil.rmtree(copy)
    return counts


@contextlib.contextmanager
def opened(settings: config.Config, state: SimState, logged: list[str]) -> Iterator:
    """Yields the recorder of a run folder, with constant digests of data and partition."""
    from fedvg_jax.runs import starts

    described = starts.Described({}, lambda: {"data": "d", "partition": "p"}, {})
    with starts.open_run_folder(settings, state, described, logged.append) as recorder:
        yield recorder


def record(settings: config.Config, state: SimState) -> list[tuple[SimState, dict]]:
    """Writes six rounds as the loop does, and returns the state and the record of each."""
    import jax

    from fedvg_jax.runs.placement import client_memories

    truth = []
    with opened(settings, state, []) as recorder:
        for number in range(1, 7):
            state = jax.tree.map(lambda x, n=number: x + n, state)._replace(round=state.round + 1)
            truth.append(
                (state, {"round": number, "val_accuracy": 1 / number, "test_accuracy": 1 / number, "test_loss": 1.0})
            )
            recorder.add([truth[-1][1]], state)
            stored = client_memories.save(state, settings.clients)
            recorder.write_checkpoint(stored, (0.0, float(number)))
            recorder.wait()
    return truth


def resume_damaged(run: Path, template: SimState, truth: list) -> tuple[str, str]:
    """Resumes a damaged folder; returns "survived" or "lost", and a description.

    Args:
        run: the damaged run folder.
        template: the state before the first round.
        truth: state and record of every round.
    """
    import jax

    logged: list[str] = []
    try:
        settings = run_folder.settings_to_resume(
            dataclasses.replace(run_folder.read_config(run), out=run, resume=str(run))
        )
        with opened(settings, template, logged) as recorder:
            start = recorder.start
    except UsageError as error:
        return ("survived" if "\n" not in str(error) else "lost"), "refused in one line"
    except Exception as error:
        return "lost", f"{type(error).__name__}: {error}"
    done = len(start.records)
    expected = truth[done - 1][0] if done else template
    same = all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (start.state, expected)), strict=True))
    same = same and start.records == [line for _, line in truth[:done]] and all("\n" not in line for line in logged)
    is_silent = done < len(truth) and not logged
    return ("survived" if same and not is_silent else "lost"), f"resumed from round {done}"


def spoil(path: Path, rng: random.Random) -> str:
    """Damages a file at a random offset; returns the kind of damage."""
    if not path.exists():
        return "removed"
    data = bytearray(path.read_bytes())
    offset = rng.randrange(len(data) + 1)
    kind = rng.choice(["bit flipped", "byte changed", "block zeroed", "truncated", "removed"])
    if kind == "removed":
        path.unlink()
        return kind
    if kind == "truncated":
        data = data[:offset]
    elif offset < len(data):
        flipped = data[offset] ^ 1 << rng.randrange(8)
        data[offset] = {"bit flipped": flipped, "byte changed": rng.randrange(256)}.get(kind, 0)
        if kind == "block zeroed":
            data[offset : offset + 512] = bytes(len(data[offset : offset + 512]))
    path.write_bytes(data)
    return kind


def caches(folder: Path, trials: int, rng: random.Random) -> Counter:
    """Returns counts of trials that damage and reload a partition; then those of `programs`."""
    from fedvg_jax.data.partitions import draw

    counts, y = Counter(), np.arange(400, dtype=np.int32) % 4

    def load():
        return [*itertools.chain(*draw.draw_partition(y, num_clients=5, alpha=1.0, cache_dir=folder / "entries"))]

    intact = [x.copy() for x in load()]
    for _ in range(trials):
        victims = sorted(path for path in (folder / "entries").rglob("*") if path.is_file())
        counts[spoil(rng.choice(victims), rng)] += 1
        try:
            is_right = all(np.array_equal(a, b) for a, b in zip(load(), intact, strict=True))
        except Exception as error:
            is_right = False
            counts[f"{type(error).__name__}: {error}"] += 1
        counts["survived" if is_right else "lost"] += 1
    return counts + programs(folder, min(10, trials), rng)


def programs(folder: Path, trials: int, rng: random.Random) -> Counter:
    """Returns counts of runs with truncated compiled programs, which a kill leaves while jax writes them."""
    counts, cache = Counter(), folder / "cache"
    assert simulate(folder / "undisturbed", cache, 3) == 0
    for trial in range(trials):
        for path in rng.sample(sorted((cache / "xla").glob("*-cache")), 3):
            path.write_bytes(path.read_bytes()[: int(rng.random() * path.stat().st_size)])
        out = folder / f"run-{trial}"
        is_right = simulate(out, cache, 3) == 0 and outcome(out, 3) == outcome(folder / "undisturbed", 3)
        counts["survived" if is_right else "lost"] += 1
        counts["programs truncated"] += 3
    return counts
