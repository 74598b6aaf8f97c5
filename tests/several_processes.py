"""Rounds of small federations on one layout of devices and processes, and processes that are started together.

    python tests/several_processes.py PROCESSES PROCESS PORT FILE COHORT

writes the results of every case to FILE, from process 0.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from processes import default_signals

TESTS = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def started_together(commands, folder, num_devices=1, **environment):
    """Starts a process for each command, each with its own log in `folder`, and kills them at the end."""
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(num_devices), "PYTHONPATH": os.pathsep.join(sys.path)}
    started = []
    try:
        with default_signals():
            for number, command in enumerate(commands):
                log = (folder / f"process{number}.log").open("ab")
                started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


PROGRAM = """
import sys
from fedvg_jax.runs import client_memories
client_memories.PIECE_BYTES = 2**20
from fedvg_jax.sim import main
sys.exit(main(sys.argv[1:]))
"""
"""The command line, with pieces of a few rows."""
FLAGS = ["--eval-every", "1", "--clients", "9", "--join-ratio", "0.45", "--local-epochs", "1", "--lr", "0.05"]


def run_processes(folder, name, layout, *words):
    """Runs the command line in (processes, devices of each)."""
    count, devices = layout
    command = [sys.executable, "-c", PROGRAM, *FLAGS, "--cache-dir", str(folder / "cache"), "--devices"]
    command += [str(count * devices), *words, "--resume" if (folder / name).exists() else "--out", str(folder / name)]
    where = ["--distributed", f"localhost:{free_port()}", "--processes", str(count), "--process"]
    commands = [[*command, *where, str(i)] for i in range(count)] if count > 1 else [command]
    with started_together(commands, folder, devices) as started:
        codes = [process.wait(600) for process in started]
    assert codes == count * [0], "\n".join(path.read_text()[-1500:] for path in sorted(folder.glob("*.log")))


def assert_equal_histories(folder, name, expected):
    """The same numbers, to rounding, in the histories of two runs of four rounds."""
    import numpy as np

    one, other = (
        [json.loads(line) for line in (folder / each / "history.jsonl").read_text().splitlines()]
        for each in (name, expected)
    )
    assert len(one) == len(other) == 4
    for mine, its in zip(one, other, strict=True):
        for entry in ("clients", "weights", "scores", "test_loss", "val_loss"):
            np.testing.assert_allclose(mine[entry], its[entry], rtol=2e-5, err_msg=f"{name} {entry}")


RULES = ("samples", "uniform", "inverse_samples", "val_loss", "fedvg", "samples+fedvg")
CASES = {
    **dict.fromkeys(("fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedprox", "elastic"), RULES[-1:]),
    **dict.fromkeys(("scaffold", "feddyn"), RULES[-1:]),
    "fedavg": RULES,
}
"""Algorithm -> weightings: every algorithm, and every weighting."""
HELD = ("fedavg", "scaffold", "feddyn")
"""Algorithms whose rounds also run in cohort blocks."""
BLOCKS = {6: 4, 2: 1}
"""Cohort -> clients of a cohort block."""


def results(executor, num_rounds, cohort_size=6):
    """Returns case -> leaves: states and metrics after the rounds of every case, and an evaluation."""
    import jax
    import numpy as np
    import worlds

    from fedvg_jax.core import processes
    from fedvg_jax.engine import evaluate
    from fedvg_jax.runs import client_memories

    world = worlds.world([11, 1, 5, 0, 2, 8, 3], batch_size=4, cohort_size=cohort_size, local_epochs=1)

    def place(tree):
        return processes.place(jax.tree.map(np.asarray, tree), executor.placement)

    data, outputs = place(world.data()), {}
    for name, rules in CASES.items():
        algorithm = worlds.algorithm(name)
        weightings = [worlds.weighting(rule, algorithm, worlds.TASK, 4) for rule in rules]
        step = _round_step(world, algorithm, worlds.any_of(weightings), executor)
        for block_size in (None, BLOCKS[cohort_size]) if name in HELD else (None,):
            for number, (rule, weighting) in enumerate(zip(rules, weightings, strict=True)):
                if weighting.terms or not block_size:
                    hyper = worlds.hyper(momentum=0.5, lr=0.1) | {"rule": np.int32(number)}
                    plan = {"lanes_together": executor.lanes_together, "block_size": block_size}
                    plan |= {"probe_ratio": 0.5} if name == "elastic" else {}
                    state, metrics = _placed_state(world, algorithm, executor), None
                    for r in range(num_rounds):
                        schedule = world.schedule(r, executor.num_lanes, **plan)
                        state, metrics = step(state, schedule, data, {n: np.asarray(v) for n, v in hyper.items()})
                    stored = client_memories.save(state, len(world.train))
                    outputs[f"{name} {rule} {block_size}"] = stored, metrics._replace(detail={})
    measure = worlds.jit(evaluate.make_evaluate(worlds.TASK, executor), out_shardings=executor.placement)
    outputs["evaluation"] = measure(place(worlds.variables()), data.pool, data.test)
    return {case: [np.asarray(leaf) for leaf in jax.tree.leaves(tree)] for case, tree in outputs.items()}


def _placed_state(world, algorithm, executor):
    """Returns the state before the first round, with memories divided among the devices."""
    import jax
    import numpy as np
    import worlds

    from fedvg_jax.core import processes
    from fedvg_jax.engine import cohort_memories
    from fedvg_jax.runs import client_memories

    state, count = worlds.state(world, algorithm), client_memories.padded(len(world.train), executor.rows)

    def padded(leaf):
        return np.pad(leaf, [(0, count - len(leaf)), *(leaf.ndim - 1) * [(0, 0)]])

    state = jax.tree.map(np.asarray, state)
    state = state._replace(clients=jax.tree.map(padded, state.clients))
    if executor.rows is None:
        return processes.place(state, executor.placement)
    return jax.tree.map(
        lambda sharding, field: processes.place(field, sharding), cohort_memories.placement(executor), state
    )


def _round_step(world, algorithm, weighting, executor):
    import worlds

    from fedvg_jax.engine import federated_round
    from fedvg_jax.runs import programs

    step = federated_round.make_round(
        worlds.TASK, algorithm, weighting, executor, worlds.with_momentum, len(world.train)
    )
    return worlds.jit(step, out_shardings=programs.chunk_placement(executor))


def main(count, index, port, file, cohort_size):
    """Joins the processes and computes the results on all their devices."""
    from fedvg_jax.runs import launch

    if count > 1:
        launch.join(launch.Launch(f"localhost:{port}", count, index), lambda: "lost")
    import jax
    import numpy as np

    from fedvg_jax.engine import executors

    jax.config.update("jax_numpy_dtype_promotion", "strict")
    is_double = jax.local_device_count() == 1
    with jax.enable_x64(is_double):
        executor = executors.sharded(jax.device_count(), 1)
        outputs = results(executor, 3 if is_double else 1, cohort_size)
    if index == 0:
        np.savez(file, **{f"{case}/{i}": leaf for case, leaves in outputs.items() for i, leaf in enumerate(leaves)})
    if count > 1:
        jax.distributed.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), sys.argv[4], int(sys.argv[5]))
