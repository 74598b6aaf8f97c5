"""The contracts of the package: named tuples and aliases of functions. No import of jax at run time.

The general rule of a round, with all symbols used in this file:

    theta <- theta_g - sum_k s_k (theta_g - theta_k) + R

theta_g is the global model, theta_k the model that client k returns, s_k its aggregation weight, and R the algorithm's
residual. Axes of shapes, used everywhere: `N` clients of the federation, `K` clients of a cohort, `H` clients of a
client chunk, `M` rows of client states, `L` lanes, `S` segments of a plan, `F` minibatches of a schedule, `B` rows
of a minibatch, `V` validation batches, `G` groups of tensors, `C` classes, `T` rows of the pool, `R` rounds of a chunk.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fedvg_jax.host.errors import UsageError

if TYPE_CHECKING:
    from jax import Array


Vector = Any
"""An array. The type is Any, because trees of the same structure also hold shapes, shardings and indices."""

Tree = Any
"""A pytree of arrays."""

Hyper = Mapping[str, Any]
"""Continuous hyperparameters by name, float scalars []. They are traced values: another value compiles nothing."""


class Range(NamedTuple):
    """The finite numbers that a setting or a hyperparameter may be."""

    low: float = -math.inf
    high: float = math.inf
    excludes_low: bool = False
    """Whether `low` itself is not allowed, as in (0, 1]."""
    excludes_high: bool = False

    @property
    def words(self) -> str:
        """What a number must be, as messages say it.

        >>> Range(0, 1, excludes_low=True).words, Range(0, excludes_high=True).words
        ('in (0, 1]', 'in [0, inf)')
        """
        opening, closing = "[("[self.excludes_low], "])"[self.excludes_high]
        return f"in {opening}{self.low:g}, {self.high:g}{closing}"

    def holds(self, value: float) -> bool:
        """Returns whether a finite number is in the range."""
        is_above = value > self.low if self.excludes_low else value >= self.low
        is_below = value < self.high if self.excludes_high else value <= self.high
        return is_above and is_below and math.isfinite(value)

    def require(self, what: str, value: Any) -> float:
        """Returns a number; raises UsageError for one outside the range, or for what is none.

        >>> Range(0, 1).require("top_k: fraction", 2)
        Traceback (most recent call last):
            ...
        fedvg_jax.UsageError: top_k: fraction must be in [0, 1]; got 2
        """
        try:
            number = math.nan if isinstance(value, str) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not self.holds(number):
            raise UsageError(f"{what} must be {self.words}; got {value!s:.100}")
        return number


class Hyperparameter(NamedTuple):
    """A continuous hyperparameter that an algorithm or a weighting declares.

    Its functions read it as `hyper[name]`, a traced float32 scalar: new values do not recompile, and a round can be
    differentiated by it.
    """

    name: str
    """the name of its setting, if there is one, such as scaffold.eta_g"""
    value: float
    """default"""
    low: float = -math.inf
    high: float = math.inf
    doc: str = ""
    """one line: what it does, with its symbol in the paper"""
    excludes_low: bool = False
    """whether `low` itself is not allowed, as in (0, 1]"""
    excludes_high: bool = False

    @property
    def range(self) -> Range:
        """The allowed values."""
        return Range(self.low, self.high, self.excludes_low, self.excludes_high)


class Argument(NamedTuple):
    """A value behind a name and a colon in a setting, such as 0.01 in topk:0.01."""

    default: Any
    """It has the type of the value; a tuple stands for several numbers, such as 1,2, and "" for a required text."""
    range: Range | None = None
    traced: str = ""
    """Name of the traced scalar that has this value; the functions of a round then read it."""


class Choice(NamedTuple):
    """What a name in a setting stands for."""

    make: Callable[..., Any] | None = None
    """Makes the object from the argument; None if the name itself says what to do."""
    argument: Argument | None = None
    problem: Callable[..., str] | None = None
    """(size of a cohort, *argument) -> why they do not fit together, "" if they do; None for whatever fits"""

    def made(self, value: Any) -> Any:
        """Returns what the name stands for, with the value behind it.

        >>> Choice(pow, Argument((2, 3))).made((3, 2)), Choice(lambda: "mean").made(None)
        (9, 'mean')
        """
        assert self.make is not None
        if self.argument is None:
            return self.make()
        return self.make(*value) if isinstance(value, tuple) else self.make(value)


def hyper_or_number(hyper: Hyper, value: float | str) -> Any:
    """Returns a number of a factory, or the hyperparameter that is named in its place."""
    return hyper[value] if isinstance(value, str) else value


class Metric(NamedTuple):
    """A custom metric for `metrics=` of `run` and `run_sweep`. It says which of its values are better.

    >>> Metric(lambda model, data: 0.0, better="lower").better
    'lower'
    """

    function: Callable[..., Any]
    """(global model, data) -> one number; a metric of a task takes (output, y) of one example"""
    better: Literal["higher", "lower"] | None = None
    """which values are better; None leaves it to the option --metric of a report"""
    rows: Literal["val", "test"] = "test"
    """rows of `data` that it measures; values are tuned by metrics on "val" only"""


class Option(NamedTuple):
    """An argument of a factory that a setting sets, with its default: a choice, not a traced number."""

    name: str
    """name of the setting, such as fedvg.norm for an argument `norm`"""
    value: Any
    """default"""
    allowed: tuple[str, ...] | Range | None = None
    doc: str = ""
    used: Mapping[str, tuple[str, ...]] = {}
    """other option -> its values with which this one is used"""
    word: str = ""
    """word for its value in help, if the type says too little"""
    is_compiled: bool = True
    """whether another value is another program"""


def compiled(pattern: str, name: str) -> re.Pattern[str]:
    """Returns a regular expression; raises UsageError if it is invalid, too deeply nested or repeats too often."""
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(
            f"{name} is not a regular expression: {error}; got {pattern[:100]}"
        ) from None


def named(known: Mapping[str, Any], name: str, what: str) -> Any:
    """Returns the entry of `known` under a name.

    Args:
        known: name -> entry.
        name: the name to look up.
        what: what it names, for messages.

    Raises:
        UsageError: for an unknown name; it lists the allowed names.

    >>> named({"l1": 1, "l2": 2}, "l2", "norm")
    2
    """
    if name not in list(known):  # which an unhashable value is not in either
        raise UsageError(f"unknown {what} '{name}'; there are {', '.join(known)}")
    return known[name]


# --- models ----------------------------------------------------------------------------------------------------------
class Variables(NamedTuple):
    """A model's arrays."""

    params: Tree
    """Trained, scored and aggregated tensors."""
    stats: Tree
    """Running statistics (BatchNorm): averaged, never trained or scored. {} without any."""


class Outputs(NamedTuple):
    """What a model computes from a minibatch, for losses that see more than the task's loss."""

    loss: Array
    """[] the task's mean loss over the real rows."""
    outputs: Tree
    """Leaves [B, ...], e.g. logits [B, C]."""
    features: Array | None
    """[B, ...] the input of the last layer, see `models.task.recorded_features`; None if it is not known."""


class Task(NamedTuple):
    """A model and its loss, as pure functions.

    A `batch` is any pytree with leading axis B; neither images nor classes are assumed. `mask`, bool [B], is
    False for padded rows, which must not affect any result.
    """

    init: Callable[[Array], Variables]
    """key -> initial variables"""
    loss: Callable[..., tuple[Array, Tree]]
    """(params, stats, batch, mask, train) -> (mean loss over the real rows [], 0 without any; new stats)

    `train` is a Python bool: whether BatchNorm uses the statistics of the batch, and moves its running ones by them.

    A random loss, e.g. of a model with Dropout, has a sixth parameter `key=None`. In local training it gets a key made
    of (seed, round, client id, step). Everywhere else, as in scoring D_val with `train`, it gets no key and must be
    deterministic: Dropout is the identity.
    """
    predict: Callable[[Tree, Tree, Tree], Array]
    """(params, stats, batch) -> outputs in evaluation mode, e.g. logits [B, C]"""
    measure: Callable[[Tree, Tree, Tree, Array], Tree]
    """(params, stats, batch, mask) -> sums over the real rows, which are then added over batches"""
    metrics: Callable[[Tree], dict[str, float]]
    """sums over all batches, on the host -> metrics by name: `loss` and any others; `accuracy` is shown first if it
    exists"""
    block_of: Callable[[str], str]
    """path of a tensor, "a/b/kernel" -> name of its network block"""
    takes_groups: bool = False
    """Whether `loss` also takes several groups of B rows at once: a mask bool [G, B], and a batch of G B rows.

    Each group then has separate batch statistics, the loss is the mean over the real rows of all groups, and the
    running statistics are returned unchanged."""
    forward: Callable[..., tuple[Outputs, Tree]] | None = None
    """(params, stats, batch, mask, train, key=None) -> (`Outputs`, new stats), in one pass and equal to `loss`.

    Only algorithms with a custom loss need it."""
    is_frozen: Callable[[str], bool] | None = None
    """path of a parameter -> whether no run trains it, such as a kernel beside an adapter; None for no such parameter.
    `core.trained_part` leaves them out."""
    better: tuple[tuple[str, str], ...] = ()
    """(metric, "higher" or "lower") of its metrics: which values are better, for reports"""


# --- data ------------------------------------------------------------------------------------------------------------
class Batch(NamedTuple):
    """Examples and labels."""

    x: Vector
    """[..., H, W, D] uint8 for images, which are scaled inside the program; any shape and dtype otherwise."""
    y: Vector
    """[...] int32 for classes."""


Augment = Callable[["Array", Tree], Tree]
"""(key, batch) -> batch that a client trains on. Probes, scores and evaluations use the rows as they are."""


class ClientRows(NamedTuple):
    """The training rows of one client, NumPy arrays, which it describes before the first round."""

    x: Vector
    """[n, ...]"""
    y: Vector
    """[n, ...]"""
    num_classes: int
    """C, 0 for a data set without classes"""

    def label_counts(self) -> Vector:
        """Returns int32 [C], the number of labels of every class.

        Raises:
            UsageError: the labels are not numbers of classes.
        """
        is_of_classes = np.issubdtype(self.y.dtype, np.integer) and self.num_classes > 0
        if not is_of_classes:
            raise UsageError(
                f"label counts need labels of classes; got {self.y.dtype} labels and {self.num_classes} classes; use"
                " another algorithm or weighting"
            )
        return np.bincount(self.y.ravel(), minlength=self.num_classes).astype(np.int32)


Describe = Callable[[ClientRows], Tree]
"""a client's training rows -> pytree of numbers or NumPy arrays, of the same shapes for every client

It is called once for every client before the first round, outside of any program."""


class Described(NamedTuple):
    """What `describe` returned for every client, leaves [N, ...]; () without it."""

    algorithm: Tree = ()
    """of `Algorithm.describe`; () in what a weighting sees, because it stays with the clients"""
    weighting: Tree = ()
    """of `Weighting.describe`"""


class Data(NamedTuple):
    """The arrays on the device: one pool of rows, and tables of its row numbers, int32, -1 for padding."""

    pool: Tree
    """Any pytree with leading axis T; for images a `Batch`."""
    scoring: Vector
    """[V, B] the shared validation set D_val, in the batches in which it is scored."""
    val: Vector
    """[.., B] D_val, in the batches in which it is evaluated."""
    test: Vector
    """[.., B] the test rows of all clients; None in a round with the pool on the host, unless something reads them."""
    training: Tree = None
    """The rows that `Schedule.rows` numbers, if `pool` does not hold them: like `pool`, leaves [C, ...]. None if
    `Schedule.rows` numbers `pool`."""
    base: Tree = None
    """The frozen tensors of the model, if only a part is trained, see `core.trained_part`."""
    described: Described = Described()


# --- the schedule: all randomness of a round, as a value -------------------------------------------------------------
class Plan(NamedTuple):
    """Which client each lane trains at which time, in segments within which no lane changes client.

    There are at most S = K + L segments; entries past `num_segments` are ignored. The plans of several client chunks
    are stacked, leaves [chunks, ...], with H in place of K.
    """

    num_segments: Vector
    """int32 []."""
    length: Vector
    """int32 [S] steps of each segment."""
    client: Vector
    """int32 [S, L] position in the cohort of the client on each lane."""
    step: Vector
    """int32 [S, L] that client's first local step of the segment."""
    reset: Vector
    """bool [S, L] whether the lane loads this client: at its first step, or where another lane stored it."""
    finish: Vector
    """bool [S, L] whether the lane stores this client: at its last step, or for another lane to continue."""


class Schedule(NamedTuple):
    """One round's randomness: the cohort and its minibatches. NumPy on the host; shapes depend on settings only."""

    clients: Vector
    """int32 [K] ids of the cohort, in sampling order."""
    num_samples: Vector
    """int32 [K] training rows n_k."""
    num_steps: Vector
    """int32 [K] local steps: minibatches of all local epochs."""
    start: Vector
    """int32 [K] index in `rows` of a client's first minibatch."""
    probe_steps: Vector
    """int32 [K] minibatches of the algorithm's probe, which follow the training minibatches; 0 without a probe."""
    participating: Vector
    """bool [K] False for a client that drops out: it is not averaged, and its state is unchanged."""
    shuffle: Vector
    """int32 [K] a permutation of the cohort, for the placebo weighting."""
    key: Vector
    """uint32 [2] key data of the round, for draws on the device."""
    plan: Plan
    rows: Vector
    """int32 [F, B] the minibatches of all clients, one client after the other: rows of the pool, -1 for padding."""
    state_rows: Vector = None
    """int32 [K] rows of the client states in the state; None if row k is client k's, for all N clients, which a round
    sets."""
    keys: Vector = None
    """uint32 [K, 2] key data of each client's training on a buffered server; None where all clients have `key`."""
    received: Vector = None
    """int32 [K] slot of `SimState.versions` with the model that each client received; None for a synchronous round."""
    stored: Vector = None
    """int32 [] slot that the new model takes, past the last one if no client receives it; None if synchronous."""
    staleness: Vector = None
    """int32 [K] tau_k, updates of the server since each client received its model; None if synchronous."""
    waited: Any = None
    """`Waited`, on the host alone; None without a clock."""


class Waited(NamedTuple):
    """What a synchronous server waited for in a round."""

    seconds: float
    """virtual seconds of the round"""
    late: Vector
    """int [n] ids of clients that trained and are not averaged"""
    num_asked: int
    """clients that received the model"""
    num_sent: int
    """clients that sent theirs, late ones among them"""


class Population(NamedTuple):
    """What a selection gets before a round. NumPy, on the host."""

    round: int
    """from 0"""
    rng: Any
    """NumPy's generator of (seed, round)"""
    num_samples: Vector
    """int [N] training rows n_k"""
    cohort_size: int
    """K"""
    losses: Callable[[Vector], Vector]
    """ids [n] -> mean losses [n] of theta_g on these clients' training rows, in evaluation mode"""


class Selection(NamedTuple):
    """Which clients train in a round: the cohort as a function of a `Population`."""

    choose: Callable[[Population], Vector]
    """population -> ids of K different clients"""
    num_candidates: int = 0
    """Most losses that `choose` asks for in a round; with 0 it may ask for none, and rounds run in chunks."""
    text: str = ""
    """as the setting `selection` names it; "" for another"""


# --- a federated algorithm: a few pure functions ----------------------------------------------------------------------
class Anchor(NamedTuple):
    """What a client receives from the federation before it trains."""

    params: Tree
    """theta_g."""
    server: Tree
    """The server's state."""
    client: Tree
    """This client's state."""
    described: Tree = ()
    """What `Algorithm.describe` returned for this client; () without it."""


class Cohort(NamedTuple):
    """What the server computes the residual from, at the end of a round."""

    update: Tree
    """u = sum_k s_k (theta_g - theta_k), like the parameters."""
    summed: Tree
    """sum_k m_k of the messages to be summed; dropped clients send zeros."""
    averaged: Tree
    """sum_k s_k m_k of the messages to be averaged, each tensor's message under that tensor's weights; or ()."""
    weights: Tree
    """s_k: like the parameters, every leaf [K]."""
    probes: Tree
    """Results of the probes, leaves [K, ...]; zeros for dropped clients."""
    num_clients: int
    """N."""


Loop = Callable[["Array", Callable[["Array", Tree], Tree], Tree], Tree]
"""(count int32 [], body: (i, carry) -> carry, carry) -> carry after `count` iterations; the count is data"""


class Probe(NamedTuple):
    """What an algorithm's probe works on: the global model and one client's minibatches."""

    task: Task
    variables: Variables
    """The global model."""
    batch: Callable[[Array], tuple[Tree, Array]]
    """number of a minibatch -> (batch, mask)"""
    num_batches: Array
    """int32 []."""
    position: Array
    """int32 [] the client's position in the cohort."""
    loop: Loop
    """Runs through the minibatches."""


class Send(NamedTuple):
    """How clients send their updates, e.g. compressed. The server scores and averages what arrives."""

    init: Callable[[Hyper, Tree], Tree]
    """(hyper, the sent parameters) -> what one client keeps from round to round; () for nothing"""
    apply: Callable[[Hyper, Array, Tree, Tree], tuple[Tree, Tree]]
    """(hyper, key of round and client, delta_k = theta_g - theta_k, state) -> (what arrives of delta_k, state)"""
    num_bytes: Callable[[Tree], int]
    """the sent parameters, arrays or shapes -> bytes of what is sent in place of them"""
    text: str = ""
    """as the setting `send` names it; "" for another"""


class Algorithm(NamedTuple):
    """A federated algorithm under the general rule theta <- theta_g - sum_k s_k (theta_g - theta_k) + R.

    It acts on the trained tensors, `params` below. If the server treats running statistics like parameters, as the
    published code does, then `report`, `residual` and the client states hold whole `Variables`.
    """

    init: Callable[[Hyper, Tree], tuple[Tree, Tree]]
    """(hyper, params) -> (the server's state, the state of one client)"""
    correct: Callable[[Hyper, Tree, Tree, Anchor], Tree]
    """(hyper, gradients, params, anchor) -> gradients of a local step"""
    report: Callable[[Hyper, Tree, Anchor, Array], tuple[Tree, Tree, Tree]]
    """(hyper, theta_k, anchor, displacement) -> (the client's state, message to be summed, message to be averaged)

    The displacement [] is the distance that the client's optimiser moves under a constant unit gradient: steps x lr for
    plain SGD.
    """
    residual: Callable[[Hyper, Tree, Tree, Cohort], tuple[Tree, Tree]]
    """(hyper, the server's state, theta_g, cohort) -> (R, the server's state)"""
    probe: Callable[[Hyper, Probe], Tree]
    """(hyper, probe) -> what one client measures on the global model before it trains, on `probe_ratio` of its rows"""
    native_weighting: str
    """Name of the weighting in the algorithm's paper."""
    hyperparameters: tuple[Hyperparameter, ...] = ()
    """the hyperparameters that its functions read, except `lr`"""
    loss: (
        Callable[[Hyper, Task, Tree, Tree, Tree, Array, Array, Anchor], tuple[Array, Tree]] | None
    ) = None
    """(hyper, task, params, stats, batch, mask, key, anchor) -> (loss of a local step [], new stats)

    None for `task.loss`. The key belongs to the step."""
    reads_features: bool = False
    """whether its loss reads `Outputs.features`, which a trained tensor must then affect"""
    personal: Callable[[Hyper, Tree, Tree, Anchor], Tree] | None = None
    """(hyper, gradients, params, anchor) -> gradients of a local step of the client's personal model; None without one

    It starts from the initial model, takes a step by `task.loss` on every minibatch that the client trains on,
    and stays with the client from round to round."""
    send: Send | None = None
    """how theta_k is sent; `report` gets what arrives. None sends it unchanged"""
    describe: Describe | None = None
    """what a client computes of its training rows before the first round; it reaches `loss`, `correct`, `personal` and
    `report` as `anchor.described` and stays on the client"""
    single_batches: bool = False
    """whether a local epoch is one minibatch, as in the published code's Scaffold"""
    probe_ratio: float = 0.0
    """share of a client's rows that its probe reads, in (0, 1]; no program depends on it"""


class Published(NamedTuple):
    """A behaviour of the published code that an algorithm can have."""

    arguments: Mapping[str, Any] = {}
    """arguments of the algorithm's factory for this behaviour"""
    weighting: str = ""
    """name of the only weighting that a run has it with; "" for all"""


class NamedAlgorithm(NamedTuple):
    """An algorithm that settings name. Its factory needs no argument and takes the options."""

    label: str
    """its spelling in papers"""
    make: Callable[..., Algorithm]
    hyperparameters: tuple[Hyperparameter, ...] = ()
    """those that it declares, also for behaviours of the published code; so that no factory runs on import"""
    options: tuple[Option, ...] = ()
    published: Mapping[str, Published] = {}
    """name of a difference between papers and published code -> the published behaviour"""


# --- a weighting: a signal and a rule ---------------------------------------------------------------------------------
class ClientReturn(NamedTuple):
    """What one client returns; signals are computed from it."""

    variables: Variables
    """theta_k and running statistics."""
    num_samples: Array
    """int32 [] training rows n_k."""
    delta: Tree
    """delta_k = theta_g - theta_k, trained tensors only."""
    id: Array | None = None
    """int32 [] number of the client, in 0..N - 1."""
    described: Tree = ()
    """What `Weighting.describe` returned for this client; () without it. `data.described.weighting` has all of them."""


class ServerView(NamedTuple):
    """What the server holds when it weighs the cohort."""

    variables: Variables
    """The global model."""
    clients: Variables | None
    """The clients' models, leaves [K, ...]; None for a cohort in several client chunks."""
    shuffle: Array
    """int32 [K] a permutation of the cohort."""
    data: Data
    participating: Array | bool = True
    """bool [K] False for a client that dropped out, diverged or took no step. It gets weight 0; the other weights sum
    to 1."""


Signal = Callable[[Hyper, ClientReturn, Data], Tree]
"""(hyper, one client's return, data) -> pytree of scalars []: the expensive part of a weighting"""

Norm = Callable[["Array"], "Array"]
"""tensor -> non-negative scalar []"""

Grouping = Callable[[Variables, Callable[[str], str]], Variables]
"""(variables, block_of) -> like the variables, with a group number in every leaf; -1 takes uniform weights"""

Weigh = Callable[[Hyper, Tree, ServerView], Variables]
"""(hyper, signals with leaves [K], view) -> weights: like the variables, every leaf [K]"""


class Term(NamedTuple):
    """A rule with weights that keep their ratios when clients are left out: s_j / s_k depends on signals j and k only.

    The weights sum to 1, are finite for finite signals, and use neither `clients` nor `shuffle` of the view.
    """

    weigh: Weigh
    """(hyper, signals with leaves [K], view) -> the term's weights s_k^t: like the variables, every leaf [K]"""
    share: Callable[[Hyper, Tree, ServerView], Variables]
    """(hyper, signals with leaves [K], view) -> c_t of the whole cohort: like the variables, every leaf []"""


class WeightingState(NamedTuple):
    """What a weighting keeps for every client and for the server from round to round, such as moving averages."""

    init: Callable[[Hyper, Tree], tuple[Tree, Tree]]
    """(hyper, params) -> (the server's state, the state of one client)"""
    recall: Callable[[Hyper, Tree, Tree, Tree], tuple[Tree, Tree]]
    """(hyper, one client's signals, its state, the server's state) -> (the signals to weigh it by, its state)

    A dropped client keeps its old state."""
    update: Callable[[Hyper, Tree, Tree, ServerView], Tree] = lambda hyper, state, signals, view: (
        state
    )
    """(hyper, the server's state, signals of `recall` with leaves [K], view) -> the server's state"""


class Weighting(NamedTuple):
    """A rule for the aggregation weights s_k: `weigh` of the clients' signals."""

    signal: Signal
    """(hyper, one client's return, data) -> pytree of scalars []"""
    weigh: Weigh
    """(hyper, signals with leaves [K], view) -> weights: like the variables, every leaf [K] >= 0 with sum 1"""
    score: Callable[[Tree], Array] = lambda measured: measured
    """signals with leaves [K] -> [K], the number that the history shows per client, e.g. G_k"""
    detail: Callable[[Tree], dict[str, Array]] = lambda measured: {}
    """signals with leaves [K] -> further entries of the history: name -> real numbers or booleans [K, ...]"""
    terms: tuple[Term, ...] = ()
    """Terms with s_k = sum_t c_t s_k^t, for cohorts in client chunks; () for a rule that needs all models at once."""
    hyperparameters: tuple[Hyperparameter, ...] = ()
    """the hyperparameters that its functions read, except `lr`"""
    decisive: Callable[[Tree], Tree] = lambda measured: measured
    """signals -> the signals that must be finite; otherwise the client is dropped from the round"""
    state: WeightingState | None = None
    """what it keeps; `weigh`, `score` and `detail` then get the signals that `recall` returns"""
    num_clients: int | None = None
    """N of the only federation that it fits; None for any"""
    describe: Describe | None = None
    """what every client sends to the server before the first round; it reaches `signal` as `client.described`"""
    layers: tuple[str, ...] = ()
    """names of the columns of a detail `layer_shares`"""


class NamedWeighting(NamedTuple):
    """A weighting that settings name. Its factory takes the options and what `takes` names, by keyword."""

    make: Callable[..., Weighting]
    label: str = ""
    """its spelling in papers, if that is not the name"""
    hyperparameters: tuple[Hyperparameter, ...] = ()
    options: tuple[Option, ...] = ()
    takes: tuple[str, ...] = ("task",)
    """what its factory takes of a run: "task"; "exclude", the expression of the tensors that stay with the clients;
    "groups_per_pass", the minibatches of D_val that are scored together"""
    granularity: str = ""
    """name of the option by which tensors have different weights; "" if a client always has one weight"""
    reads_rows: bool = True
    """whether it reads rows of D_val"""
    streams: bool = True
    """whether it weighs a cohort chunk by chunk, without the models of the whole cohort"""
    trains_on_rows: bool = False
    """whether the server trains on D_val, in which BatchNorm has no statistics of a single row"""


# --- executors and rounds ---------------------------------------------------------------------------------------------
class Client(NamedTuple):
    """One client's local training, as an executor runs it. It does not depend on lanes."""

    init: Callable[[Array], Tree]
    """position in the cohort -> carry"""
    step: Callable[[Tree, Array, Array], Tree]
    """(carry, position in the cohort, number of the minibatch in `Schedule.rows`) -> carry"""


MakeClient = Callable[[Tree, Schedule], Client]
"""(what all clients share, schedule) -> one client's local training"""


class Executor(NamedTuple):
    """How the K clients are run; every executor gives the same result, up to rounding.

    The values that clients share are an argument, so that they can be placed on every device.
    """

    num_lanes: int
    """L of the plan in the schedule."""
    train: Callable[[MakeClient, Tree, Schedule], Tree]
    """(make_client, shared, schedule) -> final carries, leaves [K, ...] in cohort order"""
    map: Callable[[Callable[[Tree, Tree], Tree], Tree, Tree], Tree]
    """(function of (shared, one entry), shared, entries with leaves [K, ...]) -> results, leaves [K, ...]"""
    placement: Any = None
    """Sharding of the state and the data; None for one device."""
    loop: Loop | None = None
    """Loop over minibatches of probes, and over steps of displacements; None for `local_training.counted`."""
    lanes_together: int = 1
    """Lanes of one device; a client may move between them."""
    clients: Any = None
    """Sharding over devices of the trained clients, axis K, and of client states, axis M, a multiple of the devices;
    None if each device holds all."""


class SimState(NamedTuple):
    """The whole state of a simulation, as a checkpoint stores it. It has no key: randomness is in the schedules."""

    round: Array
    """int32 [] rounds done."""
    variables: Variables
    """The global model."""
    server: Tree
    """The algorithm's state of the server."""
    clients: Tree
    """The algorithm's client states, leaves [M, ...]. Several devices have M / D rows each. The last rows,
    which pad M to a multiple of D, belong to no client."""
    client_ids: Tree = ()
    """int32 [M] the client of each row of `clients`, if the host holds them; () if row k is client k's, for all N
    clients."""
    weighting: Tree = ()
    """The server's state of the weighting, see `WeightingState`."""
    versions: Tree = ()
    """`Variables` with leaves [slots, ...], the models that clients of a buffered server train from; () without one."""


class Metrics(NamedTuple):
    """Results of a round per client."""

    weights: Array
    """[K] s_k, averaged over the trained tensors."""
    scores: Array
    """[K] see `Weighting.score`."""
    train_loss: Array
    """[K] mean loss over the client's steps: 0 without a step, NaN if the loss or the client's model is not finite."""
    finite: Array
    """bool [K] whether the client's model, loss, signals, weights and probe are finite."""
    detail: dict[str, Array]
    """[K, ...] see `Weighting.detail`."""
    extremes: Tree = ()
    """[2] over the tensors' weights of participating clients, as the weighting returns them: the sum that is furthest
    from 1, and the least weight. () unless the round checks weights; NaN if a weight is not finite."""


RoundStep = Callable[[SimState, Schedule, Data, Hyper], tuple[SimState, Metrics]]
"""(state, schedule, data, hyper) -> (state after the round, metrics)"""
