"""Mistakes in named arrays, and in what is given to PyTorch and Flower where these are installed."""

import importlib.util

import numpy as np

from fedvg_jax import config
from fedvg_jax.integrations import named_arrays
from fedvg_jax.integrations.named_arrays import Client

MODEL = {"conv.weight": np.array([1.0, -2.0], np.float32), "head.bias": np.array([0.5], np.float32)}


def gradient(arrays):
    return dict(arrays)


def scheme(model=None, gradient=gradient, **settings):
    return lambda: named_arrays.make_scheme(
        config.check(config.Config(**settings)), gradient, model or MODEL
    )


def reply(**changes):
    """Returns a call that weighs a client whose arrays differ from the model; None leaves an array out."""
    arrays = {name: array for name, array in (MODEL | changes).items() if array is not None}
    return lambda: named_arrays.weigh(scheme()(), MODEL, [Client(MODEL, 1), Client(arrays, 1)])


def forgetful():
    """A gradient whose second call lacks an array."""
    calls = iter([MODEL, {}])
    made = named_arrays.make_scheme(config.Config(), lambda arrays: next(calls), MODEL)
    named_arrays.weigh(made, MODEL, [Client(MODEL, 1)])


CASES = [
    ("a weighting of the server's own gradient", scheme(weighting="fltrust"), "fltrust"),
    ("Fisher information", scheme(fedvg={"signal": "fisher"}), "fedvg.signal"),
    ("a mode", scheme(fedvg={"mode": "eval"}), "fedvg.mode"),
    ("local tensors", scheme(local="^head"), "local"),
    ("a robust rule", scheme(robust="clipped_mean"), "robust"),
    ("no tensor", scheme(fedvg={"include": "^no"}), "fedvg.include"),
    ("a gradient of nothing", scheme(gradient=lambda arrays: {}), "gradient"),
    ("a gradient of another name", scheme(gradient=lambda arrays: {"w": np.ones(1)}), "'w'"),
    ("a gradient that forgets a name", forgetful, "'conv.weight'"),
    ("a reply without an array", reply(**{"head.bias": None}), "reply 1 leaf 'head.bias'"),
    ("a reply with another array", reply(other=np.ones(1)), "'other'"),
    ("a reply of another shape", reply(**{"head.bias": np.zeros(2, np.float32)}), "'head.bias'"),
]

if importlib.util.find_spec("torch"):
    import torch
    from torch import nn

    from fedvg_jax.integrations import torch as of_torch

    ONE, TWO, LOSS = {"a": torch.ones(1)}, {"a": torch.ones(2)}, nn.CrossEntropyLoss()
    X, Y = torch.ones(4, 2), torch.zeros(4, dtype=torch.long)

    def gradients(loader, model=None):
        return lambda: of_torch.validation_gradients(model or nn.Linear(2, 3), LOSS, loader)

    def weights(values):
        state = {"n": torch.tensor(3), "w": torch.zeros(2)}
        return lambda: of_torch.aggregate(state, 2 * [state], {"w": torch.tensor(values)})

    CASES += [
        ("no gradients", lambda: of_torch.inverse_norm_weights([], {}), "gradients"),
        (
            "gradients of other names",
            lambda: of_torch.inverse_norm_weights([ONE, {}], ONE),
            "client 1",
        ),
        (
            "gradients of another model",
            lambda: of_torch.inverse_norm_weights([{"b": ONE["a"]}], ONE),
            "'b'",
        ),
        ("a negative eps", lambda: of_torch.inverse_norm_weights([ONE], ONE, eps=-1.0), "'eps'"),
        ("no clients", lambda: of_torch.aggregate(ONE, [], {"a": torch.ones(0)}), "client"),
        ("a client without an array", lambda: of_torch.aggregate(ONE, [{}], ONE), "client 0"),
        ("no minibatch", gradients(iter([])), "D_val"),
        ("nothing that is trained", gradients([], nn.ReLU()), "ReLU"),
        ("a minibatch as a dict", gradients([{"x": X}]), "a dict"),
        ("weights of sum 0.5", weights([0.2, 0.3]), "leaf 'w'"),
    ]

if importlib.util.find_spec("flwr"):
    from flwr.serverapp import strategy as strategies

    from fedvg_jax.integrations import flower

    def strategy(**arguments):
        return lambda: flower.FedVG(gradient=gradient, **arguments)

    CASES += [
        ("a server that leaves clients out", strategy(server=strategies.Krum()), "Krum"),
        (
            "an option of the server's",
            strategy(server=strategies.FedAvg(), fraction_train=1.0),
            "fraction_train",
        ),
        ("an algorithm", strategy(config=config.Config(method="fedavgm+fedvg")), "fedavgm"),
    ]
