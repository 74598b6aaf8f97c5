"""Settings of corrupt clients, of rules that stand them, and of the server's own training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Robust:
    """How the server joins the clients' models, where some may be corrupt."""

    rule: str = "mean"
    """mean (by --weighting), median, trimmed_mean, krum (these three ignore the weights), or clipped_mean."""
    trim: float = 0.1
    """trimmed_mean: share of the clients left out at each end, in [0, 0.5)."""
    num_bad: int = 1
    """krum: corrupt clients of a cohort it is to stand; the cohort needs 2 num_bad + 3."""
    num_kept: int = 1
    """krum: models averaged (more than 1 is multi-Krum)."""
    clip_norm: float = 10.0
    """clipped_mean: global norm an update is shortened to."""
    noise: float = 0.0
    """clipped_mean: noise multiplier; its deviation is noise x clip_norm x largest weight. No privacy is claimed."""


@dataclass(frozen=True)
class Attack:
    """Corrupt clients, the same in every round."""

    kind: str = "none"
    """none, sign_flip (update times -scale), scaling (times scale), noise (scale times as long an update of noise)."""
    clients: float = 0.2
    """Share of all clients that are corrupt, in (0, 1]."""
    scale: float = 1.0
    """Factor of the corrupt update."""


@dataclass(frozen=True)
class Tuning:
    """The server's own training on the shared validation set, after every round."""

    steps: int = 0
    """Minibatch steps per round; 0 for none. Validation accuracy is then that of training."""
    lr: float = 0.01
    """Learning rate (plain SGD)."""
