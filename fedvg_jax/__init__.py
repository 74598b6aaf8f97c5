"""Federated learning with validation-gradient weights (FedVG) in JAX and Flax.

A public name is imported from where `__init__.pyi` has it when it is first used, so that the import stays light.
"""

from fedvg_jax.host import lazy

__version__ = "0.1.0"

__getattr__, __all__ = lazy.attach(__name__, __file__)  # pyright: ignore[reportUnsupportedDunderAll]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
