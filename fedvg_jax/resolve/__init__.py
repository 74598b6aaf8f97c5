"""From settings and a caller's objects to everything that a run is, once. Nothing behind this package reads settings.

`experiment` resolves them, with `data`, `model`, `method` and `machine`, each for its part.
"""

from fedvg_jax.resolve import (
    custom as custom,
    data as data,
    experiment as experiment,
    machine as machine,
    method as method,
    model as model,
)
