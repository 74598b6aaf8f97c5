"""One more contestant: pfl-research's own simulator, on its published CIFAR-10 set-up. Started by `benchmarks.rounds`.

    python -m benchmarks.pfl_peer --folder DIR --threads N

Its Python must have `pfl` and `torch`. Users' rows come in the order of our minibatches, since pfl does not shuffle.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import pfl
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel

from benchmarks import contest, machine, peers, torch_nets

STEPPED = 4
"""Users that are compared after one step; each takes a whole run of the simulator."""


class Net(torch.nn.Module):
    """The functional network with parameters of its own."""

    def __init__(self, world: peers.World):
        super().__init__()
        self.net, self.names = world.net, list(world.params)
        self.tensors = torch.nn.ParameterList([p.clone() for p in world.params.values()])

    def loss(self, x, y, eval=False):
        """As pfl calls it."""
        return F.cross_entropy(self.net(dict(zip(self.names, self.tensors, strict=True)), None, x), y)

    def metrics(self, x, y, eval=False):
        """Nothing is evaluated."""
        return {}


class Simulator:
    """FederatedAveraging under a SimulatedBackend."""

    def __init__(self, world: peers.World):
        self.world = world
        self.net = Net(world)
        sgd = torch.optim.SGD(self.net.parameters(), 1.0)
        self.model = PyTorchModel(self.net, local_optimizer_create=torch.optim.SGD, central_optimizer=sgd)

    def run(self, users: list[list[torch.Tensor]], rounds: int = 1) -> None:
        """Rounds of the cohort `users`, rows of each user's minibatches, from the initial model."""
        with torch.no_grad():
            for mine, initial in zip(self.net.tensors, self.world.params.values(), strict=True):
                mine.copy_(initial)
        data = [(self.world.x[rows], self.world.y[rows]) for rows in map(torch.cat, users)]
        order = iter(range(rounds * len(users)))
        users_data = FederatedDataset(lambda i: Dataset(raw_data=data[i % len(data)]), lambda: next(order))
        size, lr = self.world.known["batch_size"], self.world.known["lr"]
        train = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=lr, local_batch_size=size)
        plan = NNAlgorithmParams(rounds, evaluation_frequency=10**9, train_cohort_size=len(users), val_cohort_size=None)
        backend = SimulatedBackend(training_data=users_data, val_data=users_data)
        FederatedAveraging().run(plan, backend, self.model, train, NNEvalHyperParams(local_batch_size=size))

    def found(self) -> dict[str, np.ndarray]:
        """The global model in our layout."""
        model = self.world.known["model"]
        tensors = zip(self.net.names, self.net.tensors, strict=True)
        return {f"params/{name}": torch_nets.from_torch(model, name, tensor) for name, tensor in tensors}

    def check(self) -> dict[str, np.ndarray]:
        """As the others, but of the first users: a cohort of one user with one minibatch returns that user's model."""
        exact, steps = Simulator(peers.double(self.world)), []
        for batches in self.world.rounds[0][:STEPPED]:
            exact.run([batches[:1]])
            steps.append({name: x.copy() for name, x in exact.found().items()})
        count = len(self.world.rounds[0])
        found = {f"step/{name}": np.stack([s[name] for s in steps]) for name in steps[0]}
        for kind, simulator in (("round", self), ("exact", exact)):
            simulator.run(self.world.rounds[0])
            found |= {f"{kind}/{name}": x.copy() for name, x in simulator.found().items()}
        return found | {"weights": np.full(count, 1 / count, np.float32)}


def main(argv: list[str] | None = None) -> int:
    """Reads the world, then answers requests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    simulator = Simulator(peers.read(args.folder))
    users = simulator.world.rounds[0]
    about = {"threads": args.threads, "torch": torch.__version__, "pfl": getattr(pfl, "__version__", "")}

    def seconds() -> dict[str, float]:
        worked = time.process_time()
        return {"round": machine.timed(lambda: simulator.run(users)), "cpu": time.process_time() - worked}

    contest.serve(args.folder, "pfl", {"check": simulator.check}, seconds, about)
    return 0


if __name__ == "__main__":
    sys.exit(main())
