"""A user's mistake raises UsageError, whose message is one line that names the setting, argument or file."""

import importlib
import pkgutil

import messages
import pytest

from fedvg_jax.core.types import UsageError

AREAS = [module.name for module in pkgutil.iter_modules(messages.__path__)]
CASES = [
    pytest.param(call, name, id=f"{area}: {case}")
    for area in AREAS
    for case, call, name in importlib.import_module(f"messages.{area}").CASES
]


@pytest.mark.parametrize(("call", "name"), CASES)
def test_mistake_is_one_line_that_names_what_is_wrong(call, name):
    with pytest.raises(UsageError) as mistake:
        call()
    message = str(mistake.value)
    assert message and "\n" not in message and name in message
