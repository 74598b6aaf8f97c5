"""Settings of the shared validation set and of corrupt rows, and the names of partitions and splits."""

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
"""Partitions that draw the sizes of the clients at random, so that a client may get too few rows."""

SPLITS = ("client", "global", "stratified")
VALIDATION_SOURCES = ("clients", "cifar100", "stl10", "npz")
CORRUPTIONS = ("none", "label_flip", "label_noise", "pixel_noise", "feature_noise", "rotate90", "rotate")


@dataclass(frozen=True)
class Validation:
    """The shared validation set D_val."""

    source: str = "clients"
    """Source of D_val. clients: a fraction of every client's rows (published); cifar100 and stl10: an external set,
    mapped to CIFAR-10's classes; npz: arrays in a file, whose class names are matched."""
    data_dir: Path | None = None
    """Folder or file of the external set."""
    copies: str = "official"
    """Images taken from an external set. official: 50 of every class and then every image, at most 5,000; none:
    every image once."""
    classes: str = "paper"
    """Classes taken from an external cifar100. paper: the paper's seven; all: also pickup_truck, as truck."""
    clients: float = 1.0
    """Fraction of the clients whose validation rows are used, in (0, 1]. partition_seed selects them."""
    size: int = 0
    """Number of images kept, selected at random; 0 keeps all."""
    fraction: float = 1.0
    """Fraction of the images kept, selected at random, in (0, 1]."""
    rho: float = 0.0
    """Class imbalance; 0 for none. Of class i, floor(p_i V/2) of V images are kept where there are as many, p_i ~
    rho^i."""
    imbalance: str = "corrected"
    """Order of an imbalanced D_val. corrected: the order of D_val, all minibatches; official: sorted by class, without
    an incomplete last minibatch (the published code)."""
    pixel_noise: float = 0.0
    """Standard deviation of Gaussian noise on the pixels, which are 0 to 1."""
    label_noise: float = 0.0
    """Fraction of the labels that are replaced by another class, at random."""


@dataclass(frozen=True)
class Corrupt:
    """Clients with corrupt training rows, the same in every round."""

    kind: str = "none"
    """Corruption of training rows. label_flip: class c becomes C-1-c; label_noise: another class; pixel_noise: Gaussian
    noise. Feature shifts that differ between clients: feature_noise (levels up to the strength), rotate90, rotate
    (angles up to strength x 180 degrees)."""
    clients: float = 0.2
    """Fraction of all clients that are corrupt, selected by the seed, in (0, 1]."""
    strength: float = 1.0
    """Strength of the corruption, in (0, 1]: fraction of the labels, deviation of the noise, or fraction of a half
    turn."""
