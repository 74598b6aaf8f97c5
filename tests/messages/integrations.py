"""Mistakes in what is given to PyTorch where it is installed, and in named arrays."""

import importlib.util

import numpy as np

from fedvg_jax.integrations import named_arrays

MODEL = {"w": np.array([1.0, -2.0], np.float32), "n": np.array(3)}


def weigh(*gradients, **options):
    return lambda: named_arrays.inverse_norm_weights(gradients, MODEL, **options)


def average(client, weights=(0.5, 0.5)):
    return lambda: named_arrays.average(MODEL, [MODEL, client], {"w": np.array(weights)})


ONE = {"w": np.ones(2)}

CASES = [
    ("no gradients", weigh(), "gradients"),
    ("a gradient that lacks a name", weigh(ONE, {}), "client 1 leaf 'w'"),
    ("a gradient of another model", weigh({"b": np.ones(2)}), "gradients"),
    ("an unknown norm", weigh(ONE, norm="l3"), "l3"),
    ("a negative eps", weigh(ONE, eps=-1.0), "'eps'"),
    ("a client without an array", average({"w": MODEL["w"]}), "client 1 leaf 'n'"),
    ("weights of sum 0.5", average(MODEL, (0.2, 0.3)), "weights leaf 'w'"),
    ("weights of fewer clients", average(MODEL, (1.0,)), "weights leaf 'w'"),
]

if importlib.util.find_spec("torch"):
    import torch
    from torch import nn

    from fedvg_jax.integrations import torch as of_torch

    def gradients(loader, model=None):
        model = model or nn.Linear(2, 3)
        return lambda: of_torch.validation_gradients(model, nn.CrossEntropyLoss(), loader)

    CASES += [
        ("no minibatch", gradients(iter([])), "D_val"),
        ("nothing that is trained", gradients([], nn.ReLU()), "requires_grad"),
        ("a minibatch as a dict", gradients([{"x": torch.ones(4, 2)}]), "D_val"),
    ]
