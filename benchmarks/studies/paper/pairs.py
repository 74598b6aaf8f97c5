"""Every base method dashed and its combination with FedVG solid, in a panel each."""

from __future__ import annotations

from fedvg_jax.study.cells import Study, scenario_text
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing, Style
from fedvg_jax.study.figures.curves import curve, draw_largest_class, limits, metric_label


def integrations(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure per scenario with a panel of learning curves per base method X that also runs as X+fedvg."""
    bases = [method for method in study.methods if _weighs_by_fedvg(study, base.with_fedvg(method))]
    if not bases:
        return "no method runs both alone and with FedVG; a sweep has them with --method X X+fedvg"
    styles, drawn = base.line_styles(study.methods), []
    for i, scenario in enumerate(study.scenarios):
        figure, axes = base.grid(style, len(bases), 0.85)
        rows = []
        for panel, name in zip(axes, bases, strict=True):
            curves = {m: c for m in (name, base.with_fedvg(name)) if (c := curve(study, study.cell(m, scenario)))}
            panel.set_ylim(*limits(study, list(curves.values())))
            for method, line in curves.items():
                marker = "o" if len(line.rounds) == 1 else None  # one point is no line
                look = styles[method] | {"ls": "--" if method == name else "-", "marker": marker}
                panel.plot(line.rounds, line.mean, ms=3, **look)
                panel.fill_between(
                    line.rounds, line.mean - line.std, line.mean + line.std, color=look["color"], alpha=0.12, lw=0
                )
                values = zip(line.rounds, line.mean, line.std, strict=True)
                rows += [(scenario_text(scenario), method, int(r), m, s, line.n) for r, m, s in values]
            base.whole_numbers(panel.xaxis)
            panel.set(xlabel="round", title=base.plain(name))
            base.clean(panel)
            draw_largest_class(study, panel, [scenario])
        figure.supylabel(metric_label(study), fontsize=style.font)
        title = f"Methods alone and with FedVG{', ' + scenario_text(scenario) if scenario else ''}"
        stem = "pairs" if i == 0 else f"pairs-{i + 1}"
        drawn.append(Drawing(stem, title, figure, ("setting", "method", "round", "mean", "std", "n"), rows))
    return drawn


def _weighs_by_fedvg(study: Study, method: str) -> bool:
    """Returns whether the study has runs of a method with FedVG's weights, which --weighting uniform replaces."""
    runs = [run for scenario in study.scenarios for run in study.cell(method, scenario).runs.values()]
    return any("fedvg" in run.weighting for run in runs)
