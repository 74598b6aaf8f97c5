"""The contestant "pfl" of `rounds`: pfl-research's own simulator, on its published CIFAR-10 set-up.

    python -m benchmarks.speed.pfl_peer --folder DIR --threads N

Needs `pfl` and `torch`. `rounds` starts it and sends it requests, see `contest`;
`ours` has written the workload to DIR. Users' rows are in the order of our minibatches, because pfl does not
shuffle.
"""

from __future__ import annotations

import sys
import time

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

from benchmarks import machine
from benchmarks.speed import contest, peers, torch_nets

CHECKED_USERS = 4
"""Users that are compared after one local step; each needs a whole run of the simulator."""


class Net(torch.nn.Module):
    """The functional network as a module with parameters."""

    def __init__(self, workload: peers.Workload):
        super().__init__()
        self.net, self.names = workload.net, list(workload.params)
        self.tensors = torch.nn.ParameterList([p.clone() for p in workload.params.values()])

    def loss(self, x, y, eval=False):
        """Returns the loss; pfl calls it by this name."""
        return F.cross_entropy(
            self.net(dict(zip(self.names, self.tensors, strict=True)), None, x), y
        )

    def metrics(self, x, y, eval=False):
        """Returns no metrics; pfl requires the method."""
        return {}


class Simulator:
    """pfl's FederatedAveraging on a SimulatedBackend."""

    def __init__(self, workload: peers.Workload):
        self.workload = workload
        self.net = Net(workload)
        sgd = torch.optim.SGD(self.net.parameters(), 1.0)
        self.model = PyTorchModel(
            self.net, local_optimizer_create=torch.optim.SGD, central_optimizer=sgd
        )

    def run(self, users: list[list[torch.Tensor]], rounds: int = 1) -> None:
        """Runs rounds of one cohort, from the initial model.

        Args:
            users: rows of each user's minibatches.
            rounds: number of rounds.
        """
        with torch.no_grad():
            for parameter, initial in zip(
                self.net.tensors, self.workload.params.values(), strict=True
            ):
                parameter.copy_(initial)
        data = [(self.workload.x[rows], self.workload.y[rows]) for rows in map(torch.cat, users)]
        order = iter(range(rounds * len(users)))
        users_data = FederatedDataset(
            lambda i: Dataset(raw_data=data[i % len(data)]), lambda: next(order)
        )
        size, lr = self.workload.settings["batch_size"], self.workload.settings["lr"]
        train = NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=lr, local_batch_size=size
        )
        plan = NNAlgorithmParams(
            rounds, evaluation_frequency=10**9, train_cohort_size=len(users), val_cohort_size=None
        )
        backend = SimulatedBackend(training_data=users_data, val_data=users_data)
        FederatedAveraging().run(
            plan, backend, self.model, train, NNEvalHyperParams(local_batch_size=size)
        )

    def global_model(self, kind: str) -> dict[str, np.ndarray]:
        """Returns a copy of the global model as `torch_nets.as_arrays`."""
        tensors = {n: x.clone() for n, x in zip(self.net.names, self.net.tensors, strict=True)}
        return torch_nets.as_arrays(self.workload.settings["model"], kind, tensors)

    def check(self) -> dict[str, np.ndarray]:
        """Returns the arrays of `peers.check`; single steps of the first users only.

        A cohort of one user with one minibatch returns that user's model after one step.
        """
        exact, steps = Simulator(peers.to_float64(self.workload)), []
        for batches in self.workload.rounds[0][:CHECKED_USERS]:
            exact.run([batches[:1]])
            steps.append(exact.global_model("step"))
        count, arrays = len(self.workload.rounds[0]), torch_nets.stacked(steps)
        for kind, simulator in (("round", self), ("exact", exact)):
            simulator.run(self.workload.rounds[0])
            arrays |= simulator.global_model(kind)
        return arrays | {"weights": np.full(count, 1 / count, np.float32)}


def main(argv: list[str] | None = None) -> int:
    """Reads the workload, then answers requests."""
    args = contest.parser(__doc__).parse_args(argv)
    torch.set_num_threads(args.threads)
    simulator = Simulator(peers.read(args.folder))
    users = simulator.workload.rounds[0]
    about = {
        "threads": args.threads,
        "torch": torch.__version__,
        "pfl": getattr(pfl, "__version__", ""),
    }

    def time_round() -> dict[str, float]:
        cpu_start = time.process_time()
        return {
            "round": machine.time_call(lambda: simulator.run(users)),
            "cpu": time.process_time() - cpu_start,
        }

    contest.serve(args.folder, "pfl", {"check": simulator.check}, time_round, about)
    return 0


if __name__ == "__main__":
    sys.exit(main())
