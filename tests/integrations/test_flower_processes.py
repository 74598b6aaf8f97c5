"""The example of ten PyTorch clients in Flower's own processes: a simulation, and clients on Flower's transport."""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

for package, extra in {"flwr": "flower", "ray": "flower, and flwr[simulation]", "torch": "torch"}.items():
    pytest.importorskip(package, reason=f"needs the extra {extra}")

ROOT = Path(__file__).parent.parent.parent
IN_CONFIG_FILE = importlib.util.find_spec("flwr.cli.flower_config") is not None
"""Whether this Flower has its connections in a file of the user, and one address for all of its services."""

FEDERATIONS = """
[tool.flwr.federations.simulation]
options.num-supernodes = 10

[tool.flwr.federations.deployment]
address = "127.0.0.1:{control}"
insecure = true
"""
"""What an earlier Flower reads from pyproject.toml."""


@pytest.fixture
def app(tmp_path):
    """Folder of a copy of the example."""
    return Path(shutil.copytree(ROOT / "examples" / "flower_digits", tmp_path / "app"))


@pytest.fixture
def environment(tmp_path):
    """Environment of Flower's processes: they write below the test's folder and use the packages of this one."""
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }


def free_ports(count):
    """Returns ports that nothing listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def running(command, environment, log):
    """Runs a command in a group of its own, which ends with the block."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_for(port, process, log):
    """Returns when something listens on a port; fails if the process ends before."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    pytest.fail(f"nothing listens on port {port}: {log.read_text()}")


def connect(app, environment, control):
    """Writes Flower's connections, to a SuperLink whose control service has a port."""
    if IN_CONFIG_FILE:
        home = Path(environment["FLWR_HOME"])
        home.mkdir(exist_ok=True)
        lines = ["[superlink]", 'default = "deployment"']
        for name in ("simulation", "deployment"):
            lines += [f"[superlink.{name}]", f'address = "127.0.0.1:{control}"', "insecure = true"]
        (home / "config.toml").write_text("\n".join(lines) + "\n")
    else:
        with (app / "pyproject.toml").open("a") as file:
            file.write(FEDERATIONS.format(control=control))


def flwr_run(app, environment, connection, results, num_supernodes=None, **settings):
    """Runs the app, waits for its end, and returns what the server wrote."""
    values = {"results": str(results), **settings}
    overrides = " ".join(f"{name.replace('_', '-')}={json.dumps(value)}" for name, value in values.items())
    command = ["flwr", "run", str(app), connection, "--stream", "--run-config", overrides]
    if num_supernodes and IN_CONFIG_FILE:
        command += ["--federation-config", f"num-supernodes={num_supernodes}"]
    log = results.with_suffix(".log")
    with running(command, environment, log) as process:
        process.wait(3600)
    assert results.exists(), log.read_text()
    return json.loads(results.read_text())


@contextlib.contextmanager
def superlink(app, environment, folder, *, simulation=False):
    """Runs Flower's server; yields the port that clients connect to."""
    control, fleet, services = free_ports(3)
    command = ["flower-superlink", "--insecure", *(["--simulation"] if simulation else [])]
    if IN_CONFIG_FILE:
        control = fleet
        command += ["--host", "127.0.0.1", "--port", str(fleet)]
    else:
        command += ["--control-api-address", f"127.0.0.1:{control}", "--fleet-api-address", f"127.0.0.1:{fleet}"]
        command += ["--serverappio-api-address", f"127.0.0.1:{services}"]
    connect(app, environment, control)
    log = folder / "superlink.log"
    with running(command, environment, log) as process:
        wait_for(control, process, log)
        yield fleet


@contextlib.contextmanager
def supernode(environment, folder, fleet, partition):
    """Runs a client in a process of its own, with one partition of the data."""
    (port,) = free_ports(1)
    service = ["--port", str(port)] if IN_CONFIG_FILE else ["--clientappio-api-address", f"127.0.0.1:{port}"]
    command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{fleet}", *service]
    log = folder / f"supernode{partition}.log"
    with running([*command, "--node-config", f"partition-id={partition}"], environment, log):
        yield


def test_ten_clients_on_digits_in_a_simulation(app, environment, tmp_path):
    with contextlib.ExitStack() as stack:
        if IN_CONFIG_FILE:
            stack.enter_context(superlink(app, environment, tmp_path, simulation=True))
        else:
            connect(app, environment, 0)
        results = {
            name: flwr_run(
                app, environment, "simulation", tmp_path / f"{name}.json", 10, strategy=name, num_server_rounds=5
            )
            for name in ("fedvg", "fedavg")
        }
    for strategy, result in results.items():
        print(strategy, [round(accuracy, 3) for accuracy in result["accuracy"]])
        assert len(result["accuracy"]) == 6 and result["accuracy"][0] < 0.2 and result["accuracy"][-1] > 0.6
    weights = np.array(results["fedvg"]["weights"])
    assert weights.shape == (5, 10) and np.allclose(weights.sum(1), 1, atol=1e-5) and weights.std() > 0.001


def test_two_client_processes_on_the_transport_of_flower(app, environment, tmp_path):
    with superlink(app, environment, tmp_path) as fleet, contextlib.ExitStack() as stack:
        for partition in range(2):
            stack.enter_context(supernode(environment, tmp_path, fleet, partition))
        result = flwr_run(
            app, environment, "deployment", tmp_path / "results.json", num_clients=2, num_server_rounds=3, alpha=1.0
        )
    assert len(result["accuracy"]) == 4 and result["accuracy"][-1] > 0.5
    assert np.array(result["weights"]).shape == (3, 2)
