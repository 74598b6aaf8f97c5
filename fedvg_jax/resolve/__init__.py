"""Makes an `Experiment`, which is everything that a run is, of settings and of objects from Python.

Nothing behind this package reads the text of a setting.

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
