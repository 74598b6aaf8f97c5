"""Writes docs/api.md from the docstrings, and the table in docs/differentiable.md from its measurement.

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
MEMORY = ROOT / "benchmarks" / "results" / "hypergradient_memory.json"

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
    """A docstring: `Args:` and its like become lists, examples and equations code."""
    lines, out, code = doc.splitlines(), [], False
    section = False
    for line in lines:
        example = bool(re.match(r"\s*(>>>|\.\.\.)", line))
        if example and not code:
            out += ["```python"]
            code = True
        if code and not line.strip():
            out += ["```"]
            code = section = False
        if code:
            out += [line]
        elif re.fullmatch(r"(Args|Returns|Raises|Source):.*", line):
            name, _, rest = line.partition(":")
            out += [f"**{name}**{rest}", ""]
            section = not rest
        elif section and line.startswith("    "):
            item = re.match(r"    ([\w, ]+):(.*)", line)
            out += [f"- `{item[1]}`:{item[2]}" if item else f"  {line.strip()}"]
        else:
            section = section and not line.strip()
            out += [line]
    return [*out, *(["```"] if code else []), ""]


def contracts() -> list[str]:
    """Every class of types.py with its fields."""
    source = ast.parse((ROOT / "fedvg_jax" / "types.py").read_text(encoding="utf-8"))
    out: list[str] = []
    for node in source.body:
        if isinstance(node, ast.ClassDef) and node.name != "UsageError":
            out += [f"### `fedvg_jax.types.{node.name}`", "", *markdown(ast.get_docstring(node) or "")]
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


def with_table(text: str) -> str:
    """The page with its table anew."""
    page, count = re.subn(
        r"(<!-- memory -->\n).*?(<!-- end -->)", lambda m: f"{m[1]}{memory_table()}\n{m[2]}", text, flags=re.S
    )
    assert count == 1, "the page marks where its table is"
    return page


def pages() -> dict[Path, str]:
    """Every generated page, as it ought to be."""
    differentiable = DOCS / "differentiable.md"
    return {DOCS / "api.md": api(), differentiable: with_table(differentiable.read_text(encoding="utf-8"))}


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
