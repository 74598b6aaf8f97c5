"""The plan by which lanes train the clients of a cohort: an exact packing of their local steps, drawn up on the host.

NumPy only. The shapes of a plan depend on K and L, never on the clients' sizes.
"""

from __future__ import annotations

import heapq

import numpy as np

from fedvg_jax.core.types import Plan


def plan_chunks(
    num_steps: np.ndarray, num_lanes: int, lanes_together: int, client_chunk_size: int | None
) -> Plan:
    """Returns the plan of a cohort, or the stacked plans of its client chunks, leaves [chunks, ...].

    The last client chunk is padded with dummy clients without steps.

    Args:
        num_steps: [K] local steps of each client.
        num_lanes: L.
        lanes_together: lanes of one device.
        client_chunk_size: H, clients of a client chunk; None for the whole cohort.
    """
    if client_chunk_size is None or client_chunk_size >= len(num_steps):
        return plan_lanes(num_steps, num_lanes, lanes_together)
    padded = np.pad(num_steps, (0, -len(num_steps) % client_chunk_size)).reshape(
        -1, client_chunk_size
    )
    plans = (plan_lanes(steps, num_lanes, lanes_together) for steps in padded)
    return Plan(*(np.stack(leaf) for leaf in zip(*plans, strict=True)))


def plan_lanes(num_steps: np.ndarray, num_lanes: int, lanes_together: int = 1) -> Plan:
    """Returns which client each lane trains at which time, cut into segments wherever some lane changes client.

    Clients are sorted from longest to shortest; each goes to the device with the least work (LPT). The lanes of one
    device then finish at

        T = max(steps of the longest client, ceil(steps of all clients / lanes))

    which is optimal: the clients are laid end to end and cut at every multiple of T, one lane per piece (R. McNaughton,
    Scheduling with Deadlines and Loss Functions, Management Science 6, 1959). A client that is cut begins on the later
    lane. A client without steps is on no lane. An idle lane repeats client 0's work, which is never stored.

    Args:
        num_steps: [K] local steps of each client.
        num_lanes: L.
        lanes_together: lanes of one device, a divisor of L.

    >>> plan = plan_lanes(np.array([2, 2, 2]), 2, lanes_together=2)
    >>> int(plan.length.sum()), plan.client[: plan.num_segments].tolist()
    (3, [[0, 1], [0, 2], [1, 2]])
    """
    by_device = enumerate(_clients_by_device(num_steps, num_lanes // lanes_together))
    pieces = [_pieces(num_steps, np.array(k, int), lanes_together, d) for d, k in by_device]
    return _plan_of_pieces(np.concatenate(pieces, axis=1), len(num_steps), num_lanes)


def client_chunk_size(plan: Plan) -> int:
    """Returns the number of clients of a plan, or of each of its client chunks."""
    return plan.length.shape[-1] - plan.client.shape[-1]


def _clients_by_device(num_steps: np.ndarray, num_devices: int) -> list[list[int]]:
    """Returns the clients of every device: from longest to shortest, each to the device with the least work."""
    clients: list[list[int]] = [[] for _ in range(num_devices)]
    loads = [(0, device) for device in range(num_devices)]
    for k in np.argsort(-num_steps, kind="stable"):
        load, device = loads[0]
        clients[device].append(int(k))
        heapq.heapreplace(loads, (load + int(num_steps[k]), device))
    return clients


def _pieces(num_steps: np.ndarray, clients: np.ndarray, num_lanes: int, device: int) -> np.ndarray:
    """Returns the pieces of a device's clients, laid end to end over its lanes.

    A piece is consecutive local steps of one client on one lane.

    Returns:
        int [5, pieces]: the lane, the client's position in the cohort, the time on the lane at which the piece begins,
        the client's first local step in it, and the number of its steps.
    """
    counts = num_steps[clients]
    end = max(counts.max(initial=1), -(-counts.sum() // num_lanes))
    lane, begin = np.divmod(np.cumsum(counts) - counts, end)
    lane += num_lanes * device
    on_lane = np.minimum(counts, end - begin)
    on_next, zeros = counts - on_lane, np.zeros_like(counts)
    whole_or_end = lane, clients, begin, on_next, on_lane
    cut_off = lane + 1, clients, zeros, zeros, on_next
    pieces = np.concatenate([whole_or_end, cut_off], axis=1)
    return pieces[:, pieces[4] > 0]


def _plan_of_pieces(pieces: np.ndarray, num_clients: int, num_lanes: int) -> Plan:
    """Returns the plan in which every piece is split into the segments that it spans."""
    lane, k, begin, first, count = pieces
    cuts = np.unique([0, *(begin + count)])
    # every lane except each device's last may cut one client
    num_segments, max_segments = len(cuts) - 1, num_clients + num_lanes
    length, shape = np.zeros(max_segments, np.int32), (max_segments, num_lanes)
    length[:num_segments] = np.diff(cuts)
    client, step = np.zeros((2, *shape), np.int32)
    reset, finish = np.zeros((2, *shape), bool)
    first_segment, end_segment = np.searchsorted(cuts, [begin, begin + count])
    # once for each of its segments
    piece = np.repeat(np.arange(len(k)), end_segment - first_segment)
    segment = np.concatenate([[], *map(np.arange, first_segment, end_segment)]).astype(np.int64)
    client[segment, lane[piece]] = k[piece]
    step[segment, lane[piece]] = (first - begin)[piece] + cuts[segment]
    reset[first_segment, lane] = finish[end_segment - 1, lane] = True
    return Plan(np.int32(num_segments), length, client, step, reset, finish)
