"""Who holds what: settings of the shared validation set and of corrupt rows, and what may be said of clients' data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PARTITIONS = (
    "dirichlet",
    "official",
    "dirichlet_equal",
    "balanced_client",
    "quantity",
    "iid",
    "shards",
    "classes",
    "group",
    "file",
)
DRAWN_SIZES = ("dirichlet", "official", "quantity")
"""Kinds whose clients' sizes are drawn, and may so be too small."""

SPLITS = ("client", "global", "stratified")
VALIDATION_SOURCES = ("clients", "cifar100", "stl10", "npz")
CORRUPTIONS = ("none", "label_flip", "label_noise", "pixel_noise", "feature_noise", "rotate90", "rotate")


@dataclass(frozen=True)
class Validation:
    """The shared validation set D_val."""

    source: str = "clients"
    """Where it comes from: clients (a part of every client's rows, published), or an external set: cifar100 or stl10
    (mapped to CIFAR-10's classes), or npz (any .npz of arrays; its class names are matched)."""
    data_dir: Path | None = None
    """Folder (or file) of the external set."""
    copies: str = "official"
    """External: 50 images of every class twice and at most 5,000 in all (official), or every image once (none)."""
    classes: str = "paper"
    """External cifar100: the paper's seven classes (paper), or also pickup_truck as truck (all)."""
    clients: float = 1.0
    """Share of the clients, chosen by partition_seed, whose validation rows are used, in (0, 1]."""
    size: int = 0
    """Number of images kept, chosen at random; 0 for all."""
    fraction: float = 1.0
    """Share of the images kept, chosen at random, in (0, 1]."""
    rho: float = 0.0
    """Class imbalance: of class i, floor(p_i N/2) of N images, p_i ~ rho^i, as far as there are any; 0 for none."""
    imbalance: str = "corrected"
    """With rho: the order of D_val and all its batches (corrected), or sorted by class and without a last batch that is
    not full (official)."""
    pixel_noise: float = 0.0
    """Standard deviation of Gaussian noise on its pixels, which are 0 to 1."""
    label_noise: float = 0.0
    """Share of its labels replaced by another class, at random."""


@dataclass(frozen=True)
class Corrupt:
    """Clients whose training rows are corrupt, the same in every round."""

    kind: str = "none"
    """none; label_flip (c becomes C-1-c), label_noise (another class), pixel_noise; or a feature shift of each client's
    own: feature_noise (levels up to the strength), rotate90, rotate (angles up to strength x 180 degrees)."""
    clients: float = 0.2
    """Share of all clients, chosen by seed, in (0, 1]."""
    strength: float = 1.0
    """Share of their labels, deviation of the noise (pixels are 0 to 1), or share of a half turn; in (0, 1]."""
