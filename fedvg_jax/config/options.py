# ruff: noqa: RUF009  the calls in the dataclasses return fields
"""All settings of a run, as one frozen dataclass with a nested one per group, and the names that they may have.

The defaults are the digits demonstration. The docstring of a field is its entry in `--help`, `--help-all` and the
option reference. Its first sentence must stand alone, because `--help` shows no more.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedvg_jax import compression
from fedvg_jax.config import declare, methods, presets
from fedvg_jax.config.declare import (
    ABOVE_0,
    BELOW_1,
    BETWEEN_0_AND_1,
    COUNT,
    COUNT_OR_AUTO,
    FRACTION,
    FROM_0,
    SEED,
    UNIT,
    Condition,
    Form,
    above_0,
    flatten,
    groups,
    is_one,
    setting,
    table,
)
from fedvg_jax.config.methods import ALGORITHMS, Methods, method_of, weighting_names
from fedvg_jax.config.presets import reference_behaviours
from fedvg_jax.core.types import Algorithm, Argument, Choice, Option, Range, UsageError
from fedvg_jax.data import datasets
from fedvg_jax.data.partitions import partitioners
from fedvg_jax.engine import attacks, local_training, robust, selection as selections
from fedvg_jax.models.networks import MODELS, Network

PARTITIONS = {**partitioners.BY_NAME, "file": Choice(argument=Argument(""))}

CORRUPTIONS = {
    "none": None,
    **dict.fromkeys(
        ("label_flip", "label_noise", "feature_noise"),
        Choice(argument=Argument(1.0, FRACTION)),
    ),
}

SPEEDS = {
    "equal": None,
    "lognormal": Choice(argument=Argument(1.0, FROM_0)),
    "halfnormal": None,
    "uniform": Choice(argument=Argument((0.5, 2.0), ABOVE_0)),
}
"""Distributions of the clients' factors on durations."""

RECORDS = (
    "client_accuracy",
    "client_val_loss",
    "client_drift",
    "client_joint_fisher",
    "confusion",
    "accuracy_by_client",
    "personal_accuracy",
)
"""Names in `record`."""

OF_DATA = (
    *("dataset", "data_dir", "max_rows", "input", "label", "group", "group_pattern", "image_size"),
    *("splits", "cache_dir"),
)
"""Settings that a data set is read with."""

TRACKERS = ("tensorboard", "wandb")
"""Names in `track`."""


# --- when a setting is used


def has_clock(config: Config) -> bool:
    """Returns whether the settings say how long clients take."""
    clock = config.clock
    return any((clock.step, clock.fixed, clock.upload, clock.download, clock.file))


def _of_model(holds: Callable[[Network], Any], by: str) -> Condition:
    """Holds where the network has a property."""
    return Condition("model", lambda config: holds(MODELS[config.model]), by)


_USES = {kind: choice.made(1).uses for kind, choice in partitioners.BY_NAME.items()}


def _by_partitioner(name: str) -> Condition:
    """Holds where the partitioner uses a setting."""
    return is_one("partition", *(kind for kind, uses in _USES.items() if name in uses))


_RESNETS = _of_model(lambda network: network.stage_of, "ResNets")
_NORMS = _of_model(lambda network: "norm_layers" in network.settings, "ResNets and EfficientNets")
_CONVOLUTIONS = _of_model(lambda network: network.has_convolutions, "models with convolutions")
_RUNNING_STATISTICS = Condition(
    "model",
    lambda config: (
        MODELS[config.model].has_batch_norm
        and (config.norm_layers == "batch" or not _NORMS.holds(config))
    ),
    "models with BatchNorm: lenet5, ResNets and EfficientNets of norm_layers batch",
)
_HUB_SET = Condition("dataset", lambda config: config.dataset.startswith("hf:"), "sets hf:FOLDER")
_NAMES_COLUMNS = Condition(
    "dataset",
    lambda config: config.dataset == "csv" or _HUB_SET.holds(config),
    "csv or hf:FOLDER",
)
_GROUPED = Condition(
    "partition",
    lambda config: "group" in (config.partition, config.holdout),
    "group, and by --holdout group",
)
_SPLIT = Condition(
    "dataset",
    lambda config: config.dataset == "dermamnist" or _HUB_SET.holds(config),
    "dermamnist or hf:FOLDER",
)
_EXTERNAL = is_one("validation.source", "cifar100", "stl10", "npz")
_CORRUPT = Condition(
    "corrupt.kind",
    lambda config: (config.corrupt.kind, config.attack) != ("none", "none"),
    "every other kind, and by --attack",
)
_FROM_FILES = Condition(
    "dataset",
    lambda config: config.dataset not in datasets.BUILT_IN,
    f"every other data set than {', '.join(datasets.BUILT_IN)}",
)
_SIZED = ("organamnist", "dermamnist", "tinyimagenet", "covid19", "folder")
_OF_SEVERAL_SIZES = Condition(
    "dataset",
    lambda config: config.dataset in _SIZED or config.dataset.startswith(tuple(presets.OUTSIDE)),
    ", ".join((*_SIZED, *presets.OUTSIDE.values())),
)
_PRIVATE = above_0("dp.clip", "a norm above 0")
_CLOCK = Condition("clock.step", has_clock, "more than 0, and by the other durations of a clock")
_BUFFERED = above_0("buffered.size", "1 client or more")
_COHORT = Condition(
    "buffered.concurrency",
    lambda config: not (config.buffered.size and config.buffered.concurrency),
    "its default",
)


# --- settings


@dataclass(frozen=True)
class Privacy:
    """Client-level differential privacy: clipped updates, and Gaussian noise on their aggregate."""

    clip: float = setting(0.0, FROM_0, is_traced=True)
    """L2 norm C to which the server clips a client's update, after compression and attacks. 0: no privacy."""
    noise_multiplier: float = setting(1.0, ABOVE_0, is_traced=True, used=(_PRIVATE,))
    """Noise multiplier z: every coordinate's standard deviation, over the most that one client can change the
    aggregate."""
    delta: float = setting(1e-5, BETWEEN_0_AND_1, "data", used=(_PRIVATE,))
    """Delta at which epsilon is recorded; below 1 / clients."""


@dataclass(frozen=True)
class Tuning:
    """The server's training steps on the shared validation set, after every round."""

    steps: int = setting(0, Range(0, 2**31, excludes_high=True))
    """Minibatch steps per round; 0 for none. Validation accuracy is then training accuracy."""
    lr: float = setting(
        0.01, ABOVE_0, is_traced=True, used=(above_0("tuning.steps", "1 step or more"),)
    )
    """Learning rate of the plain SGD."""


@dataclass(frozen=True)
class Validation:
    """The shared validation set D_val."""

    source: str = setting(
        "clients",
        {
            "clients": Choice(argument=Argument(1.0, FRACTION)),
            "cifar100": None,
            "stl10": None,
            "npz": None,
        },
        "data",
    )
    """Source of D_val. clients: every client (published); clients:F: a fraction F of them; cifar100 and stl10: an
    external set, mapped to CIFAR-10's classes; npz: arrays in a file, by the names of their classes."""
    data_dir: Path | None = setting(None, None, "data", used=(_EXTERNAL,), word="DIR")
    """Folder or file of the external set. Default: what prepare --download has brought to the cache."""
    size: int = setting(0, FROM_0, "data")
    """Number of images kept, selected at random; 0 keeps all."""
    rho: float = setting(0.0, UNIT, "data")
    """Class imbalance; 0 for none. Class i keeps floor(p_i V/2) of V images, or all that it has, with p_i ~ rho^i."""
    label_noise: float = setting(0.0, UNIT, "data")
    """Fraction of the labels that are replaced by another class, at random."""


@dataclass(frozen=True)
class VirtualClock:
    """Durations of clients, in virtual seconds; a setting above its default turns the clock on."""

    step: float = setting(0.0, FROM_0, "data")
    """Median seconds of a local step."""
    fixed: float = setting(0.0, FROM_0, "data")
    """Median seconds of a training, whatever its steps."""
    upload: float = setting(0.0, FROM_0, "data")
    """Median bytes a second that a client sends; 0: unlimited."""
    download: float = setting(0.0, FROM_0, "data")
    """Median bytes a second that a client receives; 0: unlimited."""
    speeds: str = setting("equal", SPEEDS, "data", used=(_CLOCK,))
    """Factor of each client on these times, drawn from the seed. equal: 1; lognormal:SIGMA, of median 1 and sigma 1 by
    default; halfnormal, as in FedBuff's paper, of median 1; uniform:LOW,HIGH, between 0.5 and 2 by default."""
    jitter: float = setting(0.0, FROM_0, "data", used=(_CLOCK,))
    """Standard deviation of the logarithm of a factor on every training of a client."""
    file: Path | None = setting(None, None, "data", word="FILE.csv")
    """Table with a row for each client and the columns client, step_seconds, upload, download and, if wanted,
    fixed_seconds; bytes a second may be empty. It replaces the medians and speeds."""


@dataclass(frozen=True)
class Buffered:
    """A server that updates whenever some clients have arrived, without waiting for the others."""

    size: int = setting(0, FROM_0)
    """Clients B that arrive before the server updates its model, which is a round; 0 for synchronous rounds. 1
    updates after every client, as FedAsync does."""
    concurrency: int | None = setting(None, COUNT, "data", used=(_BUFFERED,))
    """Clients M in training at any time. Default: the cohort of join_ratio."""
    discount: float = setting(0.5, FROM_0, is_traced=True, used=(_BUFFERED,))
    """Exponent a of the factor (1 + staleness)^(-a) of an update."""
    max_staleness: int | None = setting(None, FROM_0, "data", used=(_BUFFERED,))
    """Most updates of the server during a training; clients that took longer are dropped. Default: no limit."""
    score: str = setting("trained", ("trained", "applied"), used=(_BUFFERED,))
    """Model of a client that weightings measure. trained: as the client sends it; applied: the present model with the
    client's update."""


@dataclass(frozen=True)
class Corrupt:
    """Clients with corrupt training rows, the same in every round."""

    kind: str = setting("none", CORRUPTIONS, "data")
    """Corruption of training rows, NAME or NAME:STRENGTH, in (0, 1], 1 by default. label_flip changes class c to
    C-1-c for a fraction STRENGTH of the labels; label_noise changes it to another class; feature_noise adds Gaussian
    noise with deviations up to STRENGTH, which differ between clients."""
    clients: float = setting(0.2, FRACTION, "data", used=(_CORRUPT,))
    """Fraction of the clients that have corrupt rows, updates or both, selected by the seed."""


# arguments of `Config`; they are no fields, because `dataclasses.replace` would give them again
if TYPE_CHECKING:

    @dataclass(frozen=True, kw_only=True)
    class Shorthands:
        """The arguments that stand for several settings."""

        method: InitVar[str | None] = None
        fidelity: InitVar[str | None] = None

        def __getattr__(self, group: str) -> Any:
            """Returns a group of settings; algorithms and weightings declare them."""
else:
    Shorthands = Methods


@dataclass(frozen=True, kw_only=True)
class Config(Shorthands):
    """Settings of one federated run.

    `method` and `fidelity` are shorthands for several settings, as on the command line. They are arguments, not fields;
    settings named beside them win. `config.method` is the name of the algorithm with its weighting.
    `dataclasses.replace(config, method=NAME)` replaces all settings that the method stands for.

    >>> config = Config(method="fedprox", fedprox={"mu": 0.5}, rounds=10)
    >>> config.algorithm, config.weighting, config.fedprox.mu, config.rounds, config.method
    ('fedprox', 'native', 0.5, 10, 'fedprox')
    """

    algorithm: str = setting("fedavg", ALGORITHMS, topic="Method")
    """Federated algorithm."""
    weighting: str = setting("fedvg", word="NAME")
    """Aggregation weights of the clients. samples is n_k / sum_j n_j; native takes the weights of the algorithm's
    paper. A method sets its weighting. permuted(fedvg) is the placebo; samples+fedvg is the mean of two."""
    reference: str = setting("", word="NAME,...")
    """Behaviours of the published code that replace the papers', NAME,... official stands for all behaviours of
    --fidelity official, and no-NAME takes one out. By default a run has external-copies and truck."""
    dataset: str = setting("digits", kind="data", topic="Data set", word="NAME")
    """Name of the data set. digits is built in; npz reads arrays; folder reads one sub-folder per class; csv reads a
    table; tfds:NAME is a set of tensorflow-datasets; hf:FOLDER is a set of Hugging Face datasets, from save_to_disk or
    parquet files, and hf:OWNER/NAME one of its hub that prepare has downloaded."""
    data_dir: Path | None = setting(None, kind="data", used=(_FROM_FILES,), word="DIR")
    """Folder or file with the raw data set. Default: what prepare --download has brought to the cache."""
    image_size: str = setting(
        "",
        Form(r"([1-9]\d{0,3}(x[1-9]\d{0,3})?)?", "pixels below 10000, or HEIGHTxWIDTH as 244x224"),
        "data",
        used=(_OF_SEVERAL_SIZES,),
        word="S|HxW",
    )
    """Size of the images in pixels, S or HxW. It chooses a MedMNIST file, or resizes image files. Default: the size of
    the set."""
    splits: str = setting("all", kind="data", used=(_SPLIT,), word="NAME,...")
    """Official splits that are pooled. all; official: DermaMNIST without its validation split (the published code);
    NAME,...: only these splits of a set hf:FOLDER, such as train,validation."""
    max_rows: int = setting(0, FROM_0, "data")
    """Largest number of rows of the data set that are used, at equal distances in its order. 0: all."""
    input: str = setting("", kind="data", used=(_HUB_SET,), word="NAME")
    """Column of images or texts of a set hf:FOLDER. Default: the only such column, or the one called image or text."""
    label: str = setting("", kind="data", used=(_NAMES_COLUMNS,), word="NAME")
    """Column of the labels of a csv, or of a set hf:FOLDER. Default: label, or for hf:FOLDER the only column of class
    labels."""
    group: str = setting("", kind="data", used=(_NAMES_COLUMNS, _GROUPED), word="NAME")
    """Column of a csv or a set hf:FOLDER that names the group of every row, such as its writer or hospital. It chooses
    --partition group on the command line, unless that or --holdout group is named."""
    group_pattern: str = setting(
        "", kind="data", used=(is_one("dataset", "folder"), _GROUPED), word="REGEX"
    )
    """Group of every image of a folder: what matches at the beginning of its file name, or the first group of the
    expression, such as ([^_]+) for patient7 of patient7_3.png."""
    normalise: str = setting("none", ("none", "imagenet", "half"))
    """Normalisation of pixels after division by 255. none is published; imagenet: mean and deviation of ImageNet; half:
    mean and deviation 1/2."""
    augment: str = setting("none", ("none", "flip", "crop", "flip_crop"))
    """Augmentation of training images. none is published; crop pads by 4 pixels."""
    model: str = setting("mlp", MODELS, topic="Model")
    """Network. tinycnn is for 8x8 images. The first convolution of a ResNet is 7x7 with stride 2 and max-pooling
    (published), and 3x3 in ResNets named _cifar."""
    init: Path | None = setting(None, kind="data", word="FILE|RUN")
    """Initial weights: a run folder, one of its checkpoints, such as RUN/checkpoints/000040, or a safetensors file
    such as the Hugging Face hub has. A file has the names of torchvision, timm, efficientnet-lite-pytorch or
    --export, by model; the head is then initialised at random."""
    norm_layers: str = setting("batch", ("batch", "frozen", "group"), used=(_NORMS,))
    """Normalisation layers of a ResNet or an EfficientNet. batch is published; frozen: BatchNorm that keeps the running
    statistics of init; group: GroupNorm."""
    clients: int = setting(20, COUNT, topic="Clients and partition")
    """Number of clients N."""
    join_ratio: float = setting(0.5, FRACTION, used=(_COHORT,))
    """Fraction of the clients sampled each round."""
    selection: str = setting("uniform", selections.BY_NAME, "data")
    """Selection of the cohort. uniform; size: with probability proportional to n_k; power_of_choice:D draws D clients
    in this way, twice the cohort by default, and takes the clients with the largest loss."""
    dropout: float = setting(0.0, BELOW_1, "data")
    """Probability that a client of the cohort drops out of the round."""
    overselect: float = setting(1.0, Range(1, 100), "data", used=(_CLOCK,))
    """Clients that are asked in a round, over the cohort; the server averages the first that arrive."""
    deadline: float | None = setting(None, ABOVE_0, "data", used=(_CLOCK,))
    """Virtual seconds after which a round ends; clients that arrive later are left out. Default: the server waits for
    all."""
    nonfinite: str = setting("raise", ("raise", "skip"), "data")
    """Reaction to divergence. raise stops a run in which a client's model or loss is not finite, or the training loss
    is over 1000; skip leaves such clients out of the round."""
    partition: str = setting("dirichlet", PARTITIONS, "data")
    """Partition of the rows over clients. official is the published random stream, draw for draw; dirichlet_equal:
    clients of equal size; balanced_client: equal sizes, and client 0 is balanced; quantity: only sizes differ;
    shards:S, S pieces of the rows sorted by label, 2 by default; file:FILE, the rows in a .json file."""
    alpha: float = setting(
        0.05,
        Range(0, 1e30, excludes_low=True),
        "data",
        used=(_by_partitioner("alpha"),),
    )
    """Dirichlet concentration of the clients' labels; small is skewed. With quantity it is the concentration of client
    sizes."""
    partition_seed: int | None = setting(None, SEED, "data")
    """Seed of the partition. Default: the seed of the run."""
    min_samples: int = setting(10, COUNT, "data")
    """Smallest number of rows of a client, before its validation and test rows are held out."""
    min_samples_rule: str = setting(
        "redraw", ("redraw", "top_up"), "data", used=(_by_partitioner("min_samples_rule"),)
    )
    """Remedy where a client has fewer than min_samples rows. redraw the partition (published), or top_up from the
    largest client."""
    holdout: str = setting("client", ("client", "global", "stratified", "group"), "data")
    """Where validation and test rows are held out. client: from every client (published); global: from the whole set
    before it is partitioned (the text of the paper); stratified: as global, in proportion to the classes; group: as
    global, by whole groups, such as patients."""
    test_ratio: float = setting(0.25, BETWEEN_0_AND_1, "data")
    """Fraction of every client's rows that joins the test set."""
    val_ratio: float = setting(
        0.1,
        BELOW_1,
        "data",
    )
    """Fraction of every client's rows that joins the shared validation set D_val; 0 with an external one."""
    rounds: int = setting(100, COUNT, is_traced=True, topic="Training")
    """Number of federated rounds."""
    local_epochs: int | str = setting(
        5,
        Form(r"[1-9]\d{0,8}(:[1-9]\d{0,8})?", "a number >= 1, or MIN:MAX with 1 <= MIN <= MAX"),
        "data",
        word="INT|MIN:MAX",
    )
    """Epochs each client trains per round. MIN:MAX draws a number for every client (stragglers)."""
    train: str = setting("", word="REGEX")
    """Regular expression of the paths of the tensors that are trained, such as ^classifier/. All others are frozen.
    Default: all are trained."""
    lora: int | str = setting(
        0,
        Form(r"0?|[1-9]\d{0,8}(:.+)?", "0, RANK, or RANK:REGEX with RANK >= 1"),
        word="RANK|RANK:REGEX",
    )
    """Rank of low-rank adapters (LoRA) beside the kernels of dense layers and 1x1 convolutions; 0: none. REGEX names
    the layers by their paths, as in 8:^block_11/. Without train, the adapters and the head are trained."""
    local: str = setting("", word="REGEX|SHARE:REGEX")
    """Regular expression of the paths of the tensors that stay with each client, such as ^classifier/: neither sent,
    nor averaged, nor scored. With a SHARE below 1, as in 0.5:^classifier/, that share of a client's local steps comes
    first and trains only the local tensors, and the other steps train the rest; a client's only step trains all."""
    send: str = setting("none", compression.BY_NAME)
    """Compression of the updates that clients send; the server scores and averages what arrives. topk:F sends the
    largest entries, a fraction F of all, 0.01 by default, with error feedback; qsgd:S rounds at random to S levels of
    each tensor's norm, 4 by default."""
    batch_size: int = setting(32, COUNT)
    """Rows per minibatch, for training and for scoring. 1 needs a model without BatchNorm."""
    lr: float = setting(0.1, ABOVE_0, is_traced=True)
    """Learning rate of the clients."""
    optimiser: str = setting("sgd", ("sgd", "adam", "adamw"))
    """Optimiser of the clients. adamw decouples the weight decay from the gradient."""
    momentum: float = setting(0.0, BELOW_1, is_traced=True, used=(is_one("optimiser", "sgd"),))
    """Momentum of the clients' optimiser sgd."""
    weight_decay: float = setting(0.0, FROM_0, is_traced=True)
    """Weight decay of the clients' optimiser."""
    lr_schedule: str = setting("constant", local_training.LR_SCHEDULES)
    """Schedule of the clients' learning rate over rounds. exponential:F multiplies by F each round, 0.99 by default;
    cosine ends at 0."""
    seed: int = setting(0, SEED, "data")
    """Seed of the model, the partition, the cohorts and the minibatches."""
    eval_every: int = setting(5, COUNT, "data")
    """Rounds between two evaluations. The last round is always evaluated."""
    record: str = setting("", word="NAME,...")
    """Further entries of the history, NAME,... For every client in every round: client_accuracy, its model's accuracy
    on the test set; client_val_loss, its loss on D_val; client_drift, the L2 norm of its update; client_joint_fisher,
    the trace of its empirical Fisher information on D_val, by tensor. At evaluations: confusion, the confusion matrix
    of the test set; accuracy_by_client, the global model's accuracy on each client's own test rows; personal_accuracy,
    the accuracy of the client's own model, if a method has such models."""
    devices: str = setting("auto", COUNT_OR_AUTO, topic="Hardware", word="INT|auto")
    """Devices that share a cohort, auto or a number, at most one for each client. The cores of a CPU can serve as
    devices."""
    lanes: str = setting("auto", COUNT_OR_AUTO, word="INT|auto")
    """Clients that train side by side on a device, auto or a number."""
    client_chunk: int = setting(0, FROM_0)
    """Most clients with models in memory at a time, which limits the memory of a round. 0 holds the whole cohort."""
    placement: str = setting("auto", ("auto", "device", "host"), "data")
    """Where the rows of the data set and the client states are. device: every device has all rows, and its part of
    the states; host: each device gets the rows and client states of the next rounds' clients; auto chooses for
    each of the two, host where it takes too much of a device."""
    conv: str = setting(
        "auto", ("auto", "lax", "gemm", "winograd", "planes"), used=(_CONVOLUTIONS,)
    )
    """Implementation of convolutions. auto chooses by platform, model and image size; lax is XLA's own; gemm: patches
    and one matmul; winograd: fewer products for 3x3 kernels and very small images; planes: images of a minibatch
    innermost if the stride is 1, else gemm."""
    precision: str = setting("default", ("default", "highest", "bfloat16"))
    """Arithmetic of the model. default: float32, with products as the device rounds them (TF32 on a GPU); highest:
    float32 throughout; bfloat16: parameters, norms and averages stay float32."""
    out: Path | None = setting(None, kind="host", topic="Files, stopping and resuming", word="DIR")
    """Run folder. Default: runs/<time>-<method>."""
    resume: str | None = setting(None, kind="host", word="RUN|auto")
    """Run folder to resume, or auto. auto resumes the last run with the same settings, or starts a new one."""
    checkpoint_every: int = setting(0, FROM_0, "host", used=(above_0("keep", "1 or more"),))
    """Rounds between two checkpoints; 0: about one a minute. The last round and every stop are saved in any case."""
    keep: int = setting(2, FROM_0, "host")
    """Number of newest checkpoints that are kept; 0 writes none."""
    cache_dir: Path | None = setting(None, kind="host", word="DIR")
    """Folder for decoded data and compiled programs. Default: $FEDVG_CACHE_DIR or ~/.cache/fedvg_jax."""
    export: Path | None = setting(None, kind="host", word="FILE")
    """File for the final model, .safetensors. ResNets, ViTs and the EfficientNet have PyTorch's names."""
    track: str = setting("", kind="host", word="NAME,...")
    """Trackers that the run reports to, NAME,...: tensorboard (events in the run folder), wandb."""
    robust: str = setting("mean", robust.BY_NAME, topic="Corrupt updates")
    """Aggregation of the clients' models. mean, and clipped_mean:C, which shortens updates to the norm C, 10 by
    default, use the weights of --weighting. trimmed_mean:F leaves out a fraction F of the clients at each end, 0.1 by
    default; krum:F,M tolerates F corrupt clients among 2 F + 3 or more, and averages M models, 1,1 by default."""
    attack: str = setting("none", attacks.BY_NAME)
    """Corruption of the corrupt clients' updates, the same in every round, NAME or NAME:SCALE, 1 by default. sign_flip
    multiplies by -SCALE; scaling multiplies by SCALE; noise replaces them by noise of SCALE times their norm."""
    dp: Privacy = declare.group(Privacy, "Client-level differential privacy")
    tuning: Tuning = declare.group(Tuning, "Server steps on the validation set")
    validation: Validation = declare.group(Validation, "Validation set")
    clock: VirtualClock = declare.group(VirtualClock, "Virtual time")
    buffered: Buffered = declare.group(Buffered, "Buffered server")
    corrupt: Corrupt = declare.group(Corrupt, "Corrupt rows")
    if not TYPE_CHECKING:  # editors have the constructor of the fields

        def __init__(self, **settings: Any):
            vars(self).update(presets.fields(type(self), settings))

        @property
        def method(self) -> str:
            """The name of algorithm and weighting, as `--method` takes it."""
            return method_of(self.algorithm, self.weighting, self.local)


SETTINGS = table(Config)
"""Dotted name -> setting, in the order of `--help-all`."""

GROUPS = groups(Config)
"""Name of a group -> its dataclass."""


def layered(layers: Sequence[tuple[Mapping[str, Any], str]], start: Config | None = None) -> Config:
    """Returns the settings of layers; each layer overrides the layers before it.

    Args:
        layers: settings by dotted name, with shorthands, and where they come from.
        start: below all layers; by default the preset of their data set, with partition group where they name groups
            and neither a partition nor a holdout.
    """
    named = {name: value for settings, _ in layers for name, value in settings.items()}
    preset = presets.dataset_preset(str(named.get("dataset", Config.dataset)))
    if {"group", "group_pattern"} & named.keys() and named.get("holdout") != "group":
        preset = {**preset, "partition": "group"}
    config = start or Config(**preset)
    for settings, source in layers:
        config = presets.apply(config, settings, source) if settings else config
    return config


def traced_values(config: Config) -> dict[str, Any]:
    """Returns the traced scalars that settings have, by name; behind a name that is not chosen, the default.

    >>> traced_values(Config(robust="clipped_mean:2"))["clip_norm"], traced_values(Config(lr=0.5))["lr"]
    (2.0, 0.5)
    """
    values = {}
    for name, declared in SETTINGS.items():
        if declared.facts.is_traced:
            values[name] = declared.get(config)
        elif declared.arguments:
            chosen, number = declared.split(declared.get(config))
            for choice, argument in declared.arguments.items():
                if argument.traced and choice == chosen:
                    values[argument.traced] = number
                elif argument.traced:
                    values.setdefault(argument.traced, argument.default)
    return values


def partition_seed(config: Config) -> int:
    """Returns the seed that the partition is drawn with: the seed of the run, unless it is set.

    >>> partition_seed(Config(seed=3)), partition_seed(Config(seed=3, partition_seed=42))
    (3, 42)
    """
    return config.seed if config.partition_seed is None else config.partition_seed


def effective(config: Config) -> dict[str, Any]:
    """Returns the settings by dotted name, with the seed that the partition is drawn with."""
    return flatten(config) | {"partition_seed": partition_seed(config)}


def choice(config: Config, name: str) -> tuple[str, Any]:
    """Returns the name and the value of a setting NAME or NAME:VALUE.

    >>> choice(Config(send="topk:0.1"), "send"), choice(Config(partition="shards"), "partition")
    (('topk', 0.1), ('shards', 2))
    """
    return SETTINGS[name].split(SETTINGS[name].get(config))


def columns_by_role(config: Config) -> dict[str, str]:
    """Returns role, one of input, label and group -> name of its column, of the columns that are named.

    >>> columns_by_role(Config(label="fine", group="writer"))
    {'label': 'fine', 'group': 'writer'}
    """
    names = {"input": config.input, "label": config.label, "group": config.group}
    return {role: name for role, name in names.items() if name}


def epochs_range(config: Config) -> tuple[int, int]:
    """Returns the smallest and the largest number of local epochs.

    >>> epochs_range(Config(local_epochs="1:5")), epochs_range(Config(local_epochs=2))
    ((1, 5), (2, 2))
    """
    smallest, _, largest = str(config.local_epochs).partition(":")
    return int(smallest), int(largest or smallest)


def lora(config: Config) -> tuple[int, str]:
    """Returns the rank of adapters, 0 without any, and the expression of their layers.

    >>> lora(Config()), lora(Config(lora=8)), lora(Config(lora="8:^block_11/"))
    ((0, ''), (8, ''), (8, '^block_11/'))
    """
    rank, _, layers = str(config.lora).partition(":")
    return int(rank or 0), layers


def local(config: Config) -> tuple[float, str]:
    """Returns the share of local steps that train only local tensors, and the expression of these tensors.

    >>> local(Config()), local(Config(local="^classifier/")), local(Config(local="0.5:^classifier/"))
    ((0.0, ''), (0.0, '^classifier/'), (0.5, '^classifier/'))
    """
    match = re.fullmatch(r"(\d*\.?\d+(?:e-\d+)?):(.+)", config.local, re.ASCII)
    return (float(match[1]), match[2]) if match else (0.0, config.local)


def default_cache_dir() -> Path:
    """Returns the cache folder that is used unless `cache_dir` is set.

    Raises:
        UsageError: the user has no home folder, and `$FEDVG_CACHE_DIR` is not set.
    """
    if folder := os.environ.get("FEDVG_CACHE_DIR"):
        return Path(folder)
    try:
        return Path.home() / ".cache" / "fedvg_jax"
    except RuntimeError:  # a user without a passwd entry, as in many containers, and no $HOME
        raise UsageError(
            "this user has no home folder; set FEDVG_CACHE_DIR or HOME, or give --cache-dir DIR"
        ) from None


REFERENCES: dict[str, tuple[Condition, ...]] = {
    "single-rows": (),
    "untrained": (),
    "block": (
        *methods.SETTINGS["fedvg.granularity"].facts.used,
        is_one("fedvg.granularity", "blockwise"),
        _RESNETS,
    ),
    "server-stats": (_RUNNING_STATISTICS,),
    "cohorts": (),
    "external-copies": (_EXTERNAL,),
    "truck": (is_one("validation.source", "cifar100"),),
    "imbalance": (above_0("validation.rho", "a rho above 0"),),
} | dict(methods.published_behaviours())
"""Name of `reference` -> conditions that must all hold for a run to have it."""


def as_reference(config: Config, name: str) -> bool:
    """Returns whether a run has a behaviour of the published code."""
    return name in reference_behaviours(config.reference)


def option_arguments(config: Config, options: Sequence[Option]) -> dict[str, Any]:
    """Returns the arguments that settings give a factory with these options.

    >>> option_arguments(Config(elastic={"ratio": 0.5}), ALGORITHMS["elastic"].options)
    {'ratio': 0.5}
    """
    return {option.name.partition(".")[2]: SETTINGS[option.name].get(config) for option in options}


def algorithm_of(config: Config) -> Algorithm:
    """Returns the algorithm that the settings name, with its options and the differences of the run."""
    entry, beside = ALGORITHMS[config.algorithm], weighting_names(config.weighting)
    arguments = option_arguments(config, entry.options)
    for difference, published in entry.published.items():
        is_beside = not published.weighting or published.weighting in beside
        if as_reference(config, difference) and is_beside:
            arguments |= published.arguments
    return entry.make(**arguments)


def cohort_size(config: Config) -> int:
    """Returns K, the clients of a round: the buffer of a buffered server, or those that `num_joining` returns."""
    return config.buffered.size or num_joining(config)


def num_joining(config: Config) -> int:
    """Returns max(1, floor(N x join ratio)), of the ratio as it is written.

    The published code's product of floats is below 29 for 100 clients and 0.29.

    >>> num_joining(Config(clients=100, join_ratio=0.29)), num_joining(Config(clients=7, join_ratio=0.5))
    (29, 3)
    """
    ratio = config.join_ratio
    if not as_reference(config, "cohorts"):
        ratio = Fraction(str(ratio))
    return max(1, int(config.clients * ratio))


def client_chunk_size(config: Config) -> int:
    """Returns H, the size of a client chunk: the fewest equal client chunks of at most `client_chunk` clients.

    >>> [client_chunk_size(Config(clients=20, join_ratio=0.5, client_chunk=size)) for size in (4, 0)]
    [4, 10]
    """
    size = cohort_size(config)
    return -(-size // -(-size // config.client_chunk)) if config.client_chunk else size


def num_asked(config: Config) -> int:
    """Returns how many clients a server asks in a round: the cohort and the overselected.

    >>> num_asked(Config(clients=20, join_ratio=0.5, overselect=1.25, clock={"step": 1.0}))
    13
    """
    return math.ceil(Fraction(str(config.overselect)) * cohort_size(config))


def concurrency(config: Config) -> int:
    """Returns M, the clients of a buffered server that train at any time."""
    return config.buffered.concurrency or num_joining(config)


def num_corrupt(config: Config) -> int:
    """Returns how many of the N clients are corrupt, in their updates or their rows."""
    return round(config.corrupt.clients * config.clients) if _CORRUPT.holds(config) else 0
