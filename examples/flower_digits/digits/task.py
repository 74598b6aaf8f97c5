"""The model, the data of every client, and local training."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 32


class Net(nn.Module):
    """Dense 64 -> 32, BatchNorm, ReLU, dense 32 -> 10."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.bn1 = nn.BatchNorm1d(32)
        self.classifier = nn.Linear(32, 10)

    def forward(self, x):
        return self.classifier(torch.relu(self.bn1(self.fc1(x))))


def datasets(
    num_clients: int, alpha: float, seed: int
) -> tuple[list[TensorDataset], TensorDataset, TensorDataset]:
    """Returns the clients' training sets, D_val and the test set; each class is split by a Dirichlet draw."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    val, test, train = np.split(order, [len(order) // 10, 3 * len(order) // 10])
    parts = [[] for _ in range(num_clients)]
    for label in range(10):
        rows = train[labels[train] == label]
        cuts = np.cumsum(rng.dirichlet(np.full(num_clients, alpha)))[:-1] * len(rows)
        for part, piece in zip(parts, np.split(rows, cuts.astype(int)), strict=True):
            part.extend(piece)
    for part in parts:  # BatchNorm needs two rows
        part.extend(rng.choice(train, max(0, 4 - len(part)), replace=False))

    def dataset(rows) -> TensorDataset:
        return TensorDataset(
            torch.tensor(images[rows] / 16, dtype=torch.float32), torch.tensor(labels[rows])
        )

    return [dataset(part) for part in parts], dataset(val), dataset(test)


def loader(dataset: TensorDataset, seed: int | None = None) -> DataLoader:
    """Returns minibatches, shuffled if a seed is given; a last minibatch of a single row is left out then."""
    if seed is None:
        return DataLoader(dataset, BATCH_SIZE)
    shuffled = torch.Generator().manual_seed(seed)
    return DataLoader(
        dataset,
        BATCH_SIZE,
        shuffle=True,
        drop_last=len(dataset) % BATCH_SIZE == 1,
        generator=shuffled,
    )


def train(net: Net, minibatches: DataLoader, epochs: int, lr: float) -> float:
    """Trains in place by plain SGD; returns the mean loss of the last epoch."""
    optimiser = torch.optim.SGD(net.parameters(), lr)
    net.train()
    losses = []
    for _ in range(epochs):
        losses = []
        for x, y in minibatches:
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return float(np.mean(losses))


def accuracy(net: Net, dataset: TensorDataset) -> float:
    """Returns the fraction of correct predictions."""
    x, y = dataset.tensors
    net.eval()
    with torch.no_grad():
        return float((net(x).argmax(1) == y).float().mean())
