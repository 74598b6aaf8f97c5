"""What a run is: the objects and numbers that `resolve` makes of settings.

Programs, states, schedules and records follow from it. Behind it nothing reads a setting: the settings are written to
the run folder and shown, and that is all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jax import Array

from fedvg_jax.core.trained_part import LocalPart
from fedvg_jax.core.types import (
    Algorithm,
    Augment,
    Batch,
    Executor,
    Hyper,
    Selection,
    Task,
    Variables,
    Weighting,
)
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions.client_rows import Partition
from fedvg_jax.data.validation import Shared
from fedvg_jax.engine import attacks, local_training, privacy, robust
from fedvg_jax.runs.record.folder import Config

if TYPE_CHECKING:
    from fedvg_jax.data.scaling import Columns
    from fedvg_jax.engine.virtual_time import Clock


class Population(NamedTuple):
    """The data set, its partition, and the shared validation set."""

    arrays: Arrays
    partition: Partition
    shared: Shared
    most_tested: int
    """largest number of rows for test in a partition by these settings"""
    scaled_by: Columns | None = None
    """what the rows of `shared` are encoded by; None for arrays"""

    @property
    def inputs(self) -> Arrays:
        """The data set with the rows that a model takes."""
        return self.arrays._replace(x=self.shared.x[: len(self.arrays.y)], table=None)

    @property
    def pool(self) -> Batch:
        """The rows that all tables are of."""
        return Batch(self.shared.x, self.shared.y)


class Model(NamedTuple):
    """The model that is trained."""

    name: str
    """as settings name it; "" for a custom task"""
    bound: Callable[[Variables | None], Task]
    """frozen tensors, arrays or shapes -> the task of the trained part; None -> the task of the whole model"""
    initial: Callable[[Callable[[Array], Variables]], Variables]
    """(key -> a drawn model) -> the first model: drawn, of a file, of another run, or the caller's"""
    scored: Callable[[Variables | None], Task] | None
    """as `bound`, for scoring passes and evaluations; None for the same"""
    trained: str
    """regular expression of the tensors that are trained; "" for all"""
    local: LocalPart
    """the part that stays with each client"""
    local_name: str
    """of the part in messages"""
    is_drawn: bool
    """whether the first variables are drawn by the seed, not of a file, another run or the caller"""

    @property
    def is_custom(self) -> bool:
        """Whether the task is the caller's."""
        return not self.name


class Method(NamedTuple):
    """How clients train, and how the server weighs and aggregates what they return."""

    algorithm: Algorithm
    weighting: Callable[[Task], Weighting]
    """task of scoring -> the weighting"""
    optimiser: local_training.Optimiser
    aggregate: robust.Rule
    disturb: attacks.Disturb | None
    corrupt_clients: tuple[int, ...]
    """ids of the clients with corrupt rows or updates"""
    selection: Selection | None
    """None for uniform cohorts"""
    augment: Augment | None
    num_tuning_steps: int
    """steps of the server on D_val after a round"""
    server_stats: bool
    """whether the server treats running statistics like parameters"""
    weighs_untrained: bool
    """whether a client without a local step is weighed like the others"""
    has_custom_weights: bool
    """whether weights come from functions that may break their contract"""
    measures: tuple[str, ...]
    """names in `weightings.recorded.MEASURES` that records have"""
    sensitivity: privacy.Sensitivity | None
    """how much one client can change the aggregate; None without differential privacy"""
    scores_applied: bool
    """whether a buffered server measures signals on its present model with one client's update"""


class Cohorts(NamedTuple):
    """Which clients train in a round, and on which minibatches; see `engine.schedule.make`."""

    seed: int
    num_clients: int
    """N"""
    size: int
    """K"""
    chunk_size: int
    """H, clients that are trained at a time"""
    num_asked: int
    """clients that are asked in a round; the first K of them to arrive are the cohort"""
    local_epochs: tuple[int, int]
    """smallest and largest number"""
    batch_size: int
    """B, as it is set; minibatches are no larger than the largest client"""
    dropout: float
    """probability with which a sampled client does not respond"""
    skips_single_rows: bool
    """whether clients skip minibatches of one row, as the published code does"""
    probe_ratio: float
    probe_apart: bool
    """whether the probe's rows are not trained on, as in the published code"""
    is_published: bool
    """whether cohorts follow the published code's random stream"""
    deadline: float
    """virtual seconds after which a round ends"""
    clock: Clock | None
    """how long clients take; None without virtual time"""
    concurrency: int
    """M, clients in training at any time, of a buffered server, which updates whenever K have arrived; 0 for a
    synchronous one"""
    max_staleness: float
    """updates after which a client of a buffered server is not averaged any more"""


class Privacy(NamedTuple):
    """Differential privacy of clients: what epsilon depends on, besides the noise and the cohorts."""

    delta: float
    reads_all_clients: bool
    """whether weights may read rows of clients that are not sampled"""
    is_first_public: bool
    """whether the first model tells nothing of the clients; another run's and the caller's may"""
    moves_stats: bool
    """whether running statistics of the model, if it has any, change in training"""


class Folder(NamedTuple):
    """Where a run is stored."""

    path: Path | None
    """None for a run in memory"""
    is_resumed: bool
    """whether the run continues what the folder has"""
    checkpoint_every: int
    """rounds between checkpoints; 0 for about a minute"""
    num_kept: int
    """newest checkpoints that are kept; with 0 none is written"""
    export: Path | None
    """file that the final model is written to, besides"""


class Experiment(NamedTuple):
    """Everything that a run is."""

    settings: Config
    """what the caller asked for, to be written and shown; the run follows from the other fields"""
    custom: Mapping[str, str]
    """argument that takes the place of a setting (data, partition, task, algorithm, ...) -> the name of the object; ""
    for one without"""
    key: Hashable
    """equal for experiments that have one program, up to shapes"""
    population: Population
    statistics: Mapping[str, Any]
    """of the partition and the shared validation set"""
    model: Model
    method: Method
    hyper: Callable[[Algorithm, Weighting], tuple[Hyper, Mapping[str, float]]]
    """(algorithm, weighting) -> all hyperparameters, float32 scalars, and the values that no setting determines"""
    executor: Executor
    devices: str
    """number of devices that share a cohort, or "auto", as the caller asked for"""
    placement: str
    """where rows and client states are stored: "device", "host" or "auto", by their size"""
    rounds: int
    eval_every: int
    """rounds between evaluations"""
    skips_nonfinite: bool
    """whether the run goes on without clients that diverged"""
    folder: Folder
    cohorts: Cohorts
    skips_lone_row: bool
    """whether a last group of one row of D_val is skipped where BatchNorm needs two"""
    recorded: frozenset[str]
    """what is recorded on demand"""
    privacy: Privacy | None
    """None without differential privacy"""
