"""Runs in a notebook: the bar, the history as the result of a cell, and the interrupt of a real kernel."""

import re
import sys
import time
import types
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import fedvg_jax as fv
from fedvg_jax.views import display, notebook

SETTINGS = "fv.Config(rounds={}, clients=4, alpha=10.0, out={!r}, cache_dir={!r}, eval_every=1)"


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
    monkeypatch.setattr(notebook, "EVERY", 0.0)
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


def output_of(client, code, timeout=240):
    """Runs a cell; returns its outputs and its error, (name, value) or None."""
    outputs, error = [], None

    def hook(message):
        nonlocal error
        kind, content = message["msg_type"], message["content"]
        if kind == "error":
            error = content["ename"], content["evalue"]
        elif kind in ("execute_result", "display_data", "update_display_data"):
            outputs.append(content["data"])
        elif kind == "stream":
            outputs.append({"text/plain": content["text"]})

    client.execute_interactive(code, output_hook=hook, timeout=timeout)
    return outputs, error


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
    out, cache = str(tmp_path / "run"), str(tmp_path / "cache")
    assert output_of(client, "import fedvg_jax as fv")[1] is None
    # the interrupt is sent when the cell has trained three rounds
    client.execute(f"fv.run({SETTINGS.format(100_000, out, cache)}, progress=True)")
    history = Path(out) / "history.jsonl"
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and (not history.exists() or history.read_bytes().count(b"\n") < 3):
        time.sleep(0.1)
    manager.interrupt_kernel()
    error, bars = None, []
    while True:
        message = client.get_iopub_msg(timeout=120)
        kind, content = message["msg_type"], message["content"]
        if kind == "error":
            error = content["ename"], content["evalue"]
        elif kind in ("display_data", "update_display_data"):
            bars.append(content["data"].get("text/html", ""))
        elif kind == "status" and content["execution_state"] == "idle" and error:
            break
    assert error[0] == "KeyboardInterrupt" and f"run folder: {out}" in error[1]
    assert any("<progress" in bar for bar in bars) and "stopped" in [bar for bar in bars if "<progress" in bar][-1]

    done = len(history.read_text().splitlines())
    code = f"""
import dataclasses
stored = fv.History.load({out!r})
config = dataclasses.replace(stored.config, rounds={done} + 2, resume={out!r})
history = fv.run(config)
print(len(stored.records), len(history.records), history.summary["resumed_from"], history.summary["stopped_by"])
history
"""
    outputs, error = output_of(client, code)
    assert error is None
    assert outputs[0]["text/plain"].split() == [str(done), str(done + 2), str(done), "None"]
    assert outputs[-1]["text/html"].startswith("<table>") and "<svg" in outputs[-1]["text/html"]


def test_html_of_a_history_is_self_contained_and_escapes_every_text():
    hostile = "<script>alert(1)</script>&\"'"
    summary = {f"test_{hostile}": 0.5, "stopped_by": hostile}
    records = [{"round": i, "test_accuracy": i / 2} for i in (1, 2)] + [{"round": 3, "test_accuracy": None}]
    text = fv.History(records, summary, None, Path(f"runs/{hostile}"))._repr_html_()
    assert "<script" not in text and not re.search(r"(href|src|@import|url\(|http)", text)
    assert ET.fromstring(f"<div>{text}</div>").find(".//polyline").get("points") == "200.0,60.0 400.0,0.0"
    assert "<svg" not in fv.History(records[:1], {}, None, None)._repr_html_()
