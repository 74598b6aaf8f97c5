"""What the devices of a compiled round exchange.

    python tests/exchanged.py TARGET CLIENTS

compiles a round of all clients for a target, and prints what it exchanges and the bytes of one model.
"""

import json
import sys
from collections import Counter


def of_round(text):
    """Returns kind -> launches, and kind -> bytes that one device puts in, of a round of a program's text."""
    from benchmarks.targets import hlo
    from fedvg_jax.core import scopes

    launches, size = Counter(), Counter()
    rounds = hlo.loops(hlo.sections(hlo.parse(text)), scopes.ROUNDS)[0]
    for count, kernel in hlo.all_kernels(rounds):
        if kernel.is_collective:
            kind = kernel.opcode.removesuffix("-start")
            launches[kind] += count
            size[kind] += count * (kernel.bytes - hlo.num_bytes(kernel.shape))
    return launches, size


def main(target, clients):
    """Compiles with the environment that plugins without a device need."""
    from benchmarks.targets import devices

    parsed = devices.parse_target(target)
    devices.prepare_environment(parsed)
    from benchmarks.targets import programs
    from fedvg_jax.config import Config
    from fedvg_jax.core import tree

    config = Config(rounds=2, clients=int(clients), join_ratio=1.0, alpha=1.0, min_samples=2)
    sim = programs.simulate_for(config, programs.machine_of(parsed))
    result = of_round(programs.compile_for(sim, parsed.hardware).chunk.as_text())
    print(json.dumps([*result, 4 * tree.size(sim.state.variables.params)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
