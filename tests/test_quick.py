"""The lists of quick laws and of slow files."""

from pathlib import Path

import order
import pytest
from quick import QUICK

TESTS = Path(__file__).parent
PACKAGES = {path.parent.name for path in (TESTS.parent / "fedvg_jax").glob("*/__init__.py")}


@pytest.mark.parametrize("law", QUICK)
def test_a_quick_law_exists(law):
    file, _, name = law.partition("::")
    assert f"def {name or 'test_'}" in (TESTS / file).read_text(encoding="utf-8")


def test_every_tested_package_has_a_quick_law():
    tested = {package for package in PACKAGES if (TESTS / package).is_dir()}
    assert tested <= {law.partition("/")[0] for law in QUICK}


def test_files_that_have_a_place_in_the_order_exist():
    for file in (*order.SLOWEST, *(file for files in order.TOGETHER for file in files)):
        assert (TESTS / file).is_file(), file
    assert order.rank("core/test_tree.py") > order.rank("engine/test_untrained.py") == 0
