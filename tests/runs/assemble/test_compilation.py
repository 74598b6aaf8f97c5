"""The cache of compiled programs."""

import os
import subprocess
import sys

DAMAGED = """
import sys
from pathlib import Path
import jax
from fedvg_jax.runs.assemble import compilation

folder, lines = Path(sys.argv[1]), []
compilation.use_cache(folder)

def compile_once():
    with compilation.announced(folder, "program", lines.append):
        jax.jit(lambda x: x * 2 + 1).lower(1.0).compile()
    return {path: path.read_bytes() for path in folder.glob("xla/*-cache")}

(path, whole), = compile_once().items()
path.write_bytes(whole[:20])
assert compile_once().keys() == {path} and len(path.read_bytes()) > 20 and "replaced" in lines[0], lines
assert compile_once().keys() == {path} and len(lines) == 1, lines
"""


def test_a_damaged_program_in_the_cache_is_replaced_and_said_once(tmp_path):
    command, env = [sys.executable, "-W", "error:Error reading", "-c", DAMAGED, str(tmp_path)], dict(os.environ)
    env.pop("JAX_COMPILATION_CACHE_DIR", None)
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
