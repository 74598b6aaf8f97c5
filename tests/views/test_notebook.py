"""Runs in a notebook: the bar, and the history as the result of a cell."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import fedvg_jax as fv


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
