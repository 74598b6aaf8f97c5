"""Runs in a notebook: the bar, and the history as the result of a cell."""

import re
import sys
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


def test_html_of_a_history_is_self_contained_and_escapes_every_text():
    hostile = "<script>alert(1)</script>&\"'"
    summary = {f"test_{hostile}": 0.5, "stopped_by": hostile}
    records = [{"round": i, "test_accuracy": i / 2} for i in (1, 2)] + [{"round": 3, "test_accuracy": None}]
    text = fv.History(records, summary, None, Path(f"runs/{hostile}"))._repr_html_()
    assert "<script" not in text and not re.search(r"(href|src|@import|url\(|http)", text)
    assert ET.fromstring(f"<div>{text}</div>").find(".//polyline").get("points") == "200.0,60.0 400.0,0.0"
    texts = [element.text for element in ET.fromstring(f"<div>{text}</div>").iter("text")]
    assert texts == ["0", "1", "0", "2", "round", "test accuracy"]  # both axes with their ends
    assert "<svg" not in fv.History(records[:1], {}, None, None)._repr_html_()
