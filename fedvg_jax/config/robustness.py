"""Settings of corrupt clients, of robust aggregation, and of the server's own training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Robust:
    """Robust aggregation of the clients' models, some of which may be corrupt."""

    rule: str = "mean"
    """Aggregation rule. mean and clipped_mean use the weights of --weighting; the others ignore them."""
    trim: float = 0.1
    """Fraction of the clients that trimmed_mean leaves out at each end, in [0, 0.5)."""
    num_bad: int = 1
    """Number of corrupt clients that krum tolerates. The cohort needs at least 2 num_bad + 3 clients."""
    num_kept: int = 1
    """Number of models that krum averages. More than 1 is multi-Krum."""
    clip_norm: float = 10.0
    """Global norm to which clipped_mean shortens updates."""
    noise: float = 0.0
    """Noise multiplier of clipped_mean. The standard deviation is noise x clip_norm x largest weight; no privacy is
    claimed."""


@dataclass(frozen=True)
class Attack:
    """Clients with corrupt updates, the same in every round."""

    kind: str = "none"
    """Corruption of updates. sign_flip: times -scale; scaling: times scale; noise: replaced by noise of scale times
    their norm."""
    clients: float = 0.2
    """Fraction of all clients that are corrupt, in (0, 1]."""
    scale: float = 1.0
    """Factor of the corrupt update."""


@dataclass(frozen=True)
class Tuning:
    """The server's own training steps on the shared validation set, after every round."""

    steps: int = 0
    """Minibatch steps per round; 0 for none. Validation accuracy is then training accuracy."""
    lr: float = 0.01
    """Learning rate of the plain SGD."""
