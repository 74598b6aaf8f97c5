"""What clients send of their updates: a module for each compression, with a factory that returns a `Send`."""

from fedvg_jax.compression.qsgd import qsgd as qsgd
from fedvg_jax.compression.top_k import top_k as top_k
