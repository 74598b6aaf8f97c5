"""Allowed values of single settings: names, ranges, and numbers that float32 can hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fedvg_jax.config.population import CORRUPTIONS, PARTITIONS, SPLITS, VALIDATION_SOURCES
from fedvg_jax.config.weighting_grammar import GRANULARITIES, LINKS, NORMS, SCORING_MODES, SIGNALS

BUILT_IN = ("digits", "breast_cancer", "wine", "iris", "literature")
"""Data sets that need no files."""
DATASETS = (
    *BUILT_IN,
    "cifar10",
    "cifar100",
    "stl10",
    "organamnist",
    "dermamnist",
    "tinyimagenet",
    "covid19",
    "npz",
    "encoded",
    "folder",
    "text",
)
TRACKERS = ("tensorboard", "wandb", "mlflow")
"""Names in `track`."""

MODELS = ("mlp", "tinycnn", "cnn", "lenet5", "resnet18", "resnet34", "resnet50", "vit_s16", "vit_b16", "gru")
SEQUENCE_MODELS = ("gru",)
"""Models that give a label to every place of a row, [T, L], and not one to each row."""
STEMS = ("imagenet", "cifar")
NORMALISERS = ("batch", "group")
PIXEL_STATISTICS = ("none", "imagenet", "half")
AUGMENTATIONS = ("none", "flip", "crop", "flip_crop")
ALGORITHMS = (
    "fedavg",
    "fedavgm",
    "fedprox",
    "scaffold",
    "feddyn",
    "elastic",
    "fedadam",
    "fedyogi",
    "fedadagrad",
    "fednova",
)
MIN_SAMPLES_RULES = ("redraw", "top_up")
CONVS = ("auto", "lax", "gemm", "winograd", "planes")
PLANES_MODELS = ("tinycnn", "cnn", "lenet5")
"""Models that support `--conv planes`."""
PRECISIONS = ("default", "highest", "bfloat16")
LR_SCHEDULES = ("constant", "exponential", "cosine")
NONFINITE = ("raise", "skip")
RULES = ("mean", "median", "trimmed_mean", "krum", "clipped_mean")
RECORDS = ("client_accuracy", "client_val_loss", "client_drift", "client_fisher_trace", "client_joint_fisher")
RECORDS += ("confusion", "calibration", "accuracy_by_client")
"""Names in `record`."""
ATTACKS = ("none", "sign_flip", "scaling", "noise")

FLOAT32 = (2.0**-126, (2 - 2.0**-23) * 2.0**127)
"""Smallest and largest normal number of IEEE 754 single precision; XLA flushes smaller ones to 0."""

SINGLE_PRECISION = (
    *("lr", "momentum", "weight_decay", "lr_decay", "fedvg.eps", "fedvg.fit_rate", "fedvg.exponent"),
    *("fedvg.temperature", "fedvg.mix", "fedavgm.momentum", "fedavgm.lr", "fedopt.lr", "fedopt.b1", "fedopt.b2"),
    *("fedopt.eps", "fedprox.mu", "scaffold.eta_g", "feddyn.alpha", "feddyn.clip", "elastic.tau", "elastic.mu"),
    *("robust.clip_norm", "robust.noise", "attack.scale", "tuning.lr"),
)
"""Settings that enter a round as float32 numbers: out of its range they would silently become 0 or infinite."""

NAMES: dict[str, tuple[str, ...]] = {
    "splits": ("all", "official"),
    "model": MODELS,
    "stem": STEMS,
    "norm": NORMALISERS,
    "normalise": PIXEL_STATISTICS,
    "augment": AUGMENTATIONS,
    "algorithm": ALGORITHMS,
    "select": ("shared", "held_out"),
    "min_samples_rule": MIN_SAMPLES_RULES,
    "conv": CONVS,
    "pool": ("auto", "device", "host"),
    "memories": ("auto", "device", "host"),
    "precision": PRECISIONS,
    "fedvg.signal": SIGNALS,
    "fedvg.norm": NORMS,
    "fedvg.layer": ("tensor", "module"),
    "fedvg.stats": ("uniform", "layer"),
    "fedvg.granularity": GRANULARITIES,
    "fedvg.block": ("residual", "stage"),
    "fedvg.mode": SCORING_MODES,
    "fedvg.link": LINKS,
    "lr_schedule": LR_SCHEDULES,
    "nonfinite": NONFINITE,
    "untrained": ("absent", "weighed"),
    "single_rows": ("trained", "skipped"),
    "optimiser": ("sgd", "adam", "adamw"),
    "optimiser_state": ("reset", "kept"),
    "cohorts": ("seeded", "official"),
    "server_stats": ("averaged", "official"),
    "scaffold.steps": ("epochs", "single"),
    "scaffold.memory": ("kept", "lost"),
    "feddyn.regulariser": ("full", "linear"),
    "feddyn.weights": ("uniform", "samples"),
    "feddyn.average": ("always", "once"),
    "fedopt.variant": ("paper", "official", "optax"),
    "elastic.sensitivity": ("output", "official"),
    "elastic.rows": ("all", "rest"),
    "robust.rule": RULES,
    "attack.kind": ATTACKS,
    "partition": PARTITIONS,
    "split": SPLITS,
    "validation.source": VALIDATION_SOURCES,
    "validation.copies": ("official", "none"),
    "validation.classes": ("paper", "all"),
    "validation.imbalance": ("corrected", "official"),
    "corrupt.kind": CORRUPTIONS,
    "export_form": ("parts", "clients"),
}
"""Setting -> its allowed names."""

RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "alpha": (lambda v: 0 < v <= 1e30, "> 0 and at most 1e30; 0.05 is very skewed, 100 almost even"),
    "clients": (lambda v: v >= 1, ">= 1"),
    "join_ratio": (lambda v: 0 < v <= 1, "in (0, 1]"),
    "rounds": (lambda v: v >= 1, ">= 1"),
    "batch_size": (lambda v: v >= 1, ">= 1"),
    "lr": (lambda v: 0 < v < math.inf, "> 0"),
    "seed": (lambda v: 0 <= v < 2**32, "in [0, 2**32)"),
    "partition_seed": (lambda v: 0 <= v < 2**32, "in [0, 2**32)"),
    "max_rows": (lambda v: v >= 0, ">= 0, where 0 is all"),
    "min_samples": (lambda v: v >= 1, ">= 1"),
    "test_ratio": (lambda v: 0 < v < 1, "in (0, 1)"),
    "val_ratio": (lambda v: 0 <= v < 1, "in [0, 1); 0 only with an external D_val"),
    "eval_every": (lambda v: v >= 1, ">= 1"),
    **dict.fromkeys(("checkpoint_every", "keep", "hold"), (lambda v: v >= 0, ">= 0")),
    "lr_decay": (lambda v: 0 < v <= 1, "in (0, 1]"),
    "dropout": (lambda v: 0 <= v < 1, "in [0, 1)"),
    **dict.fromkeys(("momentum", "fedavgm.momentum"), (lambda v: 0 <= v < 1, "in [0, 1)")),
    **dict.fromkeys(("fedopt.b1", "fedopt.b2", "elastic.mu"), (lambda v: 0 <= v < 1, "in [0, 1)")),
    **dict.fromkeys(("weight_decay", "fedprox.mu", "elastic.tau"), (lambda v: 0 <= v < math.inf, ">= 0")),
    **dict.fromkeys(("fedvg.eps", "fedopt.eps", "feddyn.clip"), (lambda v: 0 < v < math.inf, "> 0")),
    **dict.fromkeys(("fedavgm.lr", "fedopt.lr", "scaffold.eta_g"), (lambda v: 0 < v < math.inf, "> 0")),
    "fedvg.exponent": (math.isfinite, "a finite number"),
    "fedvg.temperature": (lambda v: 0 < v < math.inf, "> 0"),
    "fedvg.mix": (lambda v: 0 <= v <= 1, "in [0, 1]"),
    "fedvg.fit_steps": (lambda v: 1 <= v < 2**31, ">= 1 and below 2**31"),
    "fedvg.fit_rate": (lambda v: 0 < v < math.inf, "> 0"),
    "feddyn.alpha": (lambda v: 0 < v < math.inf, "> 0"),
    **dict.fromkeys(("elastic.ratio", "attack.clients"), (lambda v: 0 < v <= 1, "in (0, 1]")),
    "robust.trim": (lambda v: 0 <= v < 0.5, "in [0, 0.5)"),
    "robust.num_kept": (lambda v: v >= 1, ">= 1"),
    "robust.num_bad": (lambda v: v >= 0, ">= 0"),
    "tuning.steps": (lambda v: 0 <= v < 2**31, ">= 0 and below 2**31"),
    **dict.fromkeys(("robust.noise", "attack.scale"), (lambda v: 0 <= v < math.inf, ">= 0")),
    **dict.fromkeys(("robust.clip_norm", "tuning.lr"), (lambda v: 0 < v < math.inf, "> 0")),
    **dict.fromkeys(("classes_per_client", "shards_per_client"), (lambda v: v >= 1, ">= 1")),
    **dict.fromkeys(("validation.clients", "validation.fraction"), (lambda v: 0 < v <= 1, "in (0, 1]")),
    "validation.size": (lambda v: v == 0 or v >= 2, ">= 2, or 0 for all"),
    **dict.fromkeys(("validation.rho", "validation.label_noise"), (lambda v: 0 <= v <= 1, "in [0, 1]")),
    "validation.pixel_noise": (lambda v: 0 <= v < math.inf, ">= 0"),
    **dict.fromkeys(("corrupt.clients", "corrupt.strength"), (lambda v: 0 < v <= 1, "in (0, 1]")),
}
"""Setting -> (whether a value is in the range, the range in words)."""
