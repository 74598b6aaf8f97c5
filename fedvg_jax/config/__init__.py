"""The settings of a run: `options`, `methods` and `networks` declare them, `checks` refuses others."""

from fedvg_jax.config.checks import check, refuse_unused, to_json, unused
from fedvg_jax.config.command_line import dotted, read_toml
from fedvg_jax.config.declare import flatten
from fedvg_jax.config.methods import ALGORITHMS, NATIVE, WEIGHTINGS, method_title, streams
from fedvg_jax.config.options import (
    SETTINGS,
    Config,
    client_chunk_size,
    cohort_size,
    epochs_range,
    layered,
    num_corrupt,
)
from fedvg_jax.config.presets import DATASETS, apply, meaning
from fedvg_jax.models.networks import MODELS
