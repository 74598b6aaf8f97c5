"""Settings that a run does not use: flags are refused, those of a file or of Python are listed."""

import dataclasses
import functools

import jax
import numpy as np

from fedvg_jax import config
from fedvg_jax.config import SETTINGS, Config, uses
from fedvg_jax.config.declare import Condition, referenced
from fedvg_jax.data import SOURCES

CONDITIONAL = {name: setting.facts.used for name, setting in SETTINGS.items() if setting.facts.used}
VALUES = {
    **{name: list(setting.names) for name, setting in SETTINGS.items() if setting.names},
    "dataset": [*config.DATASETS, "tfds:mnist", "hf:mnist"],
    "weighting": [*config.WEIGHTINGS, "permuted(fedvg)", "samples+fitted"],
    "export_partition": [None, "rows.npz"],
    "local": ["", "^classifier/"],
    "momentum": [0.0, 0.9],
    "keep": [0, 2],
    "tuning.steps": [0, 1],
    "dp.clip": [0.0, 1.0],
    "record": ["", "finetuned_accuracy"],
    "validation.rho": [0.0, 0.5],
}


def with_condition(made: Config, condition: Condition, holds: bool) -> Config:
    """Returns `made` with a value of the deciding setting for which the condition holds, or does not."""
    candidates = (config.apply(made, {condition.setting: value}, "test") for value in VALUES[condition.setting])
    return next(other for other in candidates if condition.holds(other) is holds)


def test_every_conditional_setting_is_used_by_some_runs_and_not_by_others():
    assert len(CONDITIONAL) > 40
    for name, conditions in CONDITIONAL.items():
        made = Config()
        for condition in conditions:
            made = with_condition(made, condition, holds=True)
        assert uses.unused(made, [name]) == []
        for condition in conditions:
            assert uses.unused(with_condition(made, condition, holds=False), [name]) == [name]


def test_models_with_the_departure_server_stats_are_those_with_running_statistics():
    models = [("mlp", "batch"), ("tinycnn", "batch"), ("cnn", "batch"), ("lenet5", "batch"), ("vit_s16", "batch")]
    for model, norm in [*models, ("resnet18", "batch"), ("resnet18", "group")]:
        options = {"norm": norm} if model.startswith("resnet") else {}
        module = referenced(config.MODELS[model].make)(3, **options)
        init = functools.partial(module.init, train=False)
        images = jax.ShapeDtypeStruct((2, 32, 32, 3), "float32")
        variables = jax.eval_shape(init, jax.random.key(0), images, jax.ShapeDtypeStruct((2,), "bool"))
        made = Config(model=model, norm_layers=norm, departures="server-stats")
        assert ("batch_stats" in variables) == (uses.unused(made, ["departures"]) == []), model


def test_data_sets_that_use_image_size_or_splits_are_those_whose_readers_take_them():
    for setting, option in {"image_size": "size", "splits": "splits"}.items():
        takers = {name for name, source in SOURCES.items() if option in source.takes}
        assert takers == {name for name in config.DATASETS if not uses.unused(Config(dataset=name), [setting])}


# --- settings given from Python


def test_settings_from_python_are_converted_as_from_a_file():
    """A dict is converted to a group, an int to a float, a NumPy scalar to its number."""
    made = Config(fedvg={"norm": "l2"}, lr=np.float32(0.5), clients=np.int64(7), alpha=1, lanes=2)
    expected = dataclasses.replace(Config(), fedvg=Config.FedVG(norm="l2"), lr=0.5, clients=7, alpha=1.0, lanes="2")
    assert made == expected and type(made.clients) is int and type(made.alpha) is float
