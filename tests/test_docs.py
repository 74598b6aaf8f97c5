"""The documentation names what exists: links, public names, options, keys of the run folder; its code runs."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from support.cases import naming

import fedvg_jax
from benchmarks import table as tables_of_pages
from benchmarks.pages import pieces
from fedvg_jax import report
from fedvg_jax.config import Config, method_title
from fedvg_jax.runs.record import folder

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"

MADE = re.compile("docs/(_|reference/api/|studies/)")
WRITTEN = [README, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/README.md"]
WRITTEN += sorted(page for page in DOCS.rglob("*.md") if not MADE.search(str(page)))
WRITTEN += sorted((ROOT / "benchmarks" / "results").rglob("README.md"))
"""Pages that are written by hand, tables aside."""


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def code_of(page: Path) -> str:
    """All Python of a page."""
    return "\n".join(re.findall(r"^```python(?: run)?\n(.*?)^```", text_of(page), re.S | re.M))


def test_every_link_of_a_page_resolves():
    for page in WRITTEN:
        with naming(page.name):
            prose = re.sub(r"^```.*?^```", "", text_of(page), flags=re.S | re.M)
            base = ROOT if page == README else page.parent
            for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
                assert re.match(r"https?://", link) or (base / link).exists(), link


def test_generated_parts_of_pages_are_up_to_date_and_every_marker_has_a_piece():
    pytest.importorskip("scipy", reason="reports need the report extra")
    texts = pieces.pieces()
    for path, tables in tables_of_pages.pages(texts).items():
        text = text_of(path)
        assert tables_of_pages.replace_tables(text, tables) == text, (
            f"{path.name}: python -m benchmarks.table"
        )
    markers = re.findall(r"<!-- (\S+): begin -->", "\n".join(map(text_of, WRITTEN)))
    assert {*markers} - {"one_round"} == texts.keys()


@pytest.mark.parametrize(
    "page", [README, DOCS / "concepts" / "round.md"], ids=lambda path: path.name
)
def test_the_round_of_a_page_is_that_of_the_example_and_can_be_pasted(page):
    (shown,) = re.findall(r"<!-- one_round: begin -->\n```python\n(.*?)\n```", text_of(page), re.S)
    text = text_of(ROOT / "examples" / "one_round.py")
    _, _, body = shown.rpartition("\n\n\n")
    assert body in re.sub(
        r'    """Returns the global model after a round\..*?"""\n\n', "", text, count=1, flags=re.S
    )
    names = {}
    exec(shown, names)
    theta, batch = {"w": jnp.zeros(2)}, jnp.ones((3, 1, 4, 2))
    after = names["federated_round"](
        lambda theta, x: ((x @ theta["w"] - 1) ** 2).mean(), theta, 0.1, batch, batch[0]
    )
    assert after["w"].shape == (2,) and (after["w"] > 0).all()


def test_a_page_names_only_what_exists():
    for page in WRITTEN:
        if page.name == "CHANGELOG.md":
            continue
        with naming(page.name):
            text = text_of(page)
            for path in re.findall(r"\bfv\.(\w+(?:\.\w+)*)", text):
                first, *rest = path.split(".")
                assert first in fedvg_jax.__all__, f"fv.{path}"
                thing = getattr(fedvg_jax, first)
                for name in rest:
                    thing = getattr(thing, name)
            today = "\n".join(line for line in text.splitlines() if "at commit " not in line)
            for path in re.findall(r"python -m (fedvg_jax\.\w+|benchmarks(?:\.\w+)*)", today):
                place = ROOT / path.replace(".", "/")
                assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), path


def test_every_extra_is_in_the_table_of_the_page_on_installing():
    page = text_of(DOCS / "install.md")
    named = re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (`[^|]*)\|", page, re.M)))
    named = {re.sub(r".*\[(\w+)\].*", r"\1", name) for name in named}
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    assert {*project["optional-dependencies"]} <= named


def test_the_page_on_privacy_says_what_the_server_sees_for_every_weighting():
    page = text_of(DOCS / "how_to" / "privacy.md")
    rows = dict(re.findall(r"^\| the server, for ([^|]*) \| ([^|]*) \|", page, re.M))
    named = {sees: {*re.findall(r"`(\w+)`", names)} for names, sees in rows.items()}
    (of_rows,) = (names for sees, names in named.items() if "D_\\mathrm{val}" in sees)
    entries = fedvg_jax.weightings.BY_NAME
    assert of_rows == {name for name, entry in entries.items() if entry.reads_rows}
    assert set.union(*named.values()) == {*entries} - {"uniform"}


def test_the_first_page_names_methods_as_commands_do():
    page = text_of(DOCS / "index.md")
    methods = re.findall(r"--method ([\w+ ]+) --", page)[0].split()
    (answer,) = re.findall(r"^> (.*)", page, re.M)
    subjects = re.findall(r"([^ ]+) is (?:ahead of|behind) FedAvg", answer)
    assert {*subjects} == {method_title(name) for name in methods} - {"FedAvg"}


def test_settings_that_may_change_when_a_run_resumes_are_listed():
    page = text_of(DOCS / "tutorials" / "resuming.md")
    (listed,) = re.findall(r"may change when a run resumes:\n\n(.*?)\n\n", page, re.S)
    assert set(re.findall(r"`([\w.]+)`", listed)) == folder.RESUMABLE_CHANGES


SNIPPETS = re.compile(r"^```(python|sh) run\n(.*?)^```", re.S | re.M)

RUN = [page for page in WRITTEN if SNIPPETS.search(text_of(page))]
"""Pages whose snippets stand for a notebook."""

LONG = {
    "adapters",
    "compare_methods",
    "compression",
    "hypergradients",
    "own_algorithm",
    "own_model",
    "own_weighting",
}
LONG |= {"privacy", "resuming", "sixty_seconds", "slow_clients", "sweeps"}
"""Those that train for more than a few seconds."""


@pytest.mark.parametrize(
    "page", [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] * (p.stem in LONG)) for p in RUN]
)
def test_the_snippets_of_a_page_run_one_after_the_other(page, monkeypatch, tmp_path):
    """In an empty folder, with the settings of a user's process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    names = {}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for language, code in SNIPPETS.findall(text_of(page)):
            if language == "python":
                exec(code, names)
            else:
                subprocess.run(
                    code.replace("python ", f"{sys.executable} "), shell=True, check=True
                )


@pytest.mark.slow
@pytest.mark.parametrize(("page", "package"), [("flower", "flwr"), ("pytorch", "torch")])
def test_the_python_of_a_page_on_an_integration_runs(page, package):
    for needed in ("torch", package):
        pytest.importorskip(needed, reason=f"the page needs {needed}")
    names = {}
    exec(code_of(DOCS / "integrations" / f"{page}.md"), names)
    if page == "pytorch":
        assert min(names["accuracy_of_fedavg"], names["accuracy_of_fedvg"]) > 0.8


PAGES = [README, DOCS / "how_to" / "partitions.md", DOCS / "how_to" / "bounds.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_python_of_a_page_that_the_site_does_not_execute_runs(page, monkeypatch, tmp_path):
    """With two rounds and two seeds where it has more. It may write below the working folder."""
    monkeypatch.chdir(tmp_path)
    code = re.sub(r"0:\d+", "0:2", code_of(page))
    names = {}
    exec(re.sub(r"rounds=\d+", "rounds=2", code), names)
    assert names["history"].summary["rounds"] == len(names["history"].records)


NUMBER = re.compile(r"-?\d+\.\d+")


def assert_says(printed, shown):
    """Asserts that a line of the output is the answer of a page, up to a point: other machines round differently."""
    (said,) = (line for line in printed.splitlines() if "of FedAvg by" in line)
    assert NUMBER.sub("", said) == NUMBER.sub("", shown)
    values = zip(NUMBER.findall(said), NUMBER.findall(shown), strict=True)
    assert all(abs(float(ours) - float(theirs)) < 1 for ours, theirs in values)


@pytest.mark.slow
def test_the_readme_s_comparison_ends_with_the_answer_that_it_shows(monkeypatch, tmp_path, capsys):
    pytest.importorskip("scipy", reason="reports need the report extra")
    text = text_of(README)
    (shown,) = re.findall(r"^```text\n(.*?)\n```", text, re.S | re.M)
    monkeypatch.chdir(tmp_path)
    exec(re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)[0], {})
    assert report.main(["runs/mine"]) == 0
    assert_says(capsys.readouterr().out, shown)


def test_every_key_of_a_run_folder_is_described(tmp_path):
    page = text_of(DOCS / "reference" / "run_folder.md")
    described = re.findall(r"`([^`]+)`", "".join(re.findall(r"^\| (`[^|]*)\|", page, re.M)))
    named = set(re.findall(r"`([^`\s]+)`", page))
    out = tmp_path / "run"
    history = fedvg_jax.run(Config(rounds=2, clients=6, dropout=0.5, out=out))
    manifest = json.loads((out / "manifest.json").read_text())
    partition = json.loads((out / "partition.json").read_text())
    keys = {*history.summary, *partition, *manifest, *manifest["runs"][0]}
    for record in history.records:
        keys |= {re.sub("^(val|test)_(?!accuracy_)", "", key) for key in record}
    assert keys <= {*described}, sorted(keys - {*described})
    assert {path.name for path in out.iterdir() if path.suffix} <= named
