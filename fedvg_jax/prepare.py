"""`python -m fedvg_jax.prepare NAME --data-dir DIR`, or `fedvg prepare`: reads, checks, caches and shows a data set.

Prints the rows of every class and the sizes of the clients.

NAME is a data set as in `--dataset` of `python -m fedvg_jax.sim`. A run's options of data and partition may follow:
--alpha, --clients, --partition, --image-size, --config FILE, ... Others, such as --lr or --corrupt.kind, are refused.

`--download` first fetches the published files of cifar10, cifar100, stl10, tinyimagenet, organamnist and dermamnist,
or a set hf:OWNER/NAME of the Hugging Face hub. They go to --data-dir, or to the cache, where runs look, too.

`python -m fedvg_jax.prepare features --dataset NAME --model M --out FILE.npz` writes the features of every row, the
input of the model's last layer, with labels and class names.
`--dataset npz --data-dir FILE.npz --model linear` trains on them. Its options:

  --init FILE          weights of the model, or the folder of a run; without it they are random
  --image-size S       size that images are resized to for the model, e.g. 96 or 96x128
  --normalise NAME     pixels as the weights expect them
  --float32            features in 32 bits; the default is 16
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # ends the process amid its imports, without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import dataclasses
from collections.abc import Sequence

from fedvg_jax import commands, config as configs
from fedvg_jax.__main__ import run_and_exit
from fedvg_jax.config import Config, checks, command_line, options, presets
from fedvg_jax.core.types import UsageError
from fedvg_jax.views import output

PROG = "python -m fedvg_jax.prepare"
DOWNLOAD = "--download"

OF_PREPARE = (
    *options.OF_DATA[1:], "config", "fidelity", "clients", "partition", "partition_seed", "seed", "alpha",
    "min_samples", "min_samples_rule", "holdout", "test_ratio", "val_ratio", "validation.source", "validation.data_dir",
)  # fmt: skip
"""Settings of `prepare NAME`."""

OF_FEATURES = (
    *options.OF_DATA, "out", "model", "init", "norm_layers", "conv", "normalise", "precision", "seed",
)  # fmt: skip
"""Settings of `prepare features`."""

_SETS = f"{', '.join(presets.DATASETS)}, tfds:NAME or hf:FOLDER"


def main(argv: Sequence[str]) -> int:
    """Runs the command line.

    Args:
        argv: the arguments.

    Returns:
        The exit code: 0; 2 for an error, described in one line; 130 after Ctrl-C.
    """
    if "features" in argv[:1]:
        purpose = (
            "Writes the features of every row, the input of a model's last layer, as a data set."
        )
        example = f"  {PROG} features --dataset digits --model mlp --out FILE.npz [--float32]"
        if commands.print_help(argv, f"{PROG} features", purpose, example, OF_FEATURES):
            return 0
        return commands.guarded(lambda: write_features(argv[1:]))
    purpose = (
        "Reads, checks, caches and shows a data set, and divides it among clients; --download first fetches its"
        f" published files. NAME is {_SETS}."
    )
    examples = f"  {PROG} digits --alpha 0.1\n  {PROG} cifar10 {DOWNLOAD}"
    if commands.print_help(argv, f"{PROG} NAME", purpose, examples, OF_PREPARE):
        return 0
    flags = [word for word in argv if word != DOWNLOAD]
    return commands.guarded(lambda: prepare(parse(flags), DOWNLOAD in argv))


def parse(argv: Sequence[str]) -> Config:
    """Returns the settings of a command line.

    Raises:
        UsageError: it has no name of a data set, a setting that cannot work, or one that prepare does not use.
    """
    if not argv or argv[0].startswith("-"):
        raise UsageError(f"prepare needs a data set first: {_SETS}")
    name, *flags = argv
    command_line.parse(flags, PROG, OF_PREPARE)  # refuses others
    return commands.parse(["--dataset", name, *flags])


def prepare(config: Config, is_downloaded: bool = False) -> int:
    """Reads a data set, prints its counts and the clients', and returns the exit code.

    Args:
        config: names the data set and the partition.
        is_downloaded: whether to fetch its published files first.
    """
    import numpy as np

    from fedvg_jax.data.partitions.client_rows import sizes
    from fedvg_jax.resolve import data as populations
    from fedvg_jax.views import display

    if is_downloaded:
        # Python's handler lets a download remove what is half done
        signal.signal(signal.SIGINT, signal.default_int_handler)
        download(config)
    arrays = populations.load_data(config)
    print(f"{arrays.name}: {display.data_text(arrays)}")
    if names := arrays.class_names:
        of_class = np.bincount(arrays.y.ravel(), minlength=len(names))
        print(", ".join(f"{name} {n:,}" for name, n in zip(names, of_class, strict=True)))
    partition = populations.make_partition(config, arrays)
    of_client = sizes(partition.train)
    train, val, test = (sizes(part).sum() for part in partition)
    print(
        f"partition {checks.partition_label(config)}\n"
        f"{len(of_client)} clients with {of_client.min():,} to {of_client.max():,} training {output.unit(arrays)}\n"
        f"{train:,} to train, {val:,} to validate, {test:,} to test"
    )
    return 0


def download(config: Config) -> None:
    """Fetches the published files of a data set to its folder, unless they are there."""
    from fedvg_jax.data import datasets, downloads

    name, cache_dir = config.dataset, config.cache_dir and config.cache_dir / "data"
    place = datasets.download_folder(name, config.data_dir, cache_dir)
    assert place is not None, "the check of the settings sets a cache"
    print(f"{name} is downloaded to {place}, unless its files are there", flush=True)
    if name.startswith(datasets.HUB):
        downloads.fetch_hub_set(name.removeprefix(datasets.HUB), place)
    else:
        downloads.fetch(name, place, datasets.parse_size(config.image_size))


def parse_features(argv: Sequence[str]) -> tuple[Config, str]:
    """Returns the settings of a command line of `prepare features`, and the size that images are resized to.

    Raises:
        UsageError: a flag is missing, is not one of `OF_FEATURES`, or cannot work.
    """
    flags = [flag for flag in argv if flag != "--float32"]
    values = command_line.parse(flags, f"{PROG} features", OF_FEATURES)
    if "out" not in values:
        raise UsageError(f"prepare features needs --out FILE.npz; see {PROG} features --help")
    config = configs.apply(Config(), values, "command line")
    checks.check_values(config, ["image_size"])
    size = config.image_size
    if configs.unused(config, ["image_size"]):  # the reader has one size
        config = dataclasses.replace(config, image_size="")
    return configs.check(config), size


def write_features(argv: Sequence[str]) -> int:
    """Writes the features of a data set as `feature_file.write` does, and returns the exit code.

    Raises:
        UsageError: as `parse_features`, the reader and `write`.
    """
    import numpy as np

    from fedvg_jax import feature_file
    from fedvg_jax.data.datasets import parse_size
    from fedvg_jax.resolve import data as populations
    from fedvg_jax.runs.assemble import programs

    config, size = parse_features(argv)
    arrays = populations.load_data(config)
    assert config.out is not None and config.cache_dir is not None, "they are checked"
    programs.use_cache(config.cache_dir)
    dtype = np.float32 if "--float32" in argv else np.float16
    feature_file.write(config.out, config, arrays, parse_size(size), dtype)
    weights = "" if config.init else f" (random weights, seed {config.seed})"
    print(f"features of {len(arrays.y):,} rows written to {config.out}{weights}")
    return 0


if __name__ == "__main__":
    run_and_exit(main)
