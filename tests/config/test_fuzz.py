"""Any file, flag or argument works, or is a UsageError of one line."""

import contextlib
import io
import json
import math

import pytest
from hypothesis import example, given, settings, strategies as st

import fedvg_jax as fv
from fedvg_jax import commands, config
from fedvg_jax.runs.record import folder as run_folder

NAMES = sorted(config.flatten(fv.Config()))
EXTREME = st.sampled_from(
    [0, -1, 1, 2**31, 2**63, 10**400, 0.0, -0.0, 1e-320, 1e308, math.nan, math.inf, -math.inf, ""]
)
VALUES = (
    EXTREME
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.lists(st.integers(), max_size=2)
)


@contextlib.contextmanager
def allow_usage_error():
    """Accepts a UsageError of one line."""
    try:
        yield
    except fv.UsageError as error:
        assert "\n" not in str(error).strip() and str(error)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
@example(b"alpha = " + b"9" * 5000)  # more digits than Python converts
@example(b"alpha = " + b"9" * 400)
@example(b"a = " + b"[" * 5000)
def test_any_bytes_as_a_config_file(folder, content):
    path = folder / "config.toml"
    path.write_bytes(content)
    with allow_usage_error():
        config.check(config.apply(fv.Config(), config.read_toml(path), "file"))


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, min_size=1, max_size=2))
@example({"lr": 10**400})
@example({"rounds": 10**400})
@example({"lanes": "9" * 5000})
@example({"local_epochs": "9" * 5000})
def test_any_value_of_any_setting(settings):
    with allow_usage_error():
        made = config.check(config.apply(fv.Config(), settings, "test"))
        assert run_folder.config_from_json(
            json.loads(json.dumps(config.to_json(made))), "json"
        ) == made or "nan" in str(made)


FLAGS = st.sampled_from(
    [f"--{name.replace('_', '-')}" for name in NAMES] + ["--method", "--fidelity", "--", "-x"]
)


@settings(max_examples=25)
@given(st.lists(FLAGS | VALUES.map(str), max_size=4))
def test_any_command_line(argv):
    with allow_usage_error(), contextlib.redirect_stdout(io.StringIO()):
        assert isinstance(
            commands.parse([word for word in argv if word not in ("-h", "--help")]), fv.Config
        )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), inner)
    ),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), JSON))
def test_any_json_as_the_settings_of_a_run(value):
    with allow_usage_error():
        config.check(run_folder.config_from_json(value, "config.json"))
