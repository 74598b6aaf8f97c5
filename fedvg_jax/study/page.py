"""One HTML page with the tables, figures, settings and provenance; it needs no network."""

from __future__ import annotations

import base64
import html
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvg_jax.study.cells import Study, scenario_text, value_text
from fedvg_jax.study.figures import CAPTIONS
from fedvg_jax.study.figures.base import Drawing
from fedvg_jax.study.markup import Column, Entry, Table, hypertext, plain_html

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What the page may load: nothing but itself."""

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
.text { text-align: left; } .wide td.text { white-space: normal; }
.note { color: #4b5460; margin: .15rem 0; font-size: .9rem; max-width: 60rem; }
figure { margin: 1.2rem 0; } figure img { width: 100%; max-width: 64rem; height: auto; } figcaption { color: #4b5460; }
details { margin: .6rem 0; } summary { cursor: pointer; font-weight: 600; } code { font-size: .9em; }
"""

TEMPLATE = string.Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,">
<title>$title</title>
<style>$style</style>
</head>
<body>
<h1>$title</h1>
<p>$summary</p>
<nav><a href="#tables">Tables</a><a href="#figures">Figures</a><a href="#settings">Settings</a>
<a href="#provenance">Provenance</a></nav>
$notes
<h2 id="tables">Tables</h2>
$tables
<h2 id="figures">Figures</h2>
$figures
<h2 id="settings">Settings</h2>
$settings
<h2 id="provenance">Provenance</h2>
<p>Written by <code>$command</code></p>
$provenance
</body>
</html>
""")


def page(
    study: Study,
    tables: Sequence[Table],
    drawn: Sequence[tuple[Drawing, Path]],
    left_out: Mapping[str, str],
    command: str,
) -> str:
    """Returns the page.

    Args:
        study: what is reported.
        tables: in their order.
        drawn: figures with the PNG files of each.
        left_out: figure -> why it is not drawn.
        command: that writes this report again.
    """
    absent = [f"No figure {name}: {reason}." for name, reason in left_out.items()]
    return TEMPLATE.substitute(
        policy=html.escape(POLICY),
        title=plain_html(study.title),
        style=STYLE,
        summary=plain_html(summary(study)),
        notes=_notes(f"Note: {note}." for note in study.notes),
        tables="".join(f"<div class=scroll>{hypertext(table)}</div>\n" for table in tables),
        figures="".join(_figure(drawing, path) for drawing, path in drawn) + _notes(absent),
        settings=settings(study),
        command=plain_html(command),
        provenance=provenance(study),
    )


def summary(study: Study) -> str:
    """Returns a sentence on the size of the study."""
    count = len(study.runs)
    scenarios = [text for s in study.scenarios if (text := scenario_text(s))]
    where = f" in {len(scenarios)} settings ({'; '.join(scenarios)})" if len(scenarios) > 1 else ""
    return f"{count} runs of {len(study.methods)} methods ({'; '.join(study.methods)}){where}."


def _notes(lines: Iterable[str]) -> str:
    return "".join(f"<p class=note>{plain_html(line)}</p>\n" for line in lines)


def _figure(drawing: Drawing, path: Path) -> str:
    """Returns a figure with its picture inside."""
    data = base64.b64encode(path.read_bytes()).decode()
    title = plain_html(drawing.title)
    caption = CAPTIONS[re.sub(r"-\d+$", "", drawing.name)]  # the second of a name has a number
    heading = "" if drawing.figure.get_suptitle() else f"{title}. "
    return (
        f'<figure><img alt="{title}" src="data:image/png;base64,{data}">'
        f"<figcaption>{heading}{plain_html(caption)}</figcaption></figure>\n"
    )


# --- settings and provenance


def settings(study: Study) -> str:
    """Returns the settings that all runs share, and the runs with their folders, as elements that open."""
    shared = [(name, value_text(value)) for name, value in sorted(study.settings.items())]
    runs = [
        (cell.method, scenario_text(cell.scenario), *replicate, run.folder.name)
        for cell in study.cells.values()
        for replicate, run in sorted(cell.runs.items())
    ]
    tables = {
        "Settings that all runs share": _table("shared", ("setting", "value"), shared),
        "Runs": _table("runs", ("method", "setting", "seed", "partition seed", "folder"), runs),
    }
    element = "<details><summary>{}</summary><div class=scroll>{}</div></details>\n"
    return "".join(element.format(title, table) for title, table in tables.items())


def provenance(study: Study) -> str:
    """Returns a table of the machines, versions and commits of the runs, with the number of runs of each."""
    kinds = Counter(_origin(part) for run in study.runs for part in run.manifest.get("runs", [])[-1:])
    if not kinds:
        return "<p class=note>The runs record no machine and no versions.</p>\n"
    rows = [(count, *kind) for kind, count in sorted(kinds.items())]
    table = _table("machines", ("runs", "commit", "versions", "machine", "device"), rows)
    return f'<div class="scroll wide">{table}</div>\n'


def _table(name: str, titles: Sequence[str], rows: Sequence[Sequence[str | int]]) -> str:
    """Returns rows of texts and whole numbers as a table."""
    columns = tuple(Column(title, (title,)) for title in titles)
    entries = [tuple(Entry(str(v), (v,) if isinstance(v, int) else ()) for v in row) for row in rows]
    return hypertext(Table(name, "", columns, tuple(entries)))


def _origin(part: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Returns commit, versions, machine and device of one part of a run."""
    git = part.get("git") or {}
    commit = str(git.get("commit", "no checkout"))[:12] + (" with changes" if git.get("changed") else "")
    versions = ", ".join(f"{name} {version}" for name, version in part.get("versions", {}).items())
    machine = f"{part.get('system', '')}, Python {part.get('python', '')}, {part.get('cores', '?')} cores"
    return commit, versions, machine, f"{part.get('devices', 1)} x {part.get('device', '')}"
