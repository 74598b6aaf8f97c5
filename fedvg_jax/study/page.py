"""One HTML page with the tables, interactive learning curves, figures, settings and provenance; it needs no network."""

from __future__ import annotations

import base64
import html
import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvg_jax.core.types import one_line
from fedvg_jax.study.cells import Study, majority, scenario_text, value_text
from fedvg_jax.study.figures import CAPTIONS, base, curves
from fedvg_jax.study.figures.base import Drawing
from fedvg_jax.study.markup import Table, hypertext

POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:"
"""What the page may load: nothing but itself. Vega compiles its expressions, which needs 'unsafe-eval'."""

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2127; background: #fff; margin: 2rem auto; max-width: 72rem;
  padding: 0 1.25rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid #d9dde3; }
nav a { margin-right: 1rem; } a { color: #0b5cad; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .8rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th, td { padding: .2rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #eceff3; }
thead th { border-bottom: 1.5px solid #8a93a0; white-space: normal; vertical-align: bottom; }
tbody th, .text { text-align: left; } tbody th { font-weight: 400; } .wide td.text { white-space: normal; }
.note { color: #4b5460; margin: .15rem 0; font-size: .9rem; max-width: 60rem; }
.charts { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { margin: 1.2rem 0; } figure img { width: 100%; max-width: 64rem; height: auto; } figcaption { color: #4b5460; }
details { margin: .6rem 0; } summary { cursor: pointer; font-weight: 600; } code { font-size: .9em; }
"""

DASHES: dict[base.Dashes, list[float]] = dict(
    zip(
        itertools.chain(*base.DASHES),
        ([1, 0], [5, 3], [8, 2, 2, 2], [2, 2], [8, 2, 2, 2, 2, 2], [12, 4]),
        strict=True,
    )
)
"""Matplotlib's line style -> Vega's lengths of dashes and gaps in pixels."""

SCRIPT = """
for (const text of document.querySelectorAll('script[type="application/json"]')) {
  vegaEmbed('#' + text.dataset.chart, JSON.parse(text.textContent),
    {mode: 'vega-lite', renderer: 'svg', actions: {export: true, source: false, compiled: false, editor: false}});
}
"""


def page(
    study: Study,
    tables: Sequence[Table],
    drawn: Sequence[tuple[Drawing, Path]],
    left_out: Mapping[str, str],
    command: str,
    script: str,
) -> str:
    """Returns the page.

    Args:
        study: what is reported.
        tables: in their order.
        drawn: figures with the PNG files of each.
        left_out: figure -> why it is not drawn.
        command: that writes this report again.
        script: JavaScript of Vega, as `bundle` returns it.
    """
    charts = [specification(study, i) for i in range(len(study.scenarios))]
    divisions = "".join(f'<div id="chart-{i}"></div>\n' for i in range(len(charts)))
    data = "".join(_json_script(chart, f"chart-{i}") for i, chart in enumerate(charts))
    title = _text(study.title)
    return "".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{html.escape(POLICY)}">\n',
            '<meta name="viewport" content="width=device-width">\n<link rel="icon" href="data:,">\n',
            f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n",
            f"<p>{_text(summary(study))}</p>\n",
            '<nav><a href="#tables">Tables</a><a href="#curves">Learning curves</a><a href="#figures">Figures</a>',
            '<a href="#settings">Settings</a><a href="#provenance">Provenance</a></nav>\n',
            _notes(study),
            '<h2 id="tables">Tables</h2>\n',
            *(f"<div class=scroll>{hypertext(table)}</div>\n" for table in tables),
            '<h2 id="curves">Learning curves</h2>\n',
            "<p class=note>Means over runs, with bands of one standard deviation. Click a name to show one method,",
            " shift-click for several; drag to move, scroll to zoom, double-click to go back.</p>\n",
            f"<div class=charts>{divisions}</div>\n",
            '<h2 id="figures">Figures</h2>\n',
            # the curves stand above, where they can be zoomed
            *(_figure(drawing, path) for drawing, path in drawn if _stem(drawing) != "curves"),
            *(f"<p class=note>No figure {_text(name)}: {_text(reason)}.</p>\n" for name, reason in left_out.items()),
            '<h2 id="settings">Settings</h2>\n',
            settings(study),
            '<h2 id="provenance">Provenance</h2>\n',
            f"<p>Written by <code>{_text(command)}</code></p>\n",
            provenance(study),
            f"{data}<script>{script}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
        ]
    )


def bundle() -> str:
    """Returns the JavaScript of Vega, Vega-Lite and Vega-Embed; it takes about five seconds."""
    import vl_convert

    make: Any = vl_convert.javascript_bundle  # its stub requires an argument that has a default
    return make().replace("</script", "<\\/script")


def summary(study: Study) -> str:
    """Returns a sentence on the size of the study."""
    count = len(study.runs)
    scenarios = [text for s in study.scenarios if (text := scenario_text(s))]
    where = f" in {len(scenarios)} settings ({'; '.join(scenarios)})" if len(scenarios) > 1 else ""
    return f"{count} runs of {len(study.methods)} methods ({'; '.join(study.methods)}){where}."


def _text(text: str) -> str:
    return html.escape(one_line(text))


def _json_script(value: Any, chart: str) -> str:
    """Returns a script element with JSON, in which no text can end the element."""
    text = json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" data-chart="{chart}">{text}</script>\n'


def _notes(study: Study) -> str:
    return "".join(f"<p class=note>Note: {_text(note)}.</p>\n" for note in study.notes)


def _figure(drawing: Drawing, path: Path) -> str:
    """Returns a figure with its picture inside."""
    data = base64.b64encode(path.read_bytes()).decode()
    title = _text(drawing.title)
    heading = "" if drawing.figure.get_suptitle() else f"{title}. "
    return (
        f'<figure><img alt="{title}" src="data:image/png;base64,{data}">'
        f"<figcaption>{heading}{_text(CAPTIONS[_stem(drawing)])}</figcaption></figure>\n"
    )


def _stem(drawing: Drawing) -> str:
    """Returns the name of a drawing without the number of its group of settings."""
    return re.sub(r"-\d+$", "", drawing.name)


# --- interactive curves


def specification(study: Study, index: int) -> dict[str, Any]:
    """Returns the Vega-Lite specification of one scenario's learning curves.

    Args:
        study: what is reported.
        index: position of the scenario.
    """
    scenario = study.scenarios[index]
    drawn = {m: c for m in study.methods if (c := curves.curve(study, study.cell(m, scenario))) is not None}
    values = [
        {"method": m, "round": int(r), "mean": _rounded(y), "low": _rounded(y - s), "high": _rounded(y + s), "n": c.n}
        for m, c in drawn.items()
        for r, y, s in zip(c.rounds, c.mean, c.std, strict=True)
    ]
    low, high = curves.limits(study, list(drawn.values()))
    layers = _curve_layers(study, list(drawn), [_rounded(low), _rounded(high)])
    shares = [share for m in study.methods if (share := majority(study.cell(m, scenario))) is not None]
    if shares and drawn and low <= shares[0] <= high:
        rule = {"type": "rule", "strokeDash": [2, 3], "color": "#777", "tooltip": "always the largest class"}
        layers.append({"mark": rule, "encoding": {"y": {"datum": _rounded(shares[0])}}})
    title = scenario_text(scenario) or study.title
    return {
        "title": {"text": one_line(title)[:80], "anchor": "start"},
        "width": 380,
        "height": 260,
        "data": {"values": values},
        "layer": layers,
    }


def _curve_layers(study: Study, methods: list[str], limits: list[float]) -> list[dict[str, Any]]:
    """Returns the layers of bands and of lines, whose methods are chosen in the legend.

    Args:
        study: what is reported.
        methods: those that have a curve.
        limits: of the vertical axis.
    """
    looks = base.line_styles(study.methods)
    legend = {"title": None, "labelLimit": 240, "symbolOpacity": 1, "symbolType": "stroke", "symbolSize": 300}
    colour = {
        "field": "method",
        "type": "nominal",
        "scale": {"domain": methods, "range": [looks[m].colour for m in methods]},
        "legend": legend,
    }
    dash = {
        "field": "method",
        "type": "nominal",
        "scale": {"domain": methods, "range": [DASHES[looks[m].dashes] for m in methods]},
        "legend": legend,
    }
    x = {"field": "round", "type": "quantitative", "title": "round", "axis": {"grid": False}}
    scale = {"domain": limits, "clamp": False, "nice": False, "zero": False}
    y = {"type": "quantitative", "title": curves.metric_label(study), "scale": scale}
    names = {"method": "method", "round": "round", "mean": "mean", "low": "mean - deviation", "n": "runs"}
    tooltip = [{"field": field, "title": title} for field, title in names.items()]
    shown = {"param": "method_choice", "value": 1.0}
    return [
        {
            "mark": {"type": "area", "clip": True},
            "encoding": {
                "x": x,
                "y": {"field": "low", **y},
                "y2": {"field": "high"},
                "color": colour,
                "opacity": {"condition": {**shown, "value": 0.13}, "value": 0.0},
            },
        },
        {
            "params": [
                {"name": "method_choice", "select": {"type": "point", "fields": ["method"]}, "bind": "legend"},
                {"name": "zoom", "select": "interval", "bind": "scales"},
            ],
            "mark": {"type": "line", "clip": True, "point": {"size": 22}, "strokeWidth": 2},
            "encoding": {
                "x": x,
                "y": {"field": "mean", **y},
                "color": colour,
                "strokeDash": dash,
                "opacity": {"condition": shown, "value": 0.08},
                "tooltip": tooltip,
            },
        },
    ]


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


# --- settings and provenance


def settings(study: Study) -> str:
    """Returns the settings that all runs share, and the runs with their folders, as elements that open."""
    rows = "".join(
        f"<tr><th>{_text(name)}</th><td class=text>{_text(value_text(value))}</td></tr>\n"
        for name, value in sorted(study.settings.items())
    )
    runs = "".join(
        f"<tr><th>{_text(cell.method)}</th><td class=text>{_text(scenario_text(cell.scenario))}</td>"
        f"<td>{replicate[0]}</td><td>{replicate[1]}</td><td class=text>{_text(run.folder.name)}</td></tr>\n"
        for cell in study.cells.values()
        for replicate, run in sorted(cell.runs.items())
    )
    names = {
        "method": " class=text",
        "setting": " class=text",
        "seed": "",
        "partition seed": "",
        "folder": " class=text",
    }
    head = f"<tr>{''.join(f'<th{kind}>{name}</th>' for name, kind in names.items())}</tr>"
    return (
        "<details><summary>Settings that all runs share</summary><div class=scroll><table class=wide><tbody>\n"
        f"{rows}</tbody></table></div></details>\n"
        f"<details><summary>Runs</summary><div class=scroll><table><thead>{head}</thead><tbody>\n"
        f"{runs}</tbody></table></div></details>\n"
    )


def provenance(study: Study) -> str:
    """Returns a table of the machines, versions and commits of the runs, with the number of runs of each."""
    kinds = Counter(_origin(part) for run in study.runs for part in run.manifest.get("runs", [])[-1:])
    if not kinds:
        return "<p class=note>The runs record no machine and no versions.</p>\n"
    rows = "".join(
        f"<tr><td>{count}</td>{''.join(f'<td class=text>{_text(text)}</td>' for text in kind)}</tr>\n"
        for kind, count in sorted(kinds.items())
    )
    names = ("commit", "versions", "machine", "device")
    head = "<th>runs</th>" + "".join(f"<th class=text>{name}</th>" for name in names)
    return f"<div class=scroll><table class=wide><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table></div>\n"


def _origin(part: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Returns commit, versions, machine and device of one part of a run."""
    git = part.get("git") or {}
    commit = str(git.get("commit", "no checkout"))[:12] + (" with changes" if git.get("changed") else "")
    versions = ", ".join(f"{name} {version}" for name, version in part.get("versions", {}).items())
    machine = f"{part.get('system', '')}, Python {part.get('python', '')}, {part.get('cores', '?')} cores"
    return commit, versions, machine, f"{part.get('devices', 1)} x {part.get('device', '')}"
