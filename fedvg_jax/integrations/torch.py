"""FedVG for PyTorch: scores, weights and averages of state dicts.

Tensors reach jax by DLPack, without a copy where jax has their device and they are aligned.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# pyright: reportInvalidTypeForm=false, reportMissingImports=false
# without PyTorch, pyright takes this file for it

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fedvg_jax.core import checks, norms
from fedvg_jax.core.types import UsageError, Variables
from fedvg_jax.host import hardware
from fedvg_jax.integrations import named_arrays
from fedvg_jax.weightings.fedvg import inverse, weights_of_norms

__all__ = ["aggregate", "inverse_norm_weights", "validation_gradient", "validation_gradients"]

Loss = Callable[[Any, Any], Tensor]
"""(outputs, targets) of a minibatch -> mean loss [], e.g. `torch.nn.CrossEntropyLoss()`"""

Loader = Iterable[tuple[Any, Any]]
"""(inputs, targets) of D_val's minibatches; the same in every pass, so without shuffling"""

Arrays = Mapping[str, np.ndarray]


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
    return _gradients(copy.deepcopy(model), loss, loader, train)


def validation_gradient(
    model: nn.Module, loss: Loss, loader: Loader, *, train: bool = True
) -> Callable[[Arrays], dict[str, np.ndarray]]:
    """Returns the function arrays -> gradient that `integrations.flower.FedVG` takes.

    Args:
        model: the architecture; it is copied and its values are not used.
        loss, loader, train: as in `validation_gradients`.
    """
    scratch = copy.deepcopy(model)

    def gradient(arrays: Arrays) -> dict[str, np.ndarray]:
        _fill(scratch, arrays)
        gradients = _gradients(scratch, loss, loader, train)
        return {name: _to_numpy(value) for name, value in gradients.items()}

    return gradient


def _gradients(model: nn.Module, loss: Loss, loader: Loader, train: bool) -> dict[str, Tensor]:
    """Returns the gradient; changes the model's mode, running statistics and `.grad`."""
    _set_mode(model, train)
    parameters = {
        name: p for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad
    }
    if not parameters:
        raise UsageError(
            f"{type(model).__name__} has no parameter with requires_grad; scoring needs a gradient"
        )
    model.zero_grad(set_to_none=True)
    num_rows = 0
    with torch.enable_grad():
        for inputs, targets in _minibatches(model, loader):
            count = len(tree_leaves(targets)[0])
            (loss(model(inputs), targets) * count).backward()
            num_rows += count
    with torch.no_grad():
        return {
            name: torch.zeros_like(p) if p.grad is None else p.grad.detach() / num_rows
            for name, p in parameters.items()
        }


def _minibatches(model: nn.Module, loader: Loader) -> Iterable[tuple[Any, Any]]:
    """Yields the minibatches on the model's device.

    Raises:
        UsageError: there is none, as in the second pass over a generator, or one is no pair.
    """
    device = next(model.parameters()).device
    is_empty = True
    for minibatch in loader:
        is_empty = False
        if not isinstance(minibatch, tuple | list) or len(minibatch) != 2:
            raise UsageError(
                f"the loader of D_val yields a {type(minibatch).__name__}; expected pairs (inputs, targets), of tensors"
                " or dicts and tuples of them: wrap the loader in a list of such pairs"
            )
        yield tuple(
            tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, minibatch)
        )
    if is_empty:
        raise UsageError(
            "the loader of D_val has no minibatch; every client needs a pass: give a list or a DataLoader"
        )


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
    counters = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if not tensor.is_floating_point()
    }
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    with checks.calling(f"{type(model).__name__}.load_state_dict"):
        model.load_state_dict(counters | tensors)


def _to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().to("cpu", torch.float32).numpy()


StateDict = Mapping[str, Tensor]


def inverse_norm_weights(
    gradients: Sequence[StateDict],
    state: StateDict,
    granularity: str = "modelwise",
    *,
    norm: str = "l1",
    eps: float = 1e-8,
    block_of: Callable[[str], str] | None = None,
) -> dict[str, Tensor]:
    """Returns FedVG's weights for every floating tensor of a state dict: clients with a small gradient weigh more.

        G_k = mean over the group's tensors of their norms,    s_k = (1 / (G_k + eps)) / sum_j (1 / (G_j + eps))

    Running statistics have no gradient. They take the client's weight modelwise, their block's blockwise, and uniform
    weights layerwise, as in fedvg_jax.

    Args:
        gradients: of the K clients, by name of the parameters, as `validation_gradients` returns.
        state: the model's state dict, for the names of running statistics.
        granularity: "modelwise", "layerwise" or "blockwise".
        norm: "l1" (published), "l2", "spectral" or "spectral_l2".
        eps: added before inverting, in the unit of the norms.
        block_of: name of a tensor -> name of its block; by default its first component, such as "layer1".

    Returns:
        Name -> weights [K] on the CPU, each >= 0 and summing to 1.

    Raises:
        UsageError: no client or no finite one, names or shapes that differ, an unknown granularity or norm, or an eps
            that is negative or NaN.
    """
    floats = _floating_names(state)
    if not gradients or not gradients[0]:
        raise UsageError("gradients is empty; expected one dict of gradients per client")
    names = [name for name in gradients[0] if name in floats]
    for client, named in enumerate(gradients):
        _expect(named, {name: state[name] for name in names}, f"gradients of client {client}")
    measure = checks.named(norms.BY_NAME, norm, "norm")
    path = named_arrays.paths_of(floats)
    name_of = {place: name for name, place in path.items()}
    measured = {
        path[name]: jnp.stack([measure(_to_jax(g[name]).astype(jnp.float32)) for g in gradients])
        for name in names
    }
    statistics = {path[name]: 0 for name in floats if name not in names}
    block = (lambda place: block_of(name_of[place])) if block_of else None
    weights = weights_of_norms(inverse(eps), Variables(measured, statistics), granularity, block)
    of_path = {**weights.params, **weights.stats}
    return {name: torch.from_numpy(np.array(of_path[path[name]])) for name in floats}


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
    floats = _floating_names(state)
    _expect(weights, dict.fromkeys(floats, torch.empty(len(states))), "weights")
    for client, of_client in enumerate(states):
        _expect(of_client, state, f"state dict of client {client}")
    if not states or not floats:
        raise UsageError(
            f"aggregate takes one client or more with floating tensors; got {len(states)} and {len(floats)}"
        )
    of_floats = {
        name: torch.as_tensor(weights[name]).detach().cpu().double().numpy() for name in floats
    }
    for name, values in of_floats.items():
        # weights of half precision have a sum within 1e-2; NaN is no such sum
        if not ((values >= 0).all() and abs(values.sum() - 1) <= 1e-2):
            raise UsageError(
                f"weights leaf '{name}' is {values.tolist()!r:.99}; expected numbers >= 0 with sum 1"
            )
    mean_weight = np.mean(list(of_floats.values()), 0)
    # float32 weights differ from 1 by 1e-7, which large counters show
    mean_weight /= mean_weight.sum()
    averaged = {}
    for name, tensor in state.items():
        clients = [of_client[name] for of_client in states]
        if name in weights:
            mean = _mean_of_floats(tensor, clients, of_floats[name])
        else:
            integers = [client.detach().cpu().numpy() for client in clients]
            mean = torch.as_tensor(named_arrays.mean_of_integers(integers, mean_weight))
        averaged[name] = mean.to(tensor.device, tensor.dtype)
    return averaged


def _mean_of_floats(tensor: Tensor, clients: Sequence[Tensor], weights: np.ndarray) -> Tensor:
    with jax.enable_x64(True):  # a double tensor stays double
        on_jax = [_to_jax(client) for client in clients]
        return torch.from_dlpack(named_arrays.weighted_mean(_to_jax(tensor), on_jax, weights))


def _expect(tensors: StateDict, like: StateDict, what: str) -> None:
    """Raises UsageError for the first tensor with a name or shape that `like` does not have."""
    got = {name: list(tensor.shape) for name, tensor in tensors.items()}
    expected = {name: list(tensor.shape) for name, tensor in like.items()}
    for name in expected | got:
        if got.get(name) != expected.get(name):
            raise UsageError(
                f"{what}: tensor '{name}' has shape {got.get(name)}; expected {expected.get(name)}"
            )


def _floating_names(state: StateDict) -> list[str]:
    return [name for name, tensor in state.items() if tensor.is_floating_point()]


def _to_jax(tensor: Tensor) -> jax.Array:
    """Returns the tensor in jax: the same memory by DLPack, or a copy on the host where jax lacks its device."""
    tensor = tensor.detach().to_dense()  # an embedding's gradient may be sparse
    is_shared = tensor.device.type == "cpu" or (
        tensor.is_cuda and hardware.current().platform == "gpu"
    )
    return jnp.from_dlpack((tensor if is_shared else tensor.cpu()).contiguous())
