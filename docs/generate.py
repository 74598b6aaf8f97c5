"""Writes docs/api.md from the docstrings, and the tables of README.md and docs/differentiable.md from data.

The README's table of fidelity is `fedvg_jax.paper.fidelity`; its numbers of the demonstration and of parity are the
files of benchmarks/results.

python docs/generate.py            writes them
python docs/generate.py --check    says whether they are up to date
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
RESULTS = ROOT / "benchmarks" / "results"
MEMORY = RESULTS / "hypergradient_memory.json"
PARITY = RESULTS / "parity.json"
DEMO = RESULTS / "demo.json"

SECTIONS = {
    "Score, weigh, aggregate": (
        "validation_gradients",
        "gradient_norms",
        "inverse_norm_weights",
        "generalised_weights",
        "aggregate",
    ),
    "The Fisher view": ("joint_fisher", "sampled_joint_fisher", "fisher_trace"),
    "Rounds, and slopes through them": ("make_round", "unrolled", "over_rounds", "hypergradient"),
    "Whole runs": ("run", "History", "best_variables", "DivergedError", "Config"),
    "Your own model and weighting": ("linen_task", "nnx_task", "check_task", "check_weighting", "UsageError"),
}
MODULES = {
    "differentiable": ("stack", "most_steps"),
    "weighting": ("samples", "uniform", "fedvg", "mix", "by_scalar", "shares", "everywhere", "with_own_statistics"),
    "terms": ("Term", "alone", "halves", "split"),
    "family": ("generalised", "sharpened"),
    "controls": ("permuted", "inverse_samples", "val_loss", "val_accuracy", "fltrust", "fitted"),
    "signals": ("normed", "validation_gradient", "delta", "fisher", "validation_loss", "validation_accuracy"),
    "executors": ("lanes", "vmapped", "sharded", "looped"),
}
"""Parts that rounds of one's own are made of."""


def api() -> str:
    """The whole of api.md."""
    import fedvg_jax

    told = [name for names in SECTIONS.values() for name in names]
    assert sorted(told) == sorted(fedvg_jax.__all__), "every public name has its place in SECTIONS"
    parts = ["# API reference", "", f"Generated from the docstrings of fedvg_jax {fedvg_jax.__version__}.", ""]
    for title, names in SECTIONS.items():
        parts += [f"## {title}", ""]
        for name in names:
            parts += entry(f"fedvg_jax.{name}", getattr(fedvg_jax, name), "###")
    parts += ["## Parts of a round", ""]
    for module, names in MODULES.items():
        found = importlib.import_module(f"fedvg_jax.{module}")
        for name in names:
            parts += entry(f"fedvg_jax.{module}.{name}", getattr(found, name), "###")
    return "\n".join([*parts, "## Contracts", "", *contracts()]).rstrip() + "\n"


def entry(title: str, thing, level: str) -> list[str]:
    """A heading, the signature, the docstring; of a class its methods too."""
    lines = [f"{level} `{title}`", ""]
    if inspect.isfunction(thing):
        lines += ["```python", f"{thing.__name__}{signature(thing)}", "```", ""]
    lines += markdown(inspect.getdoc(thing) or "")
    if inspect.isclass(thing):
        for name, method in vars(thing).items():
            if inspect.isfunction(method) and not name.startswith("_") and name not in ("count", "index"):
                lines += entry(f"{title}.{name}", method, level + "#")
    return lines


def signature(function) -> str:
    """As it is written in the source, one argument a line where it is long."""
    node = ast.parse(inspect.cleandoc("\n" + inspect.getsource(function))).body[0]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    whole = f"({ast.unparse(node.args)}){returns}"
    if len(whole) < 90:
        return whole
    arguments, depth, current = [], 0, ""
    for letter in ast.unparse(node.args):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            arguments.append(current.strip())
            current = ""
        else:
            current += letter
    return "(\n" + "".join(f"    {a},\n" for a in [*arguments, current.strip()]) + f"){returns}"


def markdown(doc: str) -> list[str]:
    """A docstring: `Args:` and `Raises:` become lists, `Returns:` a paragraph, examples and equations code."""
    lines, out, code = doc.splitlines(), [], False
    section = ""
    for line in lines:
        example = bool(re.match(r"\s*(>>>|\.\.\.)", line))
        if example and not code:
            out += ["```python"]
            code = True
        if code and not line.strip():
            out += ["```"]
            code, section = False, ""
        if code:
            out += [line]
        elif re.fullmatch(r"(Args|Returns|Raises|Source):.*", line):
            name, _, rest = line.partition(":")
            out += [f"**{name}**{rest}", ""]
            section = "" if rest else name
        elif section and line.startswith("    "):
            item = section != "Returns" and re.match(r"    (\w[\w, ]*):(.*)", line)
            indent = "" if section == "Returns" else "  "
            out += [f"- `{item[1]}`:{item[2]}" if item else f"{indent}{line.strip()}"]
        else:
            section = "" if line.strip() else section
            out += [line]
    return [*out, *(["```"] if code else []), ""]


def contracts() -> list[str]:
    """Every class of types.py with its fields."""
    source = ast.parse((ROOT / "fedvg_jax" / "types.py").read_text(encoding="utf-8"))
    out: list[str] = []
    for node in source.body:
        if isinstance(node, ast.ClassDef) and node.name != "UsageError":
            out += [f"### `fedvg_jax.core.types.{node.name}`", "", *markdown(ast.get_docstring(node) or "")]
            out += [*fields(node), ""]
    return out


def fields(node: ast.ClassDef) -> list[str]:
    """`name`: type, and the string below it."""
    out = []
    for field, below in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign):
            said = ""
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                said = ": " + " ".join(below.value.value.split())
            out += [f"- `{field.target.id}` `{ast.unparse(field.annotation)}`{said}"]
    return out


def memory_table() -> str:
    """What a hypergradient through k rounds holds, MiB."""
    result = json.loads(MEMORY.read_text(encoding="utf-8"))
    counts = list(next(iter(result["bytes"].values())))
    rows = [f"| rounds | {' | '.join(counts)} |", "|---" * (len(counts) + 1) + "|"]
    for name, sizes in result["bytes"].items():
        rows += [f"| {name} | " + " | ".join(f"{sizes[c] / 2**20:,.1f}" for c in counts) + " |"]
    return "\n".join(rows)


def fidelity_table() -> str:
    """The README's table of differences between the paper, the published code and the defaults here."""
    from fedvg_jax import config
    from fedvg_jax.paper import fidelity

    defaults = config.flatten(config.Config())
    head = ("", "paper", "published code", "here by default", "published behaviour", "official", "checked")
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in fidelity.DEPARTURES:
        checked = f"{row.paper_evidence}, {row.published_evidence}"
        cells = (row.subject, row.paper, row.published, row.ours, published_behaviour(row, defaults))
        rows.append(f"| {' | '.join((*cells, 'yes' if row.official else '', checked))} |")
    return "\n".join(rows)


def published_behaviour(row, defaults: dict) -> str:
    """The flags of a row, whether they are the default, and the row's reason."""
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in row.settings.items())
    is_default = all(defaults[name] == value for name, value in row.settings.items())
    said = [f"`{flags}`" + (" (default)" if is_default else "")] if flags else []
    return "; ".join(said + [row.reason] * bool(row.reason))


def parity_table() -> str:
    """What `benchmarks/parity.py` measured, by method and round."""
    found = json.loads(PARITY.read_text(encoding="utf-8"))["methods"]
    rounds = max(len(method["rounds"]) for method in found.values())
    head = ["method", "client models, round 1", *(f"round {r + 1}" for r in range(rounds)), "all rounds chained"]
    rows = [f"| {' | '.join([*head, 'weights'])} |", "|---" * (len(head) + 1) + "|"]
    for name, method in found.items():
        of_round = method["rounds"]
        weights = [gap for r in of_round if (gap := r["weights"]) is not None]
        largest = (max(method["client_models"]), *(r["ratio"] for r in of_round), max(r["chained"] for r in of_round))
        cells = [f"`{name}`", *(f"{value:.1e}" for value in largest), f"{max(weights):.1e}" if weights else "-"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def demo_table() -> str:
    """What `python -m benchmarks.demo` measured, with its machine."""
    from benchmarks import demo

    result = json.loads(DEMO.read_text(encoding="utf-8"))
    settings, machine = result["settings"], result["machine"]
    apart = demo.differences(result["accuracy"])
    rows = ["| weights | `--weighting` | test accuracy | FedVG minus these, points (95 %) |", "|---|---|---|---|"]
    for name, runs in result["accuracy"].items():
        gap = apart.get(name)
        said = f"{gap.mean:+.2f} ({gap.low:+.2f} to {gap.high:+.2f})" if gap else ""
        mean = 100 * sum(runs["final"]) / len(runs["final"])
        rows.append(f"| {name} | `{result['weightings'][name]}` | {mean:.2f} % | {said} |")
    about = (
        f"Means over {settings['seeds']} seeds of the final round, at alpha {settings['alpha']:g},"
        f" {'one partition' if settings['partitions'] == 1 else 'a partition each'};"
        f" `{machine['command']}`, {machine['processor']}, {machine['cores']} cores, {machine['date'][:10]}."
    )
    return "\n".join([*rows, "", about])


def with_table(text: str, name: str, table: str) -> str:
    """The page with the table of that name replaced."""
    page, count = re.subn(
        rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", lambda m: f"{m[1]}{table}\n{m[2]}", text, flags=re.S
    )
    assert count == 1, f"the page marks where its table {name} is"
    return page


TABLES = {
    ROOT / "README.md": {"demo": demo_table, "parity": parity_table, "fidelity": fidelity_table},
    DOCS / "differentiable.md": {"memory": memory_table},
}
"""page -> its tables by the name of their markers"""


def pages() -> dict[Path, str]:
    """Every generated page, as it ought to be."""
    found = {DOCS / "api.md": api()}
    for path, tables in TABLES.items():
        text = path.read_text(encoding="utf-8")
        for name, table in tables.items():
            text = with_table(text, name, table())
        found[path] = text
    return found


def main() -> int:
    stale = [p for p, text in pages().items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv:
        print("\n".join(f"{path.relative_to(ROOT)} is out of date; run python docs/generate.py" for path in stale))
        return bool(stale)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
