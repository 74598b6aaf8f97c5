"""Runs in a notebook: the bar, the history as the result of a cell, and the interrupt of a real kernel."""

import re
import sys
import time
import types
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import fedvg_jax as fv
from fedvg_jax.views import display


@pytest.fixture
def shown(monkeypatch):
    """The states of the one output of a cell, from the first to the last."""
    states = []

    class Handle:
        def update(self, state):
            states.append(state)

    module = types.ModuleType("IPython.display")
    module.HTML = str
    module.display = lambda state, display_id: states.append(state) or Handle()
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(display, "EVERY", 0.0)
    return states


def test_bar_shows_rounds_and_metric(shown):
    console = types.SimpleNamespace(is_jupyter=True)
    with display.round_progress(console, 4) as show:
        show([{"round": 1}])
        show([{"round": 2, "test_accuracy": 0.5, "test_loss": 1.0}])
        show([{"round": 4}])
    assert [state.count('max="4"') for state in shown] == [1] * 5
    assert "round 0/4" in shown[0] and "compiling" in shown[0]
    assert 'value="2"' in shown[2] and "test accuracy 50.0%" in shown[2]
    assert "round 4/4" in shown[-1] and "stopped" not in shown[-1]


def test_bar_of_a_stopped_run_says_so(shown):
    def stopped_run():
        with display.round_progress(types.SimpleNamespace(is_jupyter=True), 9) as show:
            show([{"round": 3}])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped_run()
    assert "round 3/9" in shown[-1] and "stopped" in shown[-1]


@pytest.fixture
def kernel(tmp_path):
    manager_module = pytest.importorskip("jupyter_client.manager", reason="needs a notebook kernel")
    pytest.importorskip("ipykernel", reason="needs a notebook kernel")
    manager = manager_module.KernelManager(kernel_name="python3")
    manager.kernel_spec.argv[0] = sys.executable
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=120)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


@pytest.mark.slow
def test_interrupt_of_a_kernel_saves_the_run_which_the_next_cell_resumes(kernel, tmp_path):
    manager, client = kernel
    out, history = tmp_path / "run", tmp_path / "run" / "history.jsonl"
    config = f"fv.Config(rounds=100_000, clients=4, alpha=10.0, out={str(out)!r}, eval_every=1)"
    client.execute(f"import fedvg_jax as fv\nfv.run({config}, progress=True)")
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and (not history.exists() or history.read_bytes().count(b"\n") < 3):
        time.sleep(0.1)
    manager.interrupt_kernel()
    error, bars, state = "", [], "busy"
    while not error or state != "idle":  # until then the kernel refuses the next cell
        message = client.get_iopub_msg(timeout=120)
        if message["msg_type"] == "error":
            error = message["content"]["evalue"]
        elif message["msg_type"] == "status":
            state = message["content"]["execution_state"]
        elif message["msg_type"] in ("display_data", "update_display_data"):
            bars.append(message["content"]["data"].get("text/html", ""))
    assert f"run folder: {out}" in error and "stopped" in [bar for bar in bars if "<progress" in bar][-1]
    done = len(history.read_text().splitlines())
    stored = f"fv.History.load({str(out)!r}).config"
    changes = f"rounds={done + 2}, resume={str(out)!r}"
    code = f"import dataclasses\nfv.run(dataclasses.replace({stored}, {changes}))"
    client.execute_interactive(code, timeout=240)
    assert len(fv.History.load(out).records) == done + 2


def test_html_of_a_history_is_self_contained_and_escapes_every_text():
    hostile = "<script>alert(1)</script>&\"'"
    summary = {f"test_{hostile}": 0.5, "stopped_by": hostile}
    records = [{"round": i, "test_accuracy": i / 2} for i in (1, 2)] + [{"round": 3, "test_accuracy": None}]
    text = fv.History(records, summary, None, Path(f"runs/{hostile}"))._repr_html_()
    assert "<script" not in text and not re.search(r"(href|src|@import|url\(|http)", text)
    assert ET.fromstring(f"<div>{text}</div>").find(".//polyline").get("points") == "200.0,60.0 400.0,0.0"
    assert "<svg" not in fv.History(records[:1], {}, None, None)._repr_html_()
