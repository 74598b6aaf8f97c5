"""FedVG's weights and the weighted mean for PyTorch's state dicts.

Tensors reach jax by DLPack, without a copy where jax has their device and they are aligned.
"""

# pyright: reportAttributeAccessIssue=false, reportMissingImports=false
# without PyTorch, pyright takes this folder for it

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from fedvg_jax.core import checks, groups, hardware, norms
from fedvg_jax.core.types import UsageError, Variables
from fedvg_jax.integrations import named_arrays
from fedvg_jax.weightings.fedvg import finite_clients, first_component, inverse, layer_norms, weights_by_group

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
    names = list(gradients[0]) if gradients else []
    if not names:
        raise UsageError("gradients is empty; expected one dict of gradients per client")
    for client, named in enumerate(gradients):
        named_arrays.check_names(named, names, f"gradients of client {client}", "client 0")  # pyright: ignore[reportArgumentType]
    if unknown := [name for name in names if name not in floats]:
        raise UsageError(f"gradients has '{unknown[0]}', which is no floating tensor of the state dict")
    for client, named in enumerate(gradients):
        _check_shapes(named, state, f"gradients of client {client}", "the state dict")
    measure = checks.named(norms.BY_NAME, norm, "norm")
    grouping = checks.named(groups.BY_NAME, granularity, "granularity")
    path = named_arrays.paths_of(floats)
    name_of = {at: name for name, at in path.items()}
    measured = {
        path[name]: jnp.stack([measure(_to_jax(g[name]).astype(jnp.float32)) for g in gradients]) for name in names
    }
    measured, present = finite_clients(measured)
    statistics = {path[name]: 0 for name in floats if name not in gradients[0]}
    block = (lambda at: block_of(name_of[at])) if block_of else first_component
    by_group = grouping(Variables(measured, statistics), block)
    layers = groups.layers({at: value[0] for at, value in measured.items()})
    weights = weights_by_group(inverse(eps), layer_norms(measured, layers), by_group, present)
    of_path = {**weights.params, **weights.stats}
    return {name: torch.from_numpy(np.array(of_path[path[name]])) for name in floats}


def aggregate(state: StateDict, states: Sequence[StateDict], weights: StateDict) -> dict[str, Tensor]:
    """Returns the weighted mean of the clients' state dicts: theta_g - sum_k s_k (theta_g - theta_k).

    Integer tensors, BatchNorm's counters, are averaged with the mean weights and rounded.

    Args:
        state: the global model's state dict.
        states: those of the K clients.
        weights: name of a floating tensor -> [K], >= 0 with sum 1, as `inverse_norm_weights` returns.

    Returns:
        A state dict on the devices and in the dtypes of `state`.

    Raises:
        UsageError: names, shapes or the number of clients differ, weights are no distribution, or a tensor is complex.
    """
    floats = _floating_names(state)
    named_arrays.check_names(weights, floats, "weights", "the state dict")  # pyright: ignore[reportArgumentType]
    for client, of_client in enumerate(states):
        named_arrays.check_names(of_client, list(state), f"state dict of client {client}", "the global model")  # pyright: ignore[reportArgumentType]
        _check_shapes(of_client, state, f"state dict of client {client}", "the global model")
    if not states or not floats:
        got = "none" if not states else "no floating tensor"
        raise UsageError(f"aggregate takes the state dicts of at least one client, with weights of tensors; got {got}")
    of_floats = {name: torch.as_tensor(weights[name]).detach().cpu().double().numpy() for name in floats}
    checks.distributions(of_floats, len(states), tolerance=1e-2)  # weights may be of half precision
    mean_weight = np.mean(list(of_floats.values()), 0)
    mean_weight /= mean_weight.sum()  # of float32 weights it differs from 1 by 1e-7, which large counters show
    averaged = {}
    for name, tensor in state.items():
        stack = [of_client[name] for of_client in states]
        if name in weights:
            with jax.enable_x64(True):  # a double tensor stays double
                theta, clients = _to_jax(tensor), [_to_jax(client) for client in stack]
                mean = _to_torch(named_arrays.weighted_mean(theta, clients, of_floats[name]), tensor.device)
        else:
            integers = [client.detach().cpu().numpy() for client in stack]
            mean = torch.as_tensor(named_arrays.mean_of_integers(integers, mean_weight))
        averaged[name] = mean.to(tensor.device, tensor.dtype)
    return averaged


def _check_shapes(tensors: StateDict, state: StateDict, what: str, whose: str) -> None:
    """Raises UsageError for the first tensor that has another shape than that of the state dict."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.is_complex():
            got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise UsageError(f"{what}: '{name}' is {got}; expected a tensor of floats, integers or booleans")
        if tensor.shape != state[name].shape:
            shapes = f"{list(tensor.shape)}; expected {list(state[name].shape)}, as in {whose}"
            raise UsageError(f"{what}: tensor '{name}' has shape {shapes}")


def _floating_names(state: StateDict) -> list[str]:
    _check_shapes(state, state, "state dict", "itself")
    return [name for name, tensor in state.items() if tensor.is_floating_point()]


def _to_jax(tensor: Tensor) -> jax.Array:
    """Returns the tensor in jax: its own memory by DLPack, or a copy on the host where jax lacks its device."""
    tensor = tensor.detach().to_dense()  # an embedding's gradient may be sparse
    is_shared = tensor.device.type == "cpu" or (tensor.is_cuda and hardware.current().platform == "gpu")
    return jnp.from_dlpack((tensor if is_shared else tensor.cpu()).contiguous())


def _to_torch(array: jax.Array, device: torch.device) -> Tensor:
    """Returns the array in torch, on the given device."""
    return torch.from_dlpack(array).to(device)
