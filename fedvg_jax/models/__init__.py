"""Models in Flax, and tasks made from them; no other package imports Flax.

A public name is imported from where `__init__.pyi` has it when it is first used, so that a run loads only its network.
"""

from fedvg_jax.host import lazy

__getattr__, __all__ = lazy.attach(__name__, __file__)  # pyright: ignore[reportUnsupportedDunderAll]
