"""Label-skewed partitions: for each label, p ~ Dirichlet(alpha 1_K) says which share of its rows each client holds.

Two streams of the same rule. `official` replays the published code's, draw for draw; `bulk` draws many candidates at
once and gives up on each at the first clients that are too small. Both repeat until every client has `min_samples`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError

Progress = Callable[[int, int], None]
"""(draws done, most draws) -> None"""

_WIDTH = 6
"""Clients drawn between two looks at the minimum; a candidate of a hard partition fails within the first dozen."""

_ELEMENTS = 2**18
"""Gamma variates of a full bulk: 1 MB, so that the passes over them stay in the processor's cache."""


class Draw(NamedTuple):
    """A successful draw."""

    rows: list[np.ndarray]
    """one int64 array of pool rows per client, label after label"""
    attempts: int
    """draws it took"""


def bulk(
    labels: np.ndarray,
    num_clients: int,
    alpha: float,
    stream: np.random.Generator,
    min_samples: int = 10,
    max_draws: int = 1_000_000,
    progress: Progress | None = None,
) -> Draw:
    """The published distribution, thousands of draws at a time.

    Sizes depend on label counts only, so candidates are rejected before any row is shuffled.

    Args:
        labels: [T] int, 0..C-1.
        alpha: concentration, > 0; small means skewed.
        stream: consumed; fixes the outcome.
        min_samples: rows every client must have, before any split.

    Raises:
        UsageError: `max_draws` draws gave none.
    """
    members = _members(labels)
    counts = np.array([len(rows) for rows in members])
    done, size = 0, 16
    while done < max_draws:
        size = min(size, max_draws - done)
        number, cuts = _bulk(stream, counts, num_clients, alpha, min_samples, size)
        _tell(progress, done + size, max_draws)
        if len(number):
            for rows in members:
                stream.shuffle(rows)
            return Draw(_deal(members, cuts[0]), done + int(number[0]) + 1)
        done, size = done + size, max(16, min(4 * size, _ELEMENTS // (len(counts) * _WIDTH)))
    raise _exhausted(num_clients, alpha, min_samples, max_draws)


def official(
    labels: np.ndarray,
    num_clients: int,
    alpha: float,
    stream: np.random.RandomState,
    min_samples: int = 10,
    max_draws: int = 200_000,
    progress: Progress | None = None,
) -> Draw:
    """The published stream, draw for draw: per label shuffle in place (cumulative over retries), draw, truncate, cut.

    Args and Raises: as `bulk`; also UsageError where alpha is so small that the published draw is not a number.

    Source: FL-bench's Dirichlet partition as FedVG's official code runs it; `stream` is RandomState(seed) there.
    """
    members = _members(labels)
    for attempt in range(1, max_draws + 1):
        cuts = np.array([_official_cuts(stream, rows, num_clients, alpha) for rows in members])
        if attempt % 100 == 0:
            _tell(progress, attempt, max_draws)
        if _sizes(cuts, members).min() >= min_samples:
            return Draw(_deal(members, cuts), attempt)
    raise _exhausted(num_clients, alpha, min_samples, max_draws)


def top_up(rows: list[np.ndarray], min_samples: int, stream: np.random.Generator | np.random.RandomState) -> list:
    """Repair of a draw that is not to be repeated: every client below the minimum, in order of its number, takes rows
    one by one from the client that is largest at that moment, at random among that client's rows.

    Changes the distribution: the smallest clients are of exactly `min_samples` rows. Needs K min_samples <= T.
    """
    piles = [list(stream.permutation(pile)) for pile in rows]
    sizes = np.array([len(pile) for pile in piles])
    for client in np.flatnonzero(sizes < min_samples):
        while sizes[client] < min_samples:
            donor = int(sizes.argmax())
            piles[client].append(piles[donor].pop())
            sizes[client] += 1
            sizes[donor] -= 1
    return [np.array(pile, np.int64) for pile in piles]


def log_shares(stream: np.random.Generator, alpha: float, num_classes: int, num_clients: int) -> np.ndarray:
    """[C, K] logarithms of p_c ~ Dirichlet(alpha 1_K), finite even where alpha is so small that nearly all p are 0."""
    logs = _log_gamma(stream, alpha, (num_classes, num_clients)).astype(np.float64)
    return logs - np.logaddexp.reduce(logs, 1, keepdims=True)


def _members(labels: np.ndarray) -> list[np.ndarray]:
    """The rows of each label, in increasing order; int64, the width NumPy shuffles fastest."""
    ends = np.cumsum(np.bincount(labels))
    return [rows.copy() for rows in np.split(np.argsort(labels, kind="stable"), ends[:-1])]


def _deal(members: list[np.ndarray], cuts: np.ndarray) -> list[np.ndarray]:
    """Each label's rows cut at cuts [C, K-1], joined per client."""
    pieces = [np.split(rows, cut) for rows, cut in zip(members, cuts, strict=True)]
    return [np.concatenate(mine) for mine in zip(*pieces, strict=True)]


def _sizes(cuts: np.ndarray, members: list[np.ndarray]) -> np.ndarray:
    return np.diff(cuts.sum(0), prepend=0, append=sum(map(len, members)))


def _official_cuts(stream: np.random.RandomState, rows: np.ndarray, num_clients: int, alpha: float) -> np.ndarray:
    stream.shuffle(rows)
    shares = stream.dirichlet(np.repeat(alpha, num_clients))
    if not np.isfinite(shares.sum()):
        raise UsageError(f"alpha {alpha} is too small for the published stream (0/0); use a larger alpha or bulk draws")
    return (np.cumsum(shares) * len(rows)).astype(np.int64)[:-1]


def _bulk(
    stream: np.random.Generator, counts: np.ndarray, num_clients: int, alpha: float, min_samples: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """`size` candidates -> (numbers [s] of those with every client large enough, their cuts int64 [s, C, K-1]).

    Clients come in blocks, one block's shares and the sum of all later ones at a time: a Dirichlet vector given its
    first entries is a Dirichlet vector of the rest, scaled to what is left. Most candidates fail in the first blocks,
    and the later ones are never drawn for them.
    """
    number = np.arange(size)
    reached = np.zeros((size, len(counts), 1), np.float32)
    cuts = np.zeros((size, len(counts), 1), np.int64)
    for first in range(0, num_clients, _WIDTH):
        width = min(_WIDTH, num_clients - first)
        later = num_clients - first - width
        shares = _shares(stream, (len(number), len(counts)), alpha, width, later) * (1 - reached)
        cumulative = np.minimum(reached + np.cumsum(shares, -1), 1)
        ends = (cumulative * counts[:, None]).astype(np.int64)
        if not later:
            ends[..., -1] = counts
        sizes = np.diff(ends.sum(1), prepend=cuts[..., -1].sum(1, keepdims=True))
        good = (sizes >= min_samples).all(-1)
        number, reached, cuts = number[good], cumulative[good, :, -1:], np.concatenate([cuts[good], ends[good]], -1)
        if not len(number):
            break
    return number, cuts[..., 1:-1]


def _shares(stream: np.random.Generator, shape: tuple[int, int], alpha: float, width: int, later: int) -> np.ndarray:
    """First `width` entries [*shape, width] of Dirichlet(alpha) vectors with `width + later` entries."""
    logs = _log_gamma(stream, alpha, (*shape, width))
    if later:
        logs = np.concatenate([logs, _log_gamma(stream, alpha * later, (*shape, 1))], -1)
    shares = np.exp(logs - logs.max(-1, keepdims=True))
    return shares[..., :width] / shares.sum(-1, keepdims=True)


def _log_gamma(stream: np.random.Generator, shape: float, size: tuple[int, ...]) -> np.ndarray:
    """log of Gamma(shape) variates, as log of Gamma(shape + 1) U^(1/shape): nothing underflows at a small shape."""
    boosted = np.maximum(stream.standard_gamma(shape + 1, size, np.float32), np.finfo(np.float32).tiny)
    # Below 1e-30 a label goes to one client whole in any case, and the quotient would overflow.
    return np.log(boosted) - stream.standard_exponential(size, np.float32) / np.float32(max(shape, 1e-30))


def _tell(progress: Progress | None, done: int, most: int) -> None:
    if progress is not None:
        progress(done, most)


def _exhausted(num_clients: int, alpha: float, min_samples: int, draws: int) -> UsageError:
    return UsageError(
        f"none of {draws:,} draws of Dirichlet alpha {alpha} gave each of {num_clients} clients {min_samples} samples: "
        "use fewer clients, a larger alpha, a smaller --min-samples, or --min-samples-rule top_up"
    )
