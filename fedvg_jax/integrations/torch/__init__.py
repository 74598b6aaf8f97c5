"""FedVG for PyTorch: scores, weights and averages of state dicts, and models as parameters of fedvg_jax."""

from fedvg_jax import integrations

integrations.require("torch", "torch")

from fedvg_jax.integrations.torch.aggregation import aggregate, inverse_norm_weights  # noqa: E402
from fedvg_jax.integrations.torch.conversion import from_module, to_state_dict  # noqa: E402
from fedvg_jax.integrations.torch.scoring import (  # noqa: E402
    validation_gradient,
    validation_gradients,
)

__all__ = [
    "aggregate",
    "from_module",
    "inverse_norm_weights",
    "to_state_dict",
    "validation_gradient",
    "validation_gradients",
]
