"""The gradient of a PyTorch model's loss on D_val."""

# pyright: reportAttributeAccessIssue=false, reportMissingImports=false
# without PyTorch, pyright takes this folder for it

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedvg_jax.core.types import UsageError
from fedvg_jax.integrations import named_arrays

Loss = Callable[[Any, Any], Tensor]
"""(outputs, targets) of a minibatch -> mean loss [], e.g. `torch.nn.CrossEntropyLoss()`"""

Loader = Iterable[tuple[Any, Any]]
"""(inputs, targets) of D_val's minibatches; the same in every pass, so without shuffling"""

Arrays = Mapping[str, np.ndarray]


def validation_gradients(model: nn.Module, loss: Loss, loader: Loader, *, train: bool = True) -> dict[str, Tensor]:
    """Returns the gradient of the model's mean loss on D_val, by name of `named_parameters`.

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
    own = copy.deepcopy(model)
    return _gradients(own, loss, loader, train)


def validation_gradient(
    model: nn.Module, loss: Loss, loader: Loader, *, train: bool = True
) -> Callable[[Arrays], dict[str, np.ndarray]]:
    """Returns the function arrays -> gradient that `integrations.flower.FedVG` takes.

    Args:
        model: the architecture; it is copied and its values are not used.
        loss, loader, train: as in `validation_gradients`.
    """
    own = copy.deepcopy(model)

    def gradient(arrays: Arrays) -> dict[str, np.ndarray]:
        _fill(own, arrays)
        return {name: _to_numpy(value) for name, value in _gradients(own, loss, loader, train).items()}

    return gradient


def _gradients(model: nn.Module, loss: Loss, loader: Loader, train: bool) -> dict[str, Tensor]:
    """Returns the gradient; changes the model's mode, running statistics and `.grad`."""
    _set_mode(model, train)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise UsageError(f"{type(model).__name__} has no parameter with requires_grad; scoring needs a gradient")
    model.zero_grad(set_to_none=True)
    num_rows = 0
    with torch.enable_grad():
        for inputs, targets in _minibatches(model, loader):
            (loss(model(inputs), targets) * len(targets)).backward()
            num_rows += len(targets)
    with torch.no_grad():
        return {
            name: torch.zeros_like(p) if p.grad is None else p.grad.detach() / num_rows
            for name, p in parameters.items()
        }


def _minibatches(model: nn.Module, loader: Loader) -> Iterable[tuple[Any, Any]]:
    """Yields the minibatches on the model's device.

    Raises:
        UsageError: there is none, as in the second pass over a generator.
    """
    device = next(model.parameters()).device
    is_empty = True
    for inputs, targets in loader:
        is_empty = False
        yield inputs.to(device), targets.to(device)
    if is_empty:
        raise UsageError("the loader of D_val has no minibatch; every client needs a pass: give a list or a DataLoader")


def _set_mode(model: nn.Module, train: bool) -> None:
    """Sets the mode of the model, a copy, except that Dropout is the identity, also inside attention and recurrence."""
    model.train(train)
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()
        elif isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            module.dropout = 0.0


def _fill(model: nn.Module, arrays: Arrays) -> None:
    """Copies arrays, by name, into the model's floating parameters and buffers.

    Raises:
        UsageError: a name is missing or unknown, or a shape differs.
    """
    state = {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
    kind = type(model).__name__
    named_arrays.check_names(arrays, list(state), "the model", f"{kind}.state_dict()")
    with torch.no_grad():
        for name, tensor in state.items():
            if tuple(arrays[name].shape) != tuple(tensor.shape):
                shapes = f"{list(arrays[name].shape)}; {kind} has {list(tensor.shape)}"
                raise UsageError(f"the model: array '{name}' has shape {shapes}")
            tensor.copy_(torch.from_numpy(np.array(arrays[name])))


def _to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().to("cpu", torch.float32).numpy()
