"""Every contract of the package: named tuples and callable aliases, no logic and no import of jax at run time.

Axes, used everywhere: `N` clients, `K` cohort of the round, `L` lanes, `F` minibatches of a schedule, `B` batch,
`V` validation batches, `G` groups, `C` classes, `T` pool, `R` rounds of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from jax import Array

    Vector = Array | np.ndarray

Tree = Any
"""A pytree of arrays."""

Hyper = Mapping[str, Any]
"""Continuous hyper-parameters by name, float scalars: traced values, so changing one compiles nothing."""


class UsageError(ValueError):
    """A mistake of the user's in one line: what was got, what is allowed, what to do. The command line exits 2.

    Control characters of the values it names are escaped, so that it is one line whatever they hold.
    """

    __module__ = "fedvg_jax"  # its public place, which tracebacks show

    def __str__(self) -> str:
        return one_line(super().__str__())


def one_line(text: str) -> str:
    """`text` with control characters, line separators and lone surrogates as escapes, such as \\n.

    >>> print(one_line("out a\\nb is taken"))
    out a\\nb is taken
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


# --- models ----------------------------------------------------------------------------------------------------------
class Variables(NamedTuple):
    """A model's arrays: `params` are trained, scored, aggregated; `stats` (BatchNorm's) are averaged, never scored."""

    params: Tree
    stats: Tree


class GradientSupport(NamedTuple):
    """The entries of the parameters whose gradient can be nonzero, as two functions between trees."""

    of: Callable[[Tree], Tree]
    """parameters -> the supported part of each tensor"""
    within: Callable[[Tree, Tree], Tree]
    """(parameters, supported parts) -> the parameters with those parts replaced"""


class Task(NamedTuple):
    """A model and its loss as pure functions. The engine assumes neither images nor classes: a `batch` is any pytree
    with leading axis B, and `mask` [B] bool marks its real rows."""

    init: Callable[[Array], Variables]
    """key -> variables."""
    loss: Callable[..., tuple[Array, Tree]]
    """(params, stats, batch, mask, train) -> (mean loss over the real rows, 0 without any; new stats).

    A random loss, e.g. of a model with Dropout, has a sixth parameter `key=None`. In local training it gets a key
    made of (seed, round, client id, step). Everywhere else, as in scoring D_val with `train`, it gets no key and must
    be deterministic: Dropout is the identity.
    """
    predict: Callable[[Tree, Tree, Tree], Array]
    """(params, stats, batch) -> outputs in evaluation mode, e.g. logits [B, C]."""
    measure: Callable[[Tree, Tree, Tree, Array], Tree]
    """(params, stats, batch, mask) -> sums over the real rows, to be added over batches."""
    metrics: Callable[[Tree], dict[str, float]]
    """added sums, on the host -> named metrics: `loss` and any others; `accuracy`, if there is one, is shown first"""
    block_of: Callable[[str], str]
    """path of a tensor, "a/b/kernel" -> name of its block."""
    support: GradientSupport | None = None
    """The entries of the parameters that can have a gradient; None for all."""


# --- data ------------------------------------------------------------------------------------------------------------
class Batch(NamedTuple):
    """Examples: for images `x` uint8 [..., H, W, D] and `y` int32 [...]; pixels are scaled inside the program."""

    x: Vector
    y: Vector


Augment = Callable[["Array", Tree], Tree]
"""(key, batch) -> batch, what a client sees of a minibatch while it trains; nothing else ever goes through it."""


class Data(NamedTuple):
    """All the device needs: ONE pool, and minibatches as tables of its row numbers (int32, -1 for no row)."""

    pool: Tree
    """Any pytree with leading axis T; for images a `Batch`."""
    scoring: Vector
    """[V, B] the shared validation set D_val in the groups it is scored in."""
    val: Vector
    """[.., B] D_val as it is evaluated."""
    test: Vector
    """[.., B] the pooled test set."""
    selection: Vector | None = None
    """[.., B] rows held out of `scoring` and `val` that choose the best round; None where D_val chooses it."""


# --- the schedule: all randomness of a round, as a value -------------------------------------------------------------
class Plan(NamedTuple):
    """K clients on L lanes, cut where one changes client: S = K + L segments at most; of blocks, [blocks, ...]."""

    num_segments: Vector
    """[] how many segments there are."""
    length: Vector
    """[S] steps of each segment."""
    client: Vector
    """[S, L] position in the cohort of the client on each lane."""
    step: Vector
    """[S, L] that client's first step of the segment."""
    reset: Vector
    """[S, L] bool: the lane takes this client up here, where it was laid down."""
    finish: Vector
    """[S, L] bool: the lane lays this client down here, finished or to go on with another lane."""


class Schedule(NamedTuple):
    """One round: who plays, and which rows are in which minibatch. NumPy on the host, in shapes that no draw moves."""

    clients: Vector
    """int32 [K] ids of the cohort, in sampling order."""
    num_samples: Vector
    """int32 [K] training rows n_k."""
    num_steps: Vector
    """int32 [K] minibatches of all local epochs."""
    start: Vector
    """int32 [K] where a client's minibatches begin in `rows`."""
    probe_steps: Vector
    """int32 [K] minibatches for an algorithm's probe, behind those of training; 0 where it has none."""
    heard: Vector
    """bool [K] False where a client drops out: it is not averaged, and its memory stays as it was."""
    shuffle: Vector
    """int32 [K] a permutation of the cohort, for the placebo."""
    key: Vector
    """uint32 [2] key data for what the device draws: the server's noise, corrupt clients' updates."""
    plan: Plan
    rows: Vector
    """int32 [F, B] the minibatches of all clients, one after the other; rows of the pool, -1 where there is none."""


# --- a federated algorithm is a few small pure functions -------------------------------------------------------------
class Anchor(NamedTuple):
    """What a client knows of the federation while it trains."""

    params: Tree
    """theta_g"""
    server: Tree
    client: Tree


class Cohort(NamedTuple):
    """What the server knows at the end of a round."""

    update: Tree
    """u = sum_k s_k (theta_g - theta_k)"""
    summed: Tree
    """sum_k m_k of the messages to be summed; an absent client sends zero"""
    averaged: Tree
    """sum_k s_k m_k of those to be averaged: () or a pytree for every tensor, under its own weights"""
    weights: Tree
    """s_k: pytree like the parameters, every leaf [K]"""
    probes: Tree
    """stacked [K, ...], what the probes found; zero from an absent client"""
    num_clients: int
    """N"""


Loop = Callable[["Array", Callable[["Array", Tree], Tree], Tree], Tree]
"""(count [], body: (i, carry) -> carry, carry) -> carry after `count` times; the count is data"""


class Probe(NamedTuple):
    """What a probe works with: the global model on one client's own minibatches."""

    task: Task
    variables: Variables
    batch: Callable[[Array], tuple[Tree, Array]]
    """number of the minibatch -> (batch, mask)"""
    num_batches: Array
    position: Array
    """of the client, in the cohort"""
    loop: Loop
    """for going through the batches"""


class Algorithm(NamedTuple):
    """A federated algorithm under the paper's general rule theta <- theta - sum_k s_k (theta - theta_k) + R.

    It acts on the trained tensors; under the published code's handling of running statistics, `report`, `residual` and
    the memories hold all `Variables`.
    """

    init: Callable[[Hyper, Tree], tuple[Tree, Tree]]
    """(hyper, params) -> (server memory, one client's memory)"""
    correct: Callable[[Hyper, Tree, Tree, Anchor], Tree]
    """(hyper, gradients, params, anchor) -> gradients"""
    report: Callable[[Hyper, Tree, Anchor, Array], tuple[Tree, Tree, Tree]]
    """(hyper, theta_k, anchor, displacement) -> (client memory, message to be summed, message to be averaged); how far
    the client's optimiser carries a constant unit gradient is the displacement: steps x lr for plain SGD"""
    residual: Callable[[Hyper, Tree, Tree, Cohort], tuple[Tree, Tree]]
    """(hyper, server memory, theta_g, cohort) -> (R, server memory)"""
    probe: Callable[[Hyper, Probe], Tree]
    """(hyper, probe) -> what one client measures of the global model before it trains"""
    native_weighting: str
    """what the algorithm's own paper uses"""


# --- a weighting is a measurement and a rule -------------------------------------------------------------------------
class Report(NamedTuple):
    """One client's return, as a signal sees it."""

    variables: Variables
    num_samples: Array
    delta: Tree
    """delta_k = theta_g - theta_k, trained tensors"""


class Returns(NamedTuple):
    """All the server holds when it weighs the cohort."""

    variables: Variables
    """the global model"""
    clients: Variables
    """the clients' models, stacked [K, ...]; None where it comes in blocks"""
    shuffle: Array
    """int32 [K] a permutation of the cohort"""
    data: Data
    present: Array | bool = True
    """bool [K] False for a client that dropped out, diverged or took no step: it gets weight 0, the others share 1"""


Signal = Callable[[Hyper, Report, Data], Tree]
"""(hyper, one client's report, data) -> pytree of scalars: the costly half of a weighting."""

Norm = Callable[["Array"], "Array"]
"""tensor -> non-negative scalar"""

Grouping = Callable[[Variables, Callable[[str], str]], Variables]
"""(variables, block_of) -> the same structure with a group number in every leaf; -1 takes uniform weights."""


Weigh = Callable[[Hyper, Tree, Returns], Variables]
"""(hyper, signals stacked [K], returns) -> weights: like the variables, every leaf [K]"""


class Term(NamedTuple):
    """A rule whose weights keep their ratios when clients are left out: s_j / s_k depends on the signals of j and k
    only. They sum to 1, are finite where the signals are, and need neither `clients` nor `shuffle` of the returns."""

    weigh: Weigh
    share: Callable[[Hyper, Tree, Returns], Variables]
    """(hyper, signals stacked [K], returns) -> c_t of the whole cohort: like the variables, every leaf []"""


class Weighting(NamedTuple):
    """Aggregation weights = `weigh` of stacked signals."""

    signal: Signal
    weigh: Callable[[Hyper, Tree, Returns], Variables]
    """(hyper, signals stacked [K], returns) -> Weights: like the variables, every leaf [K], sums to 1"""
    score: Callable[[Tree], Array]
    """signals stacked [K] -> [K] the number the history shows per client, e.g. G_k"""
    detail: Callable[[Tree], dict[str, Array]]
    """signals stacked [K] -> more for the history: name -> array [K, ...] of any rank, of real numbers or booleans"""
    terms: tuple[Term, ...] = ()
    """what `weigh` is the sum of; () for a rule that needs all models at once"""


# --- executors and rounds --------------------------------------------------------------------------------------------
class Client(NamedTuple):
    """One client's work as an executor runs it; it knows nothing of lanes."""

    init: Callable[[Array], Tree]
    """position in the cohort -> carry"""
    step: Callable[[Tree, Array, Array], Tree]
    """(carry, position in the cohort, minibatch number) -> carry"""


MakeClient = Callable[[Tree, Schedule], Client]
"""(what the clients share, schedule) -> one client's work"""


class Executor(NamedTuple):
    """How K clients are run, all with the same result. What clients share is an argument, to be put on every device."""

    num_lanes: int
    """lanes of the plan the schedule must carry"""
    train: Callable[[MakeClient, Tree, Schedule], Tree]
    """(make_client, shared, schedule) -> final carries stacked [K, ...] in cohort order"""
    map: Callable[[Callable[[Tree, Tree], Tree], Tree, Tree], Tree]
    """equal jobs: (function of (shared, one entry), shared, entries stacked [K, ...]) -> results stacked [K, ...]"""
    placement: Any = None
    """sharding of the state and the data, where there is more than one device"""
    loop: Loop | None = None
    """how steps are counted elsewhere in a round; by default `local.counted`"""
    lanes_together: int = 1
    """lanes of one device, between which a client may change"""


class SimState(NamedTuple):
    """The whole state of a simulation: what a checkpoint holds. No key: randomness is the schedule's."""

    round: Array
    variables: Variables
    server: Tree
    clients: Tree
    """one memory per client, stacked [N, ...]"""
    optimisers: Tree = ()
    """the memory of every client's optimiser, stacked [N, ...], where it is kept between rounds"""


class Metrics(NamedTuple):
    """What a round tells, as arrays [K]."""

    weights: Array
    """s_k, averaged over tensors where they differ"""
    scores: Array
    train_loss: Array
    """mean loss over the client's steps, 0 if it had none, NaN if it diverged"""
    finite: Array
    """1 where the client's model and loss are finite, 0 where it diverged"""
    detail: dict[str, Array]
    """what the weighting adds, arrays [K, ...]"""


RoundStep = Callable[[SimState, Schedule, Data, Hyper], tuple[SimState, Metrics]]
