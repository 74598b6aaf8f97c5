"""The page of a report is complete in itself, escapes every name, and opens without an error or a request."""

import html
import json
import re

import pytest
from support.run_folders import write_json, write_manifest, write_sweep

pytest.importorskip("matplotlib", reason="reports need the report extra")

from fedvg_jax.study import report

HOSTILE = '</script><script>alert(1)</script> & "x" <b>\n'


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    axes = {"method": ["fedavg", "fedvg"], "alpha": [0.05, 0.5], "seed": [0, 1]}
    sweep = write_sweep(
        folder / "s", axes, lambda v: (0.3, 0.5, 0.6 + 0.1 * v["seed"]), title=HOSTILE
    )
    part = {
        "versions": {"jax": "9"},
        "git": {"commit": "a" * 40, "changed": True},
        "device": HOSTILE,
        "devices": 1,
    }
    for run in (sweep / "trials").iterdir():
        manifest = json.loads((run / "manifest.json").read_text())
        write_manifest(run, manifest | {"runs": [part]})
    failed = sweep / "trials" / "method=fedvg,alpha=0.5,seed=1"
    write_json(failed / "failure.json", {"kind": "failed", "round": 0, "reason": HOSTILE})
    return report.write([sweep], figures=["alphas"])


@pytest.fixture(scope="module")
def text(written):
    return written.paths[-1].read_text(encoding="utf-8")


def test_page_holds_tables_curves_figures_settings_and_provenance(written, text):
    for table in written.tables:
        assert f'id="{table.name}">' in text
    assert text.count('src="data:image/png;base64,') == 1
    assert (
        all(line in html.unescape(text.partition("<table")[0]) for line in written.findings)
        and written.findings
    )
    for part in (
        "rounds",
        "jax 9",
        "aaaaaaaaaaaa with changes",
        "failed: ",
        "python -m fedvg_jax.report",
    ):
        assert part in text


def test_page_asks_for_no_file_and_no_address_and_names_cannot_become_elements(text):
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?!data:|\#)[^"'\s>]+""", text)
    assert "url(" not in text and "http-equiv" in text and "default-src &#x27;none&#x27;" in text
    assert "<script" not in text and "<b>\n" not in text
