"""The page of a report is complete in itself, escapes every name, and opens without an error or a request."""

import html
import json
import re

import pytest
from support.run_folders import write_json, write_manifest, write_sweep

pytest.importorskip("matplotlib", reason="reports need the report extra")

from fedvg_jax.study import report
from fedvg_jax.study.figures import base

HOSTILE = '</script><script>alert(1)</script> & "x" <b>\n'


def test_the_page_holds_all_parts_asks_for_nothing_and_names_become_no_elements(tmp_path):
    axes = {"method": ["fedavg", "fedvg"], "alpha": [0.05, 0.5], "seed": [0, 1]}
    sweep = write_sweep(tmp_path / "s", axes, lambda v: (0.3, 0.6 + 0.1 * v["seed"]), title=HOSTILE)
    part = {"versions": {"jax": "9"}, "git": {"commit": "a" * 40}, "device": HOSTILE}
    for run in (sweep / "trials").iterdir():
        manifest = json.loads((run / "manifest.json").read_text())
        write_manifest(run, manifest | {"runs": [part]})
    failed = sweep / "trials" / "method=fedvg,alpha=0.5,seed=1"
    write_json(failed / "failure.json", {"kind": "failed", "round": 0, "reason": HOSTILE})
    written = report.write([sweep], "python -m fedvg_jax.report", sweep / "report")
    text = written.paths[-1].read_text(encoding="utf-8")
    assert all(f'id="T_{name}"' in text for name in written.tables if name != "runs")
    assert text.count('src="data:image/png;base64,') == 4
    sentences = written.finding.splitlines()
    assert all(line in html.unescape(text) for line in sentences) and sentences
    for shown in ("versions.jax", "a" * 40, "failed: ", "python -m fedvg_jax.report"):
        assert shown in text
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?!data:|\#)[^"'\s>]+""", text)
    assert "url(" not in text and "default-src &#x27;none&#x27;" in text
    assert "<script" not in text and "<b>" not in text


def test_what_is_wider_than_the_page_scrolls_and_letters_of_pictures_have_9_pixels_or_more(
    tmp_path,
):
    axes = {"method": ["fedavg", "fedvg"], "alpha": [0.05, 0.5], "seed": [0, 1]}
    sweep = write_sweep(tmp_path / "s", axes, lambda v: (0.3, 0.6 + 0.1 * v["seed"]))
    report_of = report.write([sweep], "python -m fedvg_jax.report", sweep / "report")
    text = report_of.page.read_text(encoding="utf-8")
    boxes = "".join(re.findall("<div class=scroll>.*?</div>|<figure>.*?</figure>", text, re.S))
    for wide in ("<table", "<img"):
        assert boxes.count(wide) == text.count(wide) > 2
    assert ".scroll, figure { overflow-x: auto; }" in text
    (least,) = re.findall(r"max-width: max\(100%, (\d+)rem\)", text)
    widths = [int(width) for width in re.findall(r'<img width="(\d+)"', text)]
    letter = (base.FONT - 1) / 72 / base.WIDTH * min(16 * int(least), *widths)
    assert letter >= 9
