"""Sphinx settings. Build with: python -m sphinx -W -b html docs docs/_build/html"""

from __future__ import annotations

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent

sys.path[:0] = [str(ROOT), str(DOCS / "_ext")]

# Tutorials run in processes of their own: they import this checkout, find its Python as `python`, and share compiled
# programs, so that a run with another seed does not compile again.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])
)
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(DOCS / "_build" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("FEDVG_CACHE_DIR", str(DOCS / "_build" / "cache"))

import fedvg_jax  # noqa: E402  after the path is set

project = "fedvg_jax"
author = "the fedvg_jax authors"
copyright = "the fedvg_jax authors, MIT licence"
version = release = fedvg_jax.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "cells",
    "docstrings",
    "generated",
    "mathml",
]
exclude_patterns = ["_build", "_ext"]
default_role = "py:obj"
smartquotes = False  # "--flag" stays as it is

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
myst_update_mathjax = False

nb_execution_mode = "off"
suppress_warnings = ["myst-nb.lexer"]  # of pages that are not executed
nb_execution_in_temp = True
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_member_order = "bysource"
# run shows the objects that it takes, which are no arguments in its source
autodoc_preserve_defaults = False
autodoc_typehints_format = "short"
autodoc_type_aliases = {
    name: name for name in ("Hyper", "Tree", "Loop", "Norm", "Rounds", "RoundStep", "Signal")
}
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"fedvg_jax {release}"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_copy_source = False
html_show_sphinx = False
