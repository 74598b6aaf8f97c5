"""The settings of a run: `options` declares them, `io` reads them, `checks` refuses what cannot work. No jax."""

from fedvg_jax.config import former as former
from fedvg_jax.config import shorthands as shorthands
from fedvg_jax.config.checks import check, epochs_range
from fedvg_jax.config.io import apply, dotted, flatten, read_toml
from fedvg_jax.config.options import (
    ALGORITHMS,
    MODELS,
    SETTINGS,
    WEIGHTINGS,
    Attack,
    Config,
    Corrupt,
    Elastic,
    FedAvgM,
    FedDyn,
    FedOpt,
    FedProx,
    FedVG,
    Robust,
    Scaffold,
    Tuning,
    Validation,
    block_size,
    cohort_size,
    default_cache_dir,
    method_name,
    num_corrupt,
    registered,
)
from fedvg_jax.config.presets import DATASETS
from fedvg_jax.config.suggestions import suggestion
from fedvg_jax.config.uses import refuse_unused, to_json, unused
from fedvg_jax.config.weighting_grammar import streams
