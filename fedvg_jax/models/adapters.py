"""Low-rank adapters of dense layers and 1x1 convolutions (LoRA), beside a kernel W that stays as it is.

    y = x W + (x A) B s / r,    A: inputs x r, drawn from a normal distribution;  B: r x outputs, initially 0;  s = 8

The adapters of a layer stand in its parameters, as `lora_a` and `lora_b`. No client ever forms W + A B s / r.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict
from jax import Array

from fedvg_jax.core import trained_part, tree
from fedvg_jax.core.types import Task, UsageError, Variables, compiled
from fedvg_jax.host import hardware
from fedvg_jax.models.task import wrapped

SCALE = 8.0
"""s. A learning rate then fits other ranks, too; peft has the same default."""

EXCEPT_HEAD = "^(?!classifier|patch_embed)"
"""Regular expression of the layers of a named model that get an adapter by default."""

WITH_HEAD = "(^|/)lora_[ab]$|^classifier/"
"""Regular expression of the tensors of a named model with adapters that are trained by default."""

NO_PATH = "(?!)"
"""Regular expression that nothing matches."""

IS_ADAPTER = re.compile("(^|/)lora_[ab]$").search
"""path of a tensor -> whether it belongs to an adapter"""


def lora(
    task: Task, variables: Variables, rank: int, include: str = "", train: str = ""
) -> tuple[Task, Variables]:
    """Returns a task with adapters that a run trains, and the variables that the run has to start from.

    The layers are Linen's `Dense` and `Conv` with kernels of one pixel. Their outputs are unchanged until B moves.

    Args:
        task: has nested dicts of parameters, as `linen_task` makes them.
        variables: of the task; all tensors keep these values, except the adapters and those that `train` names.
        rank: r.
        include: regular expression of the paths of layers, such as "block_0/fc1", that get an adapter; default: all.
        train: regular expression of the paths of further tensors that are trained, such as "^head/".

    Raises:
        UsageError: `include` matches no layer without an adapter, or the rank is larger than a layer.

    >>> from fedvg_jax.models import adapt
    >>> module = nn.Sequential([nn.Dense(6), nn.relu, nn.Dense(1)])
    >>> task = adapt.linen_task(module, lambda output, y: (output[0] - y) ** 2, jnp.ones((1, 4)))
    >>> task, start = lora(task, task.init(jax.random.key(0)), rank=2, include="_0$", train="^layers_2/")
    >>> [path for path in tree.paths(start.params) if not task.is_frozen(path)]
    ['layers_0/lora_a', 'layers_0/lora_b', 'layers_2/bias', 'layers_2/kernel']
    """
    adapted = with_adapters(task, rank, include)
    trained = compiled(train or NO_PATH, "train").search
    drawn = hardware.jit_once(adapted.init)(jax.random.key(0))
    task = adapted._replace(is_frozen=lambda path: not (IS_ADAPTER(path) or trained(path)))
    return task, filled(drawn, variables)


def with_adapters(task: Task, rank: int, include: str) -> Task:
    """Returns the task with adapters beside its parameters; arguments and errors as in `lora`."""
    all_layers = _layers(task)
    pattern = compiled(include, "lora")
    layers = {path: kernel for path, kernel in all_layers.items() if pattern.search(path)}
    if not layers:
        names = trained_part.listed(list(all_layers)) or "none"
        raise UsageError(
            f"lora {include} matches no dense layer or 1x1 convolution; there are {names}"
        )
    most = min(min(kernel.shape[-2:]) for kernel in layers.values())
    if not isinstance(rank, int | np.integer) or not 1 <= rank <= most:
        raise UsageError(
            f"lora rank must be from 1 to {most}, the least width of the layers; got {rank}"
        )

    def init(key: Array) -> Variables:
        variables = task.init(key)
        tensors = tree.by_path(variables.params)
        for number, (path, kernel) in enumerate(layers.items()):
            inputs, outputs = kernel.shape[-2:]
            a = jax.random.normal(jax.random.fold_in(key, number), (inputs, rank), kernel.dtype)
            tensors[_of_layer(path, "lora_a")] = a * inputs**-0.5
            tensors[_of_layer(path, "lora_b")] = jnp.zeros((rank, outputs), a.dtype)
        return variables._replace(params=unflatten_dict(tensors, sep="/"))

    def with_products(f: Callable) -> Callable:
        @functools.wraps(f)
        def run(*args, **kwargs):
            with nn.intercept_methods(_add_adapter):
                return f(*args, **kwargs)

        return run

    return wrapped(task, with_products)._replace(init=init)


def removed(variables: Variables) -> Variables:
    """Returns variables without their adapters."""
    tensors = tree.by_path(variables.params)
    others = {path: tensor for path, tensor in tensors.items() if not IS_ADAPTER(path)}
    return variables._replace(params=unflatten_dict(others, sep="/"))


def filled(drawn: Variables, start: Variables) -> Variables:
    """Returns `drawn` with the tensors of `start`, which may lack adapters, in their place, and their dtype."""
    values = tree.by_path(start)
    dtype = tree.dtype(start.params)
    leaves = [values.get(path, leaf.astype(dtype)) for path, leaf in tree.by_path(drawn).items()]
    return jax.tree.structure(drawn).unflatten(leaves)


def merged(variables: Variables) -> Variables:
    """Returns the variables of the model without adapters that computes the same, with W + A B s / r."""
    tensors = tree.by_path(variables.params)
    for path, a in tensors.items():
        layer, _, name = path.rpartition("/")
        if name == "lora_a":
            b = tensors[_of_layer(layer, "lora_b")]
            kernel = tensors[_of_layer(layer, "kernel")]  # of half precision, it is rounded once
            product = (tree.wide(a) @ tree.wide(b)).reshape(kernel.shape)
            total = tree.wide(kernel) + product * (SCALE / a.shape[-1])
            tensors[_of_layer(layer, "kernel")] = total.astype(kernel.dtype)
    return removed(variables._replace(params=unflatten_dict(tensors, sep="/")))


def _of_layer(path: str, name: str) -> str:
    """Returns the path of a tensor of a layer, which may be the module itself, of path ""."""
    return f"{path}/{name}" if path else name


def _layers(task: Task) -> dict[str, Any]:
    """Returns path -> kernel, arrays' shapes, of the layers that can have an adapter and have none."""
    found = {}

    def note(call, args, kwargs, context):
        outputs = call(*args, **kwargs)
        layer = context.module
        if _is_adaptable(context):
            found["/".join(layer.path)] = layer.variables["params"]["kernel"].shape
        return outputs

    with nn.intercept_methods(note):  # a new function is traced anew
        shapes = tree.by_path(jax.eval_shape(lambda key: task.init(key).params, jax.random.key(0)))
    layers = {}
    for path, shape in found.items():
        kernel = shapes.get(_of_layer(path, "kernel"))
        is_alone = kernel is not None and kernel.shape == shape  # not one of a lifted module
        if is_alone and _of_layer(path, "lora_a") not in shapes:
            layers[path] = kernel
    return layers


def _is_adaptable(context) -> bool:
    """Returns whether a call is of a dense layer of Linen's, or of a convolution of one pixel without padding."""
    layer = context.module
    if context.method_name != "__call__":
        return False
    if type(layer) is not nn.Conv:
        return type(layer) is nn.Dense
    is_padded = not isinstance(layer.padding, str) and np.any(layer.padding)
    is_plain = layer.feature_group_count == 1 and layer.mask is None
    return np.prod(layer.kernel_size) == 1 and is_plain and not is_padded


def _add_adapter(call: Callable, args: tuple, kwargs: Mapping[str, Any], context) -> Any:
    """Returns x W + (x A) B s / r of a layer with an adapter; an interceptor of `nn.intercept_methods`.

    A convolution becomes products of matrices: otherwise the convolutions of a CPU would lay out x W unlike (x A) B
    (`models.conv.planes`), and EfficientNet-Lite0's rounds take 1.4 times as long.
    """
    layer = context.module
    params = layer.variables.get("params", {}) if _is_adaptable(context) else {}
    if "lora_a" not in params:
        return call(*args, **kwargs)
    x = args[0] if args else kwargs["inputs"]
    tensors = map(params.get, ("kernel", "bias", "lora_a", "lora_b"))
    x, kernel, bias, a, b = layer.promote_dtype(x, *tensors, dtype=layer.dtype)
    if isinstance(layer, nn.Conv):
        strides = np.broadcast_to(layer.strides or 1, x.ndim - 2).tolist()
        x = x[(slice(None), *(slice(None, None, stride) for stride in strides))]
        outputs = _product(x, kernel.reshape(kernel.shape[-2:]), layer.precision)
        if bias is not None:
            outputs += jnp.expand_dims(bias, range(x.ndim - 1))
    else:
        outputs = call(*args, **kwargs)
    return outputs + _product(_product(x, a), b) * (SCALE / b.shape[0])


def _product(x: Array, w: Array, precision: Any = None) -> Array:
    """Returns x [..., D] times w [D, F]; with more axes, XLA on a CPU transposes a factor of w's gradient in memory."""
    product = jnp.matmul(x.reshape(-1, x.shape[-1]), w, precision=precision)
    return product.reshape(*x.shape[:-1], -1)
