"""From settings and a caller's objects to everything that a run is, once. Nothing behind this package reads settings.

`experiment` resolves them, with `data`, `model`, `method`, `hyperparameters` and `machine`, each for its part.
"""
