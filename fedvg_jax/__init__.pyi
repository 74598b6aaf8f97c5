"""The public names as type checkers see them; `__init__.py` imports them when they are used."""

from fedvg_jax import (
    algorithms as algorithms,
    compression as compression,
    data as data,
    models as models,
    weightings as weightings,
)
from fedvg_jax.api import (
    evaluate as evaluate,
    make_schedule as make_schedule,
    run as run,
    run_sweep as run_sweep,
)
from fedvg_jax.config import Config as Config
from fedvg_jax.core import norms as norms, tree as tree
from fedvg_jax.core.trained_part import local_part as local_part, trained_part as trained_part
from fedvg_jax.core.types import (
    Algorithm as Algorithm,
    Batch as Batch,
    Data as Data,
    Executor as Executor,
    Hyperparameter as Hyperparameter,
    Metric as Metric,
    Schedule as Schedule,
    Selection as Selection,
    Send as Send,
    SimState as SimState,
    Task as Task,
    UsageError as UsageError,
    Variables as Variables,
    Weighting as Weighting,
    WeightingState as WeightingState,
)
from fedvg_jax.data.arrays import Arrays as Arrays
from fedvg_jax.data.partitions import partitioners as partitioners
from fedvg_jax.engine import (
    attacks as attacks,
    executors as executors,
    robust as robust,
    selection as selection,
    virtual_time as virtual_time,
)
from fedvg_jax.engine.descriptions import describe_clients as describe_clients
from fedvg_jax.engine.differentiable import (
    hypergradient as hypergradient,
    max_steps as max_steps,
    over_rounds as over_rounds,
    stack_schedules as stack_schedules,
    unrolled as unrolled,
)
from fedvg_jax.engine.federated_round import init_state as init_state, make_round as make_round
from fedvg_jax.engine.local_training import sgd as sgd
from fedvg_jax.engine.task_checks import check_task as check_task
from fedvg_jax.engine.virtual_time import Clock as Clock
from fedvg_jax.models.adapt import linen_task as linen_task, nnx_task as nnx_task
from fedvg_jax.models.adapters import lora as lora
from fedvg_jax.resolve.experiment import simulation as simulation
from fedvg_jax.runs.assemble.simulation import Simulation as Simulation
from fedvg_jax.runs.record.checkpoint import (
    best_variables as best_variables,
    final_variables as final_variables,
)
from fedvg_jax.runs.record.history import (
    DivergedError as DivergedError,
    History as History,
    StopRun as StopRun,
)
from fedvg_jax.study.named import Method as Method
from fedvg_jax.study.report import Compared as Compared, compare as compare
from fedvg_jax.study.sweep_folder import Failure as Failure, SweepResult as SweepResult
from fedvg_jax.weightings import (
    aggregate as aggregate,
    generalised_weights as generalised_weights,
    gradient_norms as gradient_norms,
    inverse_norm_weights as inverse_norm_weights,
    validation_gradients as validation_gradients,
)

__version__: str
