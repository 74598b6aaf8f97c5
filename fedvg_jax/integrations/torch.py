"""FedVG for PyTorch: scores, weights and averages of state dicts."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# pyright: reportInvalidTypeForm=false, reportMissingImports=false
# without PyTorch, pyright takes this file for it

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fedvg_jax.core import checks
from fedvg_jax.core.types import UsageError
from fedvg_jax.integrations import named_arrays

__all__ = ["aggregate", "inverse_norm_weights", "validation_gradient", "validation_gradients"]

Loss = Callable[[Any, Any], Tensor]
"""(outputs, targets) of a minibatch -> mean loss [], e.g. `torch.nn.CrossEntropyLoss()`"""

Loader = Iterable[tuple[Any, Any]]
"""(inputs, targets) of D_val's minibatches; the same in every pass, so without shuffling"""

StateDict = Mapping[str, Tensor]


def validation_gradients(
    model: nn.Module, loss: Loss, loader: Loader, *, train: bool = True
) -> dict[str, Tensor]:
    """Returns the gradient of the model's mean loss on D_val, by name of the parameters, also of tied ones.

        g = grad_theta (1/n) sum_b n_b loss(model(x_b), y_b),   n = sum_b n_b rows of D_val

    Model, running statistics and `.grad` are as before afterwards. Dropout is the identity. Parameters without
    `requires_grad` are left out; those that the loss does not use have gradient 0.

    Args:
        model: with the parameters of one client.
        loss: (outputs, targets) -> mean loss of a minibatch.
        loader: the minibatches of D_val, which are moved to the model's device.
        train: whether BatchNorm takes the statistics of each minibatch (the published behaviour), or its running
            statistics.

    Raises:
        UsageError: D_val has no minibatch, or the model has no parameter to train.
    """
    model = _in_mode(model, train)
    named = dict(model.named_parameters(remove_duplicate=False))
    parameters = {name: tensor for name, tensor in named.items() if tensor.requires_grad}
    device = next((tensor.device for tensor in parameters.values()), None)
    num_rows = 0
    with torch.enable_grad(), checks.calling("a minibatch of D_val, a pair (inputs, targets),"):
        for minibatch in loader if parameters else ():
            inputs, targets = tree_map(
                lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, minibatch
            )
            count = len(tree_leaves(targets)[0])
            (loss(model(inputs), targets) * count).backward()
            num_rows += count
    if not num_rows:
        raise UsageError(
            f"got {len(parameters)} parameters with requires_grad and no rows of D_val; give a model that is trained,"
            " and a list or a DataLoader, which every client passes through"
        )
    return {
        name: torch.zeros_like(tensor) if tensor.grad is None else tensor.grad / num_rows
        for name, tensor in parameters.items()
    }


def validation_gradient(
    model: nn.Module, loss: Loss, loader: Loader, *, train: bool = True
) -> named_arrays.Gradient:
    """Returns the function arrays -> gradient that `integrations.flower.FedVG` takes.

    Args:
        model: the architecture; it is copied and its values are not used.
        loss, loader, train: as in `validation_gradients`.
    """
    scratch = copy.deepcopy(model)

    def gradient(arrays: named_arrays.Arrays) -> named_arrays.Arrays:
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        with checks.calling(f"{type(model).__name__}.load_state_dict"):
            scratch.load_state_dict({**scratch.state_dict(), **tensors})
        return _to_numpy(validation_gradients(scratch, loss, loader, train=train))

    return gradient


def inverse_norm_weights(
    gradients: Sequence[StateDict], state: StateDict, granularity: str = "modelwise", **options: Any
) -> dict[str, Tensor]:
    """Returns FedVG's weights for every floating tensor of a state dict, as `named_arrays.inverse_norm_weights`.

    Args:
        gradients: of the K clients, by name of the parameters, as `validation_gradients` returns.
        state: the model's state dict, for the names of running statistics.
        granularity: "modelwise", "layerwise" or "blockwise".
        **options: `norm`, `eps` and `block_of`.

    Returns:
        Name -> weights [K] on the CPU, each >= 0 and summing to 1.

    Raises:
        UsageError: as `named_arrays.inverse_norm_weights`.
    """
    arrays = [_to_numpy(gradient) for gradient in gradients]
    weights = named_arrays.inverse_norm_weights(arrays, _to_numpy(state), granularity, **options)
    return {name: torch.from_numpy(np.array(array)) for name, array in weights.items()}


def aggregate(
    state: StateDict, states: Sequence[StateDict], weights: StateDict
) -> dict[str, Tensor]:
    """Returns the weighted mean of the clients' state dicts: theta_g - sum_k s_k (theta_g - theta_k).

    Integer tensors, BatchNorm's counters, are averaged with the mean weights and rounded.

    Args:
        state: the global model's state dict.
        states: the state dicts of the K clients.
        weights: name of a floating tensor -> [K], >= 0 with sum 1, as `inverse_norm_weights` returns.

    Returns:
        A state dict on the devices and in the dtypes of `state`.

    Raises:
        UsageError: names, shapes or the number of clients differ, or weights are no distribution.
    """
    clients = [_to_numpy(of_client) for of_client in states]
    averaged = named_arrays.average(_to_numpy(state), clients, _to_numpy(weights))
    return {
        name: torch.as_tensor(averaged[name]).to(tensor.device, tensor.dtype)
        for name, tensor in state.items()
    }


def _in_mode(model: nn.Module, train: bool) -> nn.Module:
    """Returns a copy in this mode and without gradients, in which Dropout is the identity, also inside layers."""
    model = copy.deepcopy(model).train(train)
    model.zero_grad(set_to_none=True)
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()
        elif isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            module.dropout = 0.0
    return model


def _to_numpy(tensors: StateDict) -> named_arrays.Arrays:
    """Returns the tensors on the host, floats in double precision; an embedding's gradient may be sparse."""

    def on_host(tensor: Tensor) -> np.ndarray:
        dense = tensor.detach().to_dense().cpu()
        return (dense.double() if dense.is_floating_point() else dense).numpy()

    return {name: on_host(tensor) for name, tensor in tensors.items()}
