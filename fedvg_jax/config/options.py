"""Every setting, as one frozen tree whose defaults are the digits demonstration."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from fedvg_jax.config.population import Corrupt, Validation
from fedvg_jax.config.robustness import Attack, Robust, Tuning
from fedvg_jax.core.types import UsageError


@dataclass(frozen=True)
class FedVG:
    """FedVG's weights: inverse norms of each client's gradient on the shared validation set."""

    signal: str = "gradient"
    """What is measured: gradient (of the loss on D_val), delta (how far the client moved), or fisher (per example)."""
    norm: str = "l1"
    """Its norm: l1 (published), l2, spectral (matrices only), spectral_l2 (l2 of vectors), or delta (l1 of delta)."""
    layer: str = "tensor"
    """What counts as one layer: each tensor (published), or a module, weight and bias together."""
    include: str = ""
    """Regular expression: only tensors whose path "a/b/kernel" it is found in count, e.g. ^classifier/."""
    per_element: bool = False
    """Divide the norm by the number of entries (l1), or by its root (the others)."""
    granularity: str = "modelwise"
    """One weight per client (modelwise), per tensor (layerwise) or per block (blockwise)."""
    block: str = "residual"
    """A ResNet's blocks: each residual block (residual, as the paper), or six stages (stage, as the published code)."""
    eps: float = 1e-8
    """Added to the norm before it is inverted."""
    mode: str = "train"
    """BatchNorm while scoring: train (published: statistics of each batch) or eval (running statistics)."""
    stats: str = "uniform"
    """Layerwise, running statistics take uniform weights (published), or the mean of their own layer's."""
    fit_steps: int = 10
    """Steps of --weighting fitted."""
    fit_rate: float = 1.0
    """Rate of --weighting fitted, per unit of loss."""
    link: str = "inverse"
    """--weighting generalised: a power of the inverse norm (inverse), or softmax of the norms over their mean."""
    exponent: float = 1.0
    """--weighting generalised: power of the inverse norm; 0 is uniform, 1 published."""
    temperature: float = 1.0
    """--weighting generalised: weights to the power 1 / temperature; large is uniform."""
    mix: float = 0.0
    """--weighting generalised: the part n_k / N has in the weights, in [0, 1]; 0.5 is FedAvg + FedVG."""
    multipliers: str = ""
    """--weighting generalised: factors of tensors' norms, REGEX=NUMBER,...; the first that matches counts, else 1."""


@dataclass(frozen=True)
class FedAvgM:
    """FedAvgM: the server's momentum."""

    momentum: float = 0.9
    """Nesterov momentum beta of the server."""
    lr: float = 1.0
    """Learning rate of the server."""


@dataclass(frozen=True)
class FedOpt:
    """FedAdam, FedYogi, FedAdagrad: the server's adaptive optimiser."""

    lr: float = 0.1
    """Learning rate of the server."""
    b1: float = 0.9
    """Decay of the first moment (FedAdam, FedYogi; FedAdagrad only as official, by the paper it has none)."""
    b2: float = 0.999
    """Decay of the second moment (FedAdam, FedYogi)."""
    eps: float = 1e-3
    """Added to the root of the second moment: tau."""
    variant: str = "paper"
    """The rule: Algorithm 2 of Reddi et al. (paper), the published FedVG code's (official: the second moment starts at
    0), or optax's optimisers (optax: bias-corrected, and eps of FedAdagrad inside the root)."""


@dataclass(frozen=True)
class FedProx:
    """FedProx: the proximal term."""

    mu: float = 0.01
    """Strength of the pull to the global model."""


@dataclass(frozen=True)
class Scaffold:
    """Scaffold: control variates."""

    eta_g: float = 1.0
    """Learning rate of the server."""
    steps: str = "epochs"
    """A local epoch: all minibatches (epochs), or a single one (single, as the published code)."""
    memory: str = "kept"
    """Clients' control variates: kept, or lost after every round (as the published code)."""


@dataclass(frozen=True)
class FedDyn:
    """FedDyn: the dynamic regulariser."""

    alpha: float = 0.1
    """Strength of the regulariser."""
    clip: float = 10.0
    """Global norm a client's gradient is clipped to."""
    regulariser: str = "full"
    """full, or linear: without alpha theta (as the published code)."""
    weights: str = "uniform"
    """Weights where --weighting is native: uniform, or samples (as the published code)."""
    average: str = "always"
    """Under fedvg weights the clients are averaged always, or only in the first round (once, as the published code)."""


@dataclass(frozen=True)
class Elastic:
    """Elastic aggregation: sensitive tensors move less."""

    ratio: float = 0.3
    """Share of a client's rows that sensitivity is measured on."""
    tau: float = 0.5
    """Least sensitive tensors move by 1 + tau, the most sensitive by tau."""
    mu: float = 0.95
    """Decay of the moving average of sensitivities over batches."""
    sensitivity: str = "output"
    """Gradient of the outputs, compared over tensors (output), or of the loss, over clients (official)."""
    rows: str = "all"
    """A client trains on all its rows, or on the rest it did not probe (as the published code)."""


@dataclass(frozen=True)
class Config:
    """One federated run."""

    dataset: str = "digits"
    """Data set: digits (built in), cifar10, cifar100, stl10, organamnist, dermamnist, tinyimagenet, covid19; npz (any
    .npz of arrays), encoded (of JPEG bytes), folder (a sub-folder per class), or tfds:NAME (prepared by TFDS)."""
    data_dir: Path | None = None
    """Folder (or file) with the raw data set."""
    image_size: str = ""
    """Images of S or HxW pixels: which MedMNIST file is read; what image files are resized to. Default: the set's."""
    splits: str = "all"
    """Splits pooled: all, or official, as the published code: DermaMNIST without its validation split."""
    model: str = "mlp"
    """Model: mlp, tinycnn (8x8 images), cnn, lenet5, resnet18, resnet34, resnet50, vit_s16, vit_b16."""
    pretrained: Path | None = None
    """A .safetensors file of ImageNet weights, torchvision's or timm's names: ResNets and ViTs, under a fresh head."""
    stem: str = "imagenet"
    """A ResNet's first convolution: imagenet (7x7, stride 2, max-pool; published) or cifar (3x3)."""
    norm: str = "batch"
    """A ResNet's normalisation layers: batch (published) or group."""
    normalise: str = "none"
    """Pixels: / 255 only (none, as published), then by mean and deviation of ImageNet (imagenet) or 1/2 (half)."""
    augment: str = "none"
    """In training, images are shown: as they are (none, as published), flip, crop (pad 4), or flip_crop."""
    algorithm: str = "fedavg"
    """Algorithm: fedavg, fedavgm, fedprox, scaffold, feddyn, elastic, fedadam, fedyogi, fedadagrad, fednova."""
    weighting: str = "fedvg"
    """Weights: samples (n_k/N), uniform, fedvg, inverse_samples, val_loss, val_accuracy, fltrust, fitted, generalised,
    native (the algorithm's own); a placebo, permuted(fedvg); or a mean of two, samples+fedvg."""
    alpha: float = 0.05
    """Dirichlet concentration of the clients' labels (partition quantity: of their sizes): small is skewed."""
    clients: int = 20
    """Number of clients N."""
    join_ratio: float = 0.5
    """Share of the clients sampled each round, in (0, 1]."""
    rounds: int = 100
    """Rounds of federated training."""
    local_epochs: int | str = 5
    """Epochs each client trains per round; MIN:MAX draws a number for every client (stragglers)."""
    batch_size: int = 32
    """Minibatch size, for training and for scoring; 1 needs a model without BatchNorm."""
    lr: float = 0.2
    """Client learning rate."""
    optimiser: str = "sgd"
    """Clients' optimiser: sgd, adam, or adamw (weight decay apart from the gradient)."""
    momentum: float = 0.0
    """Client momentum, of sgd."""
    optimiser_state: str = "reset"
    """The memory of a client's optimiser is forgotten between rounds (reset), or kept until it plays again (kept)."""
    weight_decay: float = 0.0
    """Client weight decay."""
    lr_schedule: str = "constant"
    """Client learning rate over rounds: constant, exponential (times lr_decay each round), cosine (to 0 at the end)."""
    lr_decay: float = 0.99
    """Factor of the exponential schedule."""
    dropout: float = 0.0
    """Probability that a client of the cohort drops out of the round."""
    untrained: str = "absent"
    """A client that takes no local step, for want of rows: absent (weight 0, as one that dropped out), or weighed like
    the others though it returns the global model (weighed, as the published code)."""
    single_rows: str = "trained"
    """Minibatches of a single row: trained on, except where BatchNorm's statistics of one row are undefined (trained),
    or skipped for every model (skipped, as the published code)."""
    nonfinite: str = "raise"
    """A client whose model or loss is not finite: raise (stop the run) or skip (leave it out of the round)."""
    seed: int = 0
    """Seed of the model, the cohorts and the minibatches."""
    partition: str = "dirichlet"
    """How clients get their rows: dirichlet (bulk draws), official (the published stream, draw for draw),
    dirichlet_equal (equal sizes), balanced_client (so too, client 0 balanced), quantity, iid, shards, classes, group,
    or file."""
    shards_per_client: int = 2
    """Partition shards: pieces of the rows sorted by label that every client gets."""
    classes_per_client: int = 2
    """Partition classes: different classes that every client holds."""
    partition_file: Path | None = None
    """Partition file: a .npz or .json of every client's rows."""
    split: str = "client"
    """Validation and test rows are held out inside each client (client, published), or of the whole set before it is
    partitioned (global, the paper's text; stratified, the same with every class in proportion)."""
    cohorts: str = "seeded"
    """Who plays: seeded, from (seed, round); or official, the published stream, draw for draw."""
    server_stats: str = "averaged"
    """Running statistics take the weighted mean (averaged), or every rule of the server like parameters (official)."""
    partition_seed: int = 42
    """Seed of the partition, kept apart from the run's seed."""
    min_samples: int = 10
    """Fewest rows a client may hold, before its own split."""
    min_samples_rule: str = "redraw"
    """When a draw leaves a client too few rows: redraw (published), or top_up from the largest client."""
    test_ratio: float = 0.25
    """Share of every client's rows that joins the test set."""
    val_ratio: float = 0.1
    """Share of every client's rows that joins the shared validation set; 0 where that is external."""
    select: str = "shared"
    """Validation rows that choose the best round: D_val, which FedVG's weights also use (shared), or a random half of
    it that is held out of the weights (held_out)."""
    eval_every: int = 5
    """Evaluate every so many rounds, and after the last."""
    lanes: str = "auto"
    """Clients trained side by side on a device: auto, a number, or all (one vmap over the cohort)."""
    hold: int = 0
    """Clients held at a time: a round's memory grows with them, not with the cohort. 0: the whole cohort."""
    devices: str = "auto"
    """Devices that share a cohort: auto, or a number; the cores of a CPU can serve as devices."""
    conv: str = "auto"
    """Convolution: gemm (live-tap patches and one matmul), winograd (fewer products for 3x3 kernels and on very
    small images, else gemm), planes (gemm with the images of a batch innermost, for tinycnn, cnn and lenet5), lax
    (XLA's own), or auto (by platform, model and size)."""
    precision: str = "default"
    """A model's arithmetic: default (float32, its products as the device rounds them: TF32 on a GPU), highest (float32
    throughout), or bfloat16; parameters, norms and averages stay float32."""
    export: Path | None = None
    """File for the final model, .safetensors: a ResNet's and a ViT's with torch's names, for `load_state_dict`."""
    dry_run: bool = False
    """Print the plan (steps, images, memory, time) after timing a sample of each part, and run nothing."""
    force: bool = False
    """Start although the estimate of memory is above what this machine has."""
    profile: Path | None = None
    """Folder for a trace of the first chunks of rounds, for TensorBoard or Perfetto."""
    out: Path | None = None
    """Run folder; default runs/<time>-<method>."""
    resume: str | None = None
    """Continue the run in this folder; or auto: the last run begun with these settings, or a new one."""
    checkpoint_every: int = 0
    """Save the state every so many rounds; 0: about once a minute. The last round, and a stop, are saved anyway."""
    keep: int = 2
    """Newest checkpoints kept, each with the model best on validation (see select); 0 writes none."""
    deterministic: bool = False
    """On a GPU, only operations that give the same bits every time; slower. A CPU always does."""
    cache_dir: Path | None = None
    """Decoded data, partitions and compiled programs; default $FEDVG_CACHE_DIR or ~/.cache/fedvg_jax. It is made for
    its user alone; one that belongs to another user, or that others may write, is refused."""
    trust_cache: bool = False
    """Use the cache folder even where another user owns it or may write to it: programs found there are run."""
    config: Path | None = None
    """TOML file of settings; the command line overrides it."""
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


def default_cache_dir() -> Path:
    """Where decoded data, partitions and compiled programs are kept unless `cache_dir` says otherwise.

    Raises:
        UsageError: there is no home folder to keep them in, and `$FEDVG_CACHE_DIR` is not set.
    """
    if folder := os.environ.get("FEDVG_CACHE_DIR"):
        return Path(folder)
    try:
        return Path.home() / ".cache" / "fedvg_jax"
    except RuntimeError:  # a user without a passwd entry, as in many containers, and no $HOME
        raise UsageError("this user has no home folder; set FEDVG_CACHE_DIR or HOME, or give --cache-dir DIR") from None


def method_name(config: Config) -> str:
    """Algorithm and weighting in a name fit for a folder."""
    return f"{config.algorithm}-{config.weighting.replace('(', '-').replace(')', '')}"


def cohort_size(config: Config) -> int:
    """K = max(1, floor(N * join ratio)), as published."""
    return max(1, int(config.clients * config.join_ratio))


def block_size(config: Config) -> int:
    """H, clients held at a time: the cohort in as few blocks of at most `hold` as there can be, of one size."""
    size = cohort_size(config)
    return -(-size // -(-size // config.hold)) if config.hold else size


def num_corrupt(config: Config) -> int:
    """How many of the N clients are corrupt, in their updates or their rows."""
    kinds = (config.attack, config.corrupt)
    return max(round(kind.clients * config.clients) if kind.kind != "none" else 0 for kind in kinds)
