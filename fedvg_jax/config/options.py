"""All settings of a run, as one frozen dataclass with a nested one per group.

The defaults are the digits demonstration. The text below each field is its entry in `--help`, `--help-all` and the
option reference. Its first sentence must stand alone, because `--help` shows no more.
"""

from __future__ import annotations

import os
from dataclasses import InitVar, dataclass, field
from pathlib import Path

from fedvg_jax.config.population import Corrupt, Validation
from fedvg_jax.config.robustness import Attack, Robust, Tuning
from fedvg_jax.config.shorthands import accept_shorthands
from fedvg_jax.core.types import UsageError


@dataclass(frozen=True)
class FedVG:
    """FedVG's weights: inverse norms of each client's gradient on the shared validation set."""

    signal: str = "gradient"
    """Quantity that is measured for each client. gradient: of the loss on D_val; delta: of its model against the global
    model; fisher: trace of the empirical Fisher information."""
    norm: str = "l1"
    """Norm of the signal. l1 is published; spectral uses matrices only; spectral_l2 adds the L2 norm of vectors; delta
    is the L1 norm of the signal delta."""
    layer: str = "tensor"
    """Layer of which norms are taken. tensor: every tensor (published); module: weight and bias together."""
    include: str = ""
    """Regular expression of the tensors that are measured, e.g. ^classifier/. It is searched for in each path
    "a/b/kernel"; empty selects all tensors."""
    per_element: bool = False
    """Divide each norm by the number of entries (l1), or by its square root (other norms)."""
    granularity: str = "modelwise"
    """Granularity of the weights. modelwise: one weight per client; layerwise: one per client and tensor; blockwise:
    one per client and network block."""
    block: str = "residual"
    """Network blocks of a ResNet. residual: every residual block (the paper); stage: six stages (the published
    code)."""
    eps: float = 1e-8
    """Number added to each norm before it is inverted."""
    mode: str = "train"
    """Mode of BatchNorm while scoring. train: statistics of each minibatch (published); eval: running statistics."""
    stats: str = "uniform"
    """Weights of running statistics at layerwise and blockwise granularity. uniform is published; layer: the mean of
    the weights of their own layer."""
    fit_steps: int = 10
    """Optimisation steps of --weighting fitted."""
    fit_rate: float = 1.0
    """Learning rate of --weighting fitted, per unit of loss."""
    link: str = "inverse"
    """Function from norms to weights, of --weighting generalised. inverse: a power of the inverse norm; softmax: of the
    norms over their mean."""
    exponent: float = 1.0
    """Exponent of the inverse norm, of --weighting generalised. 1 is published, 0 gives uniform weights;
    below 0, clients with large norms weigh more."""
    temperature: float = 1.0
    """Temperature of --weighting generalised. Weights are raised to the power 1 / temperature; large values approach
    uniform weights."""
    mix: float = 0.0
    """Fraction of n_k / sum_j n_j in the weights, of --weighting generalised. 0.5 is FedAvg + FedVG."""
    multipliers: str = ""
    """Factors of the norms of tensors, REGEX=NUMBER,... of --weighting generalised. The first pattern that matches a
    path applies, and 1 where none does."""


@dataclass(frozen=True)
class FedAvgM:
    """FedAvgM: momentum on the server."""

    momentum: float = 0.9
    """Nesterov momentum beta of the server."""
    lr: float = 1.0
    """Learning rate of the server."""


@dataclass(frozen=True)
class FedOpt:
    """FedAdam, FedYogi and FedAdagrad: an adaptive optimiser on the server."""

    lr: float = 0.1
    """Learning rate of the server."""
    b1: float = 0.9
    """Decay of the first moment (FedAdam, FedYogi). FedAdagrad has a first moment only with variant official."""
    b2: float = 0.999
    """Decay of the second moment (FedAdam, FedYogi)."""
    eps: float = 1e-3
    """Number tau that is added to the root of the second moment."""
    variant: str = "paper"
    """Update rule. paper: Algorithm 2 of Reddi et al.; official: the published FedVG code, whose second moment starts
    at 0; optax: optax's optimisers, which correct the bias and have FedAdagrad's eps inside the root."""


@dataclass(frozen=True)
class FedProx:
    """FedProx: a proximal term in the clients' loss."""

    mu: float = 0.01
    """Coefficient of the proximal term."""


@dataclass(frozen=True)
class Scaffold:
    """Scaffold: control variates."""

    eta_g: float = 1.0
    """Learning rate of the server."""
    steps: str = "epochs"
    """Minibatches of a local epoch. epochs: all; single: one (the published code)."""
    memory: str = "kept"
    """Control variates of clients between rounds. kept, or lost (the published code)."""


@dataclass(frozen=True)
class FedDyn:
    """FedDyn: a dynamic regulariser."""

    alpha: float = 0.1
    """Coefficient of the regulariser."""
    clip: float = 10.0
    """Global norm to which a client's gradient is clipped."""
    regulariser: str = "full"
    """Terms of the regulariser. full, or linear: without alpha theta (the published code)."""
    weights: str = "uniform"
    """Weights of --weighting native. uniform, or samples (the published code)."""
    average: str = "always"
    """Rounds in which the server averages the clients under FedVG weights. always, or once: only in the first round
    (the published code)."""


@dataclass(frozen=True)
class Elastic:
    """Elastic aggregation: sensitive tensors move less."""

    ratio: float = 0.3
    """Fraction of a client's rows on which sensitivity is measured."""
    tau: float = 0.5
    """Factor of the update of the most sensitive tensors. The least sensitive move by 1 + tau."""
    mu: float = 0.95
    """Decay of the moving average of sensitivities over minibatches."""
    sensitivity: str = "output"
    """Measure of sensitivity. output: gradient of the outputs, compared over tensors; official: gradient of the loss,
    compared over clients (the published code)."""
    rows: str = "all"
    """Rows that a client trains on. all, or rest: those on which sensitivity is not measured (the published code)."""


@accept_shorthands
@dataclass(frozen=True)
class Config:
    """Settings of one federated run.

    `method` and `fidelity` are shorthands for several settings, as on the command line. They are arguments, not fields;
    settings given beside them win.

    >>> config = Config(method="fedprox", fedprox={"mu": 0.5}, rounds=10)
    >>> config.algorithm, config.weighting, config.fedprox.mu, config.rounds
    ('fedprox', 'native', 0.5, 10)
    """

    dataset: str = "digits"
    """Name of the data set. digits is built in; npz reads arrays, encoded reads JPEG bytes, folder reads one sub-folder
    per class; tfds:NAME is a set prepared by tensorflow-datasets; hf:FOLDER is one of Hugging Face datasets, saved by
    save_to_disk or as parquet files, below data_dir if that is set."""
    data_dir: Path | None = None
    """Folder or file with the raw data set."""
    image_size: str = ""
    """Size of the images in pixels, S or HxW. It chooses the file of a MedMNIST set, and image files are resized to it.
    Default: the size of the set."""
    splits: str = "all"
    """Official splits of DermaMNIST that are pooled. all, or official: without its validation split (the published
    code)."""
    max_rows: int = 0
    """Largest number of rows of the data set that are used, at equal distances in its order, so that the classes of a
    sorted set stay. 0: all."""
    image_column: str = ""
    """Column of the images of a set hf:FOLDER. Default: the only column of images, or the one with a usual name."""
    label_column: str = ""
    """Column of the labels of a set hf:FOLDER. Default: the only column of class labels, or the one with a usual
    name."""
    group_column: str = ""
    """Column of a set hf:FOLDER that partition group divides the rows by, such as writer."""
    model: str = "mlp"
    """Network. tinycnn is for 8x8 images."""
    pretrained: Path | None = None
    """Safetensors file of initial weights, or a folder of the Hugging Face hub that holds one. For ResNets and ViTs it
    has torchvision's or timm's names, for other models those of --export. The head is initialised at random."""
    init: Path | None = None
    """Run folder, or one of its checkpoints such as RUN/checkpoints/000040, whose global model the run starts from."""
    stem: str = "imagenet"
    """First convolution of a ResNet. imagenet: 7x7 with stride 2 and max-pooling (published); cifar: 3x3."""
    norm: str = "batch"
    """Normalisation layers of a ResNet. batch is published."""
    normalise: str = "none"
    """Normalisation of pixels after division by 255. none is published; imagenet: mean and deviation of ImageNet; half:
    mean and deviation 1/2."""
    augment: str = "none"
    """Augmentation of training images. none is published; crop pads by 4 pixels."""
    algorithm: str = "fedavg"
    """Federated algorithm."""
    weighting: str = "fedvg"
    """Aggregation weights of the clients. samples is n_k / sum_j n_j; native is what the algorithm's own paper uses.
    permuted(fedvg) is the placebo; samples+fedvg is the mean of two."""
    alpha: float = 0.05
    """Dirichlet concentration of the clients' labels; small is skewed. With partition quantity, it is that of their
    sizes."""
    clients: int = 20
    """Number of clients N."""
    join_ratio: float = 0.5
    """Fraction of the clients sampled each round, in (0, 1]."""
    rounds: int = 100
    """Number of federated rounds."""
    local_epochs: int | str = 5
    """Epochs each client trains per round. MIN:MAX draws a number for every client (stragglers)."""
    batch_size: int = 32
    """Rows per minibatch, for training and for scoring. 1 needs a model without BatchNorm."""
    lr: float = 0.1
    """Learning rate of the clients."""
    optimiser: str = "sgd"
    """Optimiser of the clients. adamw decouples the weight decay from the gradient."""
    momentum: float = 0.0
    """Momentum of the clients' optimiser sgd."""
    optimiser_state: str = "reset"
    """State of a client's optimiser between rounds. reset, or kept until the client is sampled again."""
    weight_decay: float = 0.0
    """Weight decay of the clients' optimiser."""
    lr_schedule: str = "constant"
    """Schedule of the clients' learning rate over rounds. exponential multiplies by lr_decay each round; cosine ends at
    0."""
    lr_decay: float = 0.99
    """Factor per round of the exponential schedule."""
    dropout: float = 0.0
    """Probability that a client of the cohort drops out of the round."""
    untrained: str = "absent"
    """Treatment of clients that take no local step because they have too few rows. absent: weight 0, as if dropped out;
    weighed: like the others, although they return the global model (the published code)."""
    single_rows: str = "trained"
    """Treatment of minibatches of a single row. trained: trained on, except where BatchNorm's statistics of one row are
    undefined; skipped: skipped for every model (the published code)."""
    nonfinite: str = "raise"
    """Reaction to divergence. raise stops a run in which a client's model or loss is not finite, or the training loss
    is over 1000; skip leaves clients that are not finite out of the round, and goes on."""
    seed: int = 0
    """Seed of the model, the cohorts and the minibatches."""
    partition: str = "dirichlet"
    """Partition of the rows over clients. official is the published random stream, draw for draw; dirichlet_equal:
    clients of equal size; balanced_client: equal sizes, and client 0 is balanced; quantity: only sizes differ."""
    shards_per_client: int = 2
    """Shards that every client gets, of the rows sorted by label (partition shards)."""
    classes_per_client: int = 2
    """Number of different classes that every client has (partition classes)."""
    partition_file: Path | None = None
    """File of every client's rows, .npz or .json (partition file)."""
    export_partition: Path | None = None
    """File for the rows of every client, .npz or .json, which partition file reads."""
    export_form: str = "parts"
    """Form of --export-partition. parts: training, validation and test rows of every client, so that the same run
    follows from the file; clients: all rows of every client by its number, as flwr-datasets and FedLab have them."""
    split: str = "client"
    """Where validation and test rows are held out. client: from every client (published); global: from the whole set
    before it is partitioned (the text of the paper); stratified: so too, in proportion to the classes."""
    cohorts: str = "seeded"
    """Sampling of cohorts. seeded: from (seed, round); official: the published random stream, draw for draw."""
    server_stats: str = "averaged"
    """Aggregation of running statistics. averaged: their weighted mean; official: the server's update rule, as for
    parameters (the published code)."""
    partition_seed: int = 42
    """Seed of the partition, independent of the seed of the run."""
    min_samples: int = 10
    """Smallest number of rows of a client, before its validation and test rows are held out."""
    min_samples_rule: str = "redraw"
    """Remedy where a client has fewer than min_samples rows. redraw the partition (published), or top_up from the
    largest client."""
    test_ratio: float = 0.25
    """Fraction of every client's rows that joins the test set."""
    val_ratio: float = 0.1
    """Fraction of every client's rows that joins the shared validation set D_val. 0 where D_val is external."""
    select: str = "shared"
    """Validation rows that choose the best round. shared: D_val, which FedVG's weights also use; held_out: a random
    half of D_val, which the weights then do not use."""
    eval_every: int = 5
    """Rounds between two evaluations. The last round is always evaluated."""
    record: str = ""
    """Further entries of the history, NAME,... Of every client in every round: client_accuracy, its model's accuracy on
    the pooled test set; client_val_loss, its loss on D_val; client_drift, the L2 norm of its update;
    client_fisher_trace, the trace of its empirical Fisher information on D_val; client_joint_fisher, the part of the
    trace of every tensor. At evaluations: confusion, the confusion matrix of the test set; calibration, the expected
    calibration error on it with its bins; accuracy_by_client, the global model's accuracy on each client's own test
    rows, its mean and worst decile."""
    lanes: str = "auto"
    """Clients that train side by side on a device. auto, a number, or all: one vmap over the cohort."""
    hold: int = 0
    """Clients whose models are held at a time, which limits the memory of a round. 0 holds the whole cohort."""
    devices: str = "auto"
    """Devices that share a cohort, auto or a number, at most one for each client. The cores of a CPU can serve as
    devices."""
    pool: str = "auto"
    """Memory that holds the rows of the data set. device: every row on every device; host: each device gets only the
    rows of the next rounds' clients, copied while it works; auto: host where the rows take too much of a device."""
    memories: str = "auto"
    """Memory that holds what the algorithm and kept optimisers remember of clients. device: the devices, divided among
    them; host: the devices get only that of the next rounds' clients; auto: host where it takes too much of a device.
    """
    conv: str = "auto"
    """Implementation of convolutions. auto chooses by platform, model and image size; lax is XLA's own; gemm: patches
    and one matmul; winograd: fewer products for 3x3 kernels and very small images; planes: gemm with the images of a
    minibatch innermost, for tinycnn, cnn and lenet5."""
    precision: str = "default"
    """Arithmetic of the model. default: float32, with products as the device rounds them (TF32 on a GPU); highest:
    float32 throughout; bfloat16: parameters, norms and averages stay float32."""
    export: Path | None = None
    """File for the final model, .safetensors, or a new folder for it with a model card, as on the Hugging Face hub.
    ResNets and ViTs have torch's names, for `load_state_dict`."""
    dry_run: bool = False
    """Print the plan (steps, images, memory, time) and train nothing. A sample of each part is timed."""
    force: bool = False
    """Start even if the estimate of memory exceeds the memory of this machine."""
    profile: Path | None = None
    """Folder for a trace of the first two chunks of rounds, for xprof, TensorBoard and Perfetto."""
    track: str = ""
    """Trackers that the run reports to, NAME,...: tensorboard (events in the run folder), wandb, mlflow. A resumed run
    goes on in the same tracked run; a tracker that fails does not end the run."""
    out: Path | None = None
    """Run folder. Default: runs/<time>-<method>."""
    resume: str | None = None
    """Run folder to resume, or auto. auto resumes the last run with the same settings, or starts a new one."""
    checkpoint_every: int = 0
    """Rounds between two checkpoints; 0: about one a minute, and each round of over 5 s. The last round and every stop
    are saved in any case."""
    keep: int = 2
    """Number of newest checkpoints that are kept; 0 writes none. Each has the model that is best on validation (see
    select)."""
    deterministic: bool = False
    """Use only operations that are reproducible to the bit on a GPU; slower. A CPU is always reproducible."""
    cache_dir: Path | None = None
    """Folder for decoded data, partitions and compiled programs. Default: $FEDVG_CACHE_DIR or ~/.cache/fedvg_jax. It is
    created for its user alone; a folder of another user, or writable by others, is refused."""
    trust_cache: bool = False
    """Use the cache folder even if another user owns it or may write to it. Compiled programs in it are executed."""
    config: Path | None = None
    """TOML file of settings, which flags override. The command line alone reads it."""
    fedvg: FedVG = field(default_factory=FedVG)
    fedavgm: FedAvgM = field(default_factory=FedAvgM)
    fedopt: FedOpt = field(default_factory=FedOpt)
    fedprox: FedProx = field(default_factory=FedProx)
    scaffold: Scaffold = field(default_factory=Scaffold)
    feddyn: FedDyn = field(default_factory=FedDyn)
    elastic: Elastic = field(default_factory=Elastic)
    robust: Robust = field(default_factory=Robust)
    attack: Attack = field(default_factory=Attack)
    tuning: Tuning = field(default_factory=Tuning)
    validation: Validation = field(default_factory=Validation)
    corrupt: Corrupt = field(default_factory=Corrupt)
    method: InitVar[str | None] = None
    """ALGORITHM with its own weighting, WEIGHTING under FedAvg, or ALGORITHM+WEIGHTING, with the hyperparameters of the
    paper. fedavg+fedvg is the paper's FedAvg + FedVG, the mean of both weights."""
    fidelity: InitVar[str | None] = None
    """Behaviour where the published code departs from the papers. corrected follows the papers, official the published
    code."""


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
        raise UsageError("this user has no home folder; set FEDVG_CACHE_DIR or HOME, or give --cache-dir DIR") from None


def method_name(config: Config) -> str:
    """Returns algorithm and weighting as a name that is valid for a folder.

    >>> method_name(Config(weighting="permuted(fedvg)"))
    'fedavg-permuted-fedvg'
    """
    return f"{config.algorithm}-{config.weighting.replace('(', '-').replace(')', '')}"


def recorded_names(config: Config) -> list[str]:
    """Returns the names in `record`.

    >>> recorded_names(Config(record="client_accuracy, client_drift"))
    ['client_accuracy', 'client_drift']
    """
    return [name.strip() for name in config.record.split(",") if name.strip()]


def tracker_names(config: Config) -> list[str]:
    """Returns the names in `track`, each once.

    >>> tracker_names(Config(track="wandb, tensorboard,wandb"))
    ['wandb', 'tensorboard']
    """
    return list(dict.fromkeys(name.strip() for name in config.track.split(",") if name.strip()))


def cohort_size(config: Config) -> int:
    """Returns K = max(1, floor(N x join ratio)), as published.

    >>> cohort_size(Config(clients=7, join_ratio=0.5))
    3
    """
    return max(1, int(config.clients * config.join_ratio))


def block_size(config: Config) -> int:
    """Returns H, the size of a cohort block: the fewest equal cohort blocks of at most `hold` clients.

    >>> block_size(Config(clients=20, join_ratio=0.5, hold=4)), block_size(Config(clients=20, join_ratio=0.5))
    (4, 10)
    """
    size = cohort_size(config)
    return -(-size // -(-size // config.hold)) if config.hold else size


def num_corrupt(config: Config) -> int:
    """Returns how many of the N clients are corrupt, in their updates or their rows."""
    kinds = (config.attack, config.corrupt)
    return max(round(kind.clients * config.clients) if kind.kind != "none" else 0 for kind in kinds)
