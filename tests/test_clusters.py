"""The scripts and files for clusters: a manifest that Kubernetes accepts, and pods that find each other."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from several_processes import free_port, started_together

ROOT = Path(__file__).parent.parent
MANIFEST = ROOT / "benchmarks" / "kubernetes" / "job.yaml"


def documents():
    """Returns the service and the job."""
    yaml = pytest.importorskip("yaml", reason="reads the manifest")
    return list(yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")))


@pytest.mark.slow
def test_two_pods_compute_one_run(tmp_path):
    """The container's own command in two local processes, with the number that Kubernetes gives each pod."""
    container = documents()[1]["spec"]["template"]["spec"]["containers"][0]
    (script,) = container["args"]
    script = re.sub(r"fedvg-0\.fedvg:\d+", f"localhost:{free_port()}", script).replace("/storage", str(tmp_path))
    script += " --rounds 3 --model mlp"
    commands = [["env", f"JOB_COMPLETION_INDEX={index}", *container["command"], script.strip()] for index in range(2)]
    with started_together(commands, tmp_path, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}") as pods:
        codes = [pod.wait(timeout=300) for pod in pods]
    logs = [(tmp_path / f"process{index}.log").read_text() for index in range(2)]
    assert codes == [0, 0], logs
    lines = (tmp_path / "runs" / "first" / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]
