"""Label-skewed partitions: for each label, p ~ Dirichlet(alpha 1_K) gives the share of its rows that each client holds.

Two random streams sample the same distribution. `official` replays the stream of the published code, draw for draw.
`bulk` draws many candidates at a time and rejects each at its first clients that are too small. Both repeat until every
client has `min_samples` rows.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np

from fedvg_jax.core.types import UsageError

_WIDTH = 6
"""Clients drawn between two checks of the minimum; a candidate of a hard partition fails within the first dozen."""

_ELEMENTS = 2**18
"""Gamma variates of a full bulk: 1 MB, which fits the processor's cache."""


def bulk(
    labels: np.ndarray,
    num_clients: int,
    stream: np.random.Generator,
    alpha: float,
    min_samples: int = 10,
    max_draws: int = 1_000_000,
) -> list[np.ndarray]:
    """Draws from the published distribution, thousands of candidates at a time.

    Clients' sizes depend on label counts only, so candidates are rejected before any row is shuffled.

    Args:
        labels: int [T], 0..C-1.
        num_clients: K.
        stream: consumed; determines the outcome.
        alpha: concentration, > 0; small values give skewed clients.
        min_samples: rows that every client must have, before any split.
        max_draws: number of candidates.

    Returns:
        One int64 array of pool rows per client, label after label.

    Raises:
        UsageError: none of `max_draws` candidates succeeds.

    >>> rows = bulk(np.array([0, 0, 0, 1, 1, 1]), 2, np.random.default_rng(0), 100.0, min_samples=2)
    >>> sorted(np.concatenate(rows).tolist()), min(map(len, rows)) >= 2
    ([0, 1, 2, 3, 4, 5], True)
    """
    members = _members(labels)
    counts = np.array([len(rows) for rows in members])
    done, size = 0, 16
    while done < max_draws:
        cuts = _bulk(stream, counts, num_clients, alpha, min_samples, size)
        if cuts is not None:
            for rows in members:
                stream.shuffle(rows)
            return deal(members, cuts)
        done, size = done + size, max(16, min(4 * size, _ELEMENTS // (len(counts) * _WIDTH)))
    raise _exhausted(num_clients, alpha, min_samples, max_draws)


def official(
    labels: np.ndarray,
    num_clients: int,
    stream: np.random.RandomState,
    alpha: float,
    min_samples: int = 10,
    max_draws: int = 200_000,
) -> list[np.ndarray]:
    """Replays the published stream, draw for draw.

    Each draw takes the labels in order: it shuffles a label's rows in place, so shuffles accumulate over draws, draws
    p, and cuts the rows at the truncated cumulative shares.

    Args:
        labels: int [T], 0..C-1.
        num_clients: K.
        alpha: concentration, > 0.
        stream: RandomState(seed) in the published code; consumed.
        min_samples: rows that every client must have, before any split.
        max_draws: number of candidates.

    Returns:
        As `bulk`.

    Raises:
        UsageError: as `bulk`; or alpha is so small that the published draw is not a number.

    Source: FL-bench's Dirichlet partition as FedVG's official code runs it.
    """
    members = _members(labels)
    for _ in range(max_draws):
        cuts = []
        for rows in members:
            stream.shuffle(rows)
            shares = stream.dirichlet(np.repeat(alpha, num_clients))
            if not np.isfinite(shares.sum()):
                raise UsageError(
                    f"alpha {alpha} is too small for partition official; use a larger alpha, or partition dirichlet"
                )
            cuts.append((np.cumsum(shares) * len(rows)).astype(np.int64)[:-1])
        if np.diff(np.sum(cuts, 0), prepend=0, append=len(labels)).min() >= min_samples:
            return deal(members, cuts)
    raise _exhausted(num_clients, alpha, min_samples, max_draws)


def top_up(
    rows: list[np.ndarray], min_samples: int, stream: np.random.Generator | np.random.RandomState
) -> list:
    """Moves rows to clients below the minimum, instead of repeating the draw.

    Each of them, in the order of ids, takes random rows one at a time from the client that is largest at that moment.
    This changes the distribution: the smallest clients have exactly `min_samples` rows.

    Args:
        rows: int arrays, one per client; K min_samples <= T.
        min_samples: rows of the smallest client afterwards.
        stream: consumed.
    """
    piles = [list(stream.permutation(client_rows)) for client_rows in rows]
    donors = [(-len(pile), client) for client, pile in enumerate(piles)]
    heapq.heapify(donors)  # the largest first; among equal ones the smallest id
    for pile in piles:
        while len(pile) < min_samples:
            size, donor = donors[0]  # which has more than the minimum
            pile.append(piles[donor].pop())
            heapq.heapreplace(donors, (size + 1, donor))
    return [np.array(pile, np.int64) for pile in piles]


def log_shares(
    stream: np.random.Generator, alpha: float, num_classes: int, num_clients: int
) -> np.ndarray:
    """Returns [C, K] logarithms of p_c ~ Dirichlet(alpha 1_K), finite for any alpha > 0."""
    logs = _log_gamma(stream, alpha, (num_classes, num_clients)).astype(np.float64)
    return logs - np.logaddexp.reduce(logs, 1, keepdims=True)


def _members(labels: np.ndarray) -> list[np.ndarray]:
    """Returns the increasing rows of each label, as int64, which NumPy shuffles fastest."""
    ends = np.cumsum(np.bincount(labels))
    return [rows.copy() for rows in np.split(np.argsort(labels, kind="stable"), ends[:-1])]


def deal(members: list[np.ndarray], cuts: Iterable[np.ndarray]) -> list[np.ndarray]:
    """Cuts each label's rows at cuts [C, K-1] and concatenates the pieces of each client."""
    pieces = [np.split(rows, cut) for rows, cut in zip(members, cuts, strict=True)]
    return [np.concatenate(of_client) for of_client in zip(*pieces, strict=True)]


def _bulk(
    stream: np.random.Generator,
    counts: np.ndarray,
    num_clients: int,
    alpha: float,
    min_samples: int,
    size: int,
) -> np.ndarray | None:
    """Draws `size` candidates, and drops each once one of its clients is too small.

    Clients are drawn `_WIDTH` at a time, together with the total share of all later ones: given its first entries, the
    others of a Dirichlet vector are a scaled Dirichlet vector. Most candidates fail early and need no further draws.

    Returns:
        The cuts of the first successful candidate, int64 [C, K-1]; None without one.
    """
    reached = np.zeros((size, len(counts), 1), np.float32)
    # of every step: cuts, and places in the step before
    steps = []
    last = np.zeros((size, len(counts)), np.int64)
    for first in range(0, num_clients, _WIDTH):
        width = min(_WIDTH, num_clients - first)
        later = num_clients - first - width
        shares = _shares(stream, (len(last), len(counts)), alpha, width, later) * (1 - reached)
        cumulative = np.minimum(reached + np.cumsum(shares, -1), 1)
        ends = (cumulative * counts[:, None]).astype(np.int64)
        if not later:
            ends[..., -1] = counts
        sizes = np.diff(ends.sum(1), prepend=last.sum(1, keepdims=True))
        kept = np.flatnonzero((sizes >= min_samples).all(-1))
        reached, ends = cumulative[kept, :, -1:], ends[kept]
        if not len(kept):
            return None
        last = ends[..., -1]
        steps.append((ends, kept))
    place, pieces = 0, []
    for ends, kept in reversed(steps):
        pieces.append(ends[place])
        place = kept[place]
    return np.concatenate(pieces[::-1], -1)[:, :-1]


def _shares(
    stream: np.random.Generator, shape: tuple[int, int], alpha: float, width: int, later: int
) -> np.ndarray:
    """Returns the first `width` entries, [*shape, width], of Dirichlet(alpha) vectors of `width + later` entries."""
    logs = _log_gamma(stream, alpha, (*shape, width))
    if later:
        logs = np.concatenate([logs, _log_gamma(stream, alpha * later, (*shape, 1))], -1)
    shares = np.exp(logs - logs.max(-1, keepdims=True))
    return shares[..., :width] / shares.sum(-1, keepdims=True)


def _log_gamma(stream: np.random.Generator, shape: float, size: tuple[int, ...]) -> np.ndarray:
    """Returns logs of Gamma(shape) variates, as log(Gamma(shape + 1) U^(1/shape)), which cannot underflow."""
    boosted = np.maximum(
        stream.standard_gamma(shape + 1, size, np.float32), np.finfo(np.float32).tiny
    )
    # The limit avoids overflow; at 1e-30 all rows of a label already belong to one client.
    return np.log(boosted) - stream.standard_exponential(size, np.float32) / np.float32(
        max(shape, 1e-30)
    )


def _exhausted(num_clients: int, alpha: float, min_samples: int, draws: int) -> UsageError:
    return UsageError(
        f"none of {draws:,} draws of Dirichlet alpha {alpha} gave each of {num_clients} clients {min_samples} samples:"
        " use fewer clients, a larger alpha, a smaller --min-samples, or --min-samples-rule top_up"
    )
