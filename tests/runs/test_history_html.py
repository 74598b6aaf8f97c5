"""A history in notebooks: valid, self-contained HTML of any records, with every text escaped."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import fedvg_jax as fv
from fedvg_jax.runs import history_html


def records(values, metric="accuracy"):
    return [
        {"round": i + 1, **({} if v is None else {f"test_{metric}": v, f"val_{metric}": v / 2})}
        for i, v in enumerate(values)
    ]


def points(svg, part):
    colour = history_html.COLOURS[part]
    (line,) = [e for e in ET.fromstring(svg).iter() if e.tag.endswith("polyline") and e.get("stroke") == colour]
    return [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]


def test_curve_has_a_point_for_every_evaluation_in_the_right_order():
    svg = history_html.curves_svg(records([0.1, None, 0.5, 0.4]))
    (x1, y1), (x3, y3), (x4, y4) = points(svg, "test")
    assert x1 < x3 < x4 and y3 < y4 < y1  # y grows downwards
    assert [p[0] for p in points(svg, "val")] == [x1, x3, x4]
    assert (x3 - history_html.LEFT) / (x1 - history_html.LEFT) == 3


def test_curve_stays_inside_the_picture_and_is_thinned():
    svg = history_html.curves_svg(records([(i * 7 % 100) / 100 for i in range(5000)]))
    drawn = points(svg, "test")
    assert len(drawn) <= history_html.MOST_POINTS
    assert all(0 <= x <= history_html.WIDTH and 0 <= y <= history_html.HEIGHT for x, y in drawn)
    assert drawn[-1][0] == history_html.WIDTH - history_html.RIGHT


def test_losses_and_values_that_are_not_finite_are_drawn_where_they_are_numbers():
    svg = history_html.curves_svg(records([2.0, float("nan"), float("inf"), 1.0], "loss"))
    assert len(points(svg, "test")) == 2 and "loss over rounds" in svg
    assert history_html.curves_svg(records([0.5])) == history_html.curves_svg([]) == ""
    assert len(points(history_html.curves_svg(records([0.5, 0.5])), "val")) == 2


def test_page_is_self_contained_and_escapes_every_text():
    hostile = "<script>alert(1)</script>&\"'"
    summary = {f"test_{hostile}": 0.5, "stopped_by": hostile}
    history = fv.History(records([0.1, 0.2]), summary, None, Path(f"runs/{hostile}"))
    text = history._repr_html_()
    ET.fromstring(f"<div>{text}</div>")
    assert "<script" not in text and not re.search(r"(href|src|@import|url\()", text)
    assert re.findall(r'http[^"]*', text) == ["http://www.w3.org/2000/svg"]
