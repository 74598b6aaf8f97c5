"""A model of the seconds of a federated round on many devices, used by `benchmarks.scale`. It does not import jax.

Client sizes are drawn from Dirichlet partitions; the engine's own code places clients on devices and lanes. Everything
else is calculated from the figures of one device, the bandwidths of `LINKS` and `ASSUMPTIONS`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedvg_jax.data.partitions import client_rows
from fedvg_jax.data.partitions.draw import draw_partition
from fedvg_jax.engine import lane_plan

OPTIMISTIC, PESSIMISTIC = range(2)
"""Indices of the ends of an estimate's range."""


class Link(NamedTuple):
    """A connection between devices, or between a host and its devices."""

    name: str
    bandwidth: float
    """Bytes per second of one device in one direction, from the data sheet."""
    hop: tuple[float, float]
    """Latency that one more device or host adds to a small collective, seconds: (optimistic, pessimistic)."""
    source: str


_NCCL = "hops: NCCL's own model, src/graph/tuning.cc (ring, LL and Simple)"
LINKS = {
    "nvlink": Link("NVLink 4", 450e9, (0.47e-6, 3.4e-6), f"NVIDIA H100 data sheet, 900 GB/s both ways; {_NCCL}"),
    "infiniband": Link(
        "InfiniBand NDR", 50e9, (2.7e-6, 9.6e-6), f"NVIDIA DGX H100 data sheet, 400 Gb/s a GPU; {_NCCL}"
    ),
    "ethernet": Link(
        "Ethernet 100G", 12.5e9 / 8, (10e-6, 50e-6), "IEEE 802.3, 100 Gb/s a host, shared by 8 GPUs; hops: a guess"
    ),
    "pcie": Link("PCIe 5.0 x16", 63e9, (1e-6, 5.7e-6), f"PCI-SIG, 32 GT/s a lane; {_NCCL}"),
}
DEVICES_PER_HOST = 8


class Assumptions(NamedTuple):
    """Quantities known from neither programs nor data sheets, for one end of the estimate."""

    launch: float
    """Seconds of the shortest kernel."""
    turn: float
    """Seconds by which the host delays each iteration of a loop whose trip count is data."""
    link_share: float
    """Fraction of a link's bandwidth."""
    collective: float
    """Seconds of the smallest collective between two devices; NCCL's baseLat."""
    memory_share: float = 0.5
    """Fraction of a device's memory available for the results of clients."""


ASSUMPTIONS = (
    Assumptions(launch=2.5e-6, turn=0.0, link_share=0.9, collective=3.6e-6),
    Assumptions(launch=5e-6, turn=10e-6, link_share=0.6, collective=8.4e-6),
)


class Kernels(NamedTuple):
    """A part of a round on one device, with all lanes busy."""

    seconds: tuple[float, float]
    kernels: int
    """Kernel launches; the number does not depend on the lanes."""


class Figures(NamedTuple):
    """The seconds of a round's parts on one device."""

    name: str
    source: str
    """Origin of the seconds: "estimated" from a compiled program, or "measured"."""
    device: str
    lanes: int
    """Clients side by side."""
    step: Kernels
    segment: Kernels
    """A lane's change from one client to the next."""
    scoring_pass: Kernels
    rest: Kernels
    """The round except training, scoring and collectives."""
    rows_per_pass: int
    """Validation rows of one scoring pass."""
    parameters: int
    """Values of one model, running statistics included, as a device stores a client."""
    memory_bytes: float
    """Memory of one device."""
    row_bytes: int
    """Size of one image."""


class Planning(NamedTuple):
    """CPU seconds of planning a round on one host, measured by `scale.measure_planning`."""

    client: float
    """Per client of the cohort."""
    row: float
    """Per row of a minibatch."""
    byte: float
    """Per byte of the plan's tables."""


class Federation(NamedTuple):
    """The clients of a federation, and its cohorts."""

    cohort: int
    num_clients: int
    rows: tuple[np.ndarray, ...]
    """For each simulated round, int64 [K], the training rows of the cohort."""
    epochs: int
    batch_size: int
    validation: int
    """Rows of D_val."""


PHASES = {
    "training": "local steps and scoring, if their devices were equally busy",
    "stragglers": "devices wait for the longest lane, or for the last clients to be scored",
    "lane changes": "kernels load and store clients; all devices wait for each",
    "collectives": "exchange of clients, all-reduce of the mean or of gradients, and the latency of small collectives",
    "rest": "the weighted mean and the server step",
    "planning": "the host draws the next round and its plan, while the devices work",
    "input": "the host copies the next round's plan and rows, while the devices work",
}
"""Name of a phase -> description. The last two count only if they take longer than the devices."""

HOST_PHASES = ("planning", "input")


class Estimate(NamedTuple):
    """An estimated round."""

    devices: int
    used: int
    """Busy devices: at most one per client, or several per client, which score it together."""
    cohort: int
    block: int
    """Clients of a cohort block: the cohort, or as many as fit in memory (`--hold`)."""
    phases: dict[str, tuple[float, float]]
    """Name -> seconds: (optimistic, pessimistic)."""
    seconds: tuple[float, float]
    bottleneck: str
    """The longest phase, by the mean of both ends."""
    efficiency: tuple[float, float]
    """Fraction of all devices' time that is spent on local steps and scoring."""


def federation(
    cohort: int, *, alpha: float, epochs: int, batch_size: int, validation: int, rows: int = 600, rounds: int = 3
) -> Federation:
    """Draws a Dirichlet federation of 10 classes, with ten times the cohort but 100 to 10,000 clients, and cohorts.

    Args:
        cohort: K, clients per round.
        alpha: Dirichlet concentration.
        epochs: E, local epochs.
        batch_size: B.
        validation: rows of D_val.
        rows: mean rows of a client before its split; 600 as in CIFAR-10 over 100 clients.
        rounds: number of cohorts to draw.
    """
    num_clients = min(max(100, 10 * cohort), 10_000)
    labels = np.arange(num_clients * rows) % 10
    parts = draw_partition(labels, num_clients=num_clients, alpha=alpha, seed=0, min_samples=10, rule="top_up")
    sizes = client_rows.sizes(parts.train)
    rng = np.random.default_rng(0)
    cohorts = tuple(sizes[rng.choice(num_clients, cohort, replace=False)] for _ in range(rounds))
    return Federation(cohort, num_clients, cohorts, epochs, batch_size, validation)


def num_steps(rows: np.ndarray, epochs: int, batch_size: int) -> np.ndarray:
    """Returns the local steps of clients; a last minibatch of one row is skipped, as in training."""
    return epochs * ((rows - (rows % batch_size == 1) + batch_size - 1) // batch_size)


def estimate(
    figures: Figures,
    group: Federation,
    devices: int,
    planning: Planning,
    network: str = "infiniband",
    pool: str = "device",
) -> Estimate:
    """Returns the estimate of a round.

    Args:
        figures: of one device.
        group: the federation.
        devices: D, in hosts of `DEVICES_PER_HOST`.
        planning: the measured speed of the host's planning.
        network: link between hosts; NVLink connects the devices of a host.
        pool: "device" stores the images on the devices; "host" copies each round's images to them.
    """
    layout = _layout(figures, group.cohort, devices)
    works = [_work(rows, group, layout) for rows in group.rows]
    work = Work(*(float(np.mean(values)) for values in zip(*works, strict=True)))
    links = LINKS[network], LINKS["nvlink"]
    phases: dict[str, list[float]] = {name: [] for name in PHASES}
    busy = []
    for end in (OPTIMISTIC, PESSIMISTIC):
        for name, seconds in _device_phases(figures, group, work, layout, links, end).items():
            phases[name].append(seconds)
        busy.append(_busy_seconds(figures, group, work, layout, end) / devices)
        tables = (group.cohort + layout.lanes * layout.used) * layout.lanes * PLAN_ENTRY
        drawing = planning.client * group.cohort + planning.row * work.rows
        phases["planning"].append(drawing + planning.byte * tables * layout.used)
        phases["input"].append(_input(figures, work, layout.used, tables, pool, end))
    pairs = {name: (pair[0], pair[1]) for name, pair in phases.items()}
    seconds = _round_seconds(pairs)
    bottleneck = max(pairs, key=lambda name: sum(pairs[name]))
    best, worst = (part / whole for part, whole in zip(busy, seconds, strict=True))
    return Estimate(devices, layout.used, group.cohort, layout.block, pairs, seconds, bottleneck, (best, worst))


PLAN_ENTRY = 10
"""Bytes of a lane in a segment of a plan: two int32 and two bool."""


class Work(NamedTuple):
    """Iterations of a round; means over the simulated rounds."""

    steps: float
    """Local steps of the longest lane, summed over cohort blocks."""
    mean_steps: float
    """Local steps of a lane, if all lanes were equally long."""
    segments: float
    rows: float
    """Rows of the cohort's minibatches."""
    passes: float
    """Clients that each lane of the busiest device scores."""
    mean_passes: float
    """Clients that a lane scores, if all devices were equally busy."""


def _work(rows: np.ndarray, group: Federation, layout: Layout) -> Work:
    """Returns the work of a round.

    Args:
        rows: [K] training rows of the cohort's clients.
        group: the federation.
        layout: the placement of the cohort.
    """
    lanes, block, used = layout.lanes, layout.block, layout.used
    steps = num_steps(rows, group.epochs, group.batch_size)
    blocks = [steps[i : i + block] for i in range(0, len(steps), block)]
    extents = [lane_plan.extent(block_steps, used * lanes, lanes) for block_steps in blocks]
    turns = sum(math.ceil(math.ceil(len(block_steps) / used) / lanes) for block_steps in blocks)
    return Work(
        steps=sum(extent.num_steps for extent in extents),
        mean_steps=steps.sum() / (used * lanes),
        segments=sum(extent.num_segments for extent in extents),
        rows=group.epochs * float(rows.sum()),
        passes=turns,
        mean_passes=group.cohort / (used * lanes),
    )


class Layout(NamedTuple):
    """The placement of a round's clients on devices."""

    used: int
    """Devices that share the cohort: at most one per client."""
    lanes: int
    """Clients side by side on a device."""
    block: int
    """Clients of a cohort block."""


def _layout(figures: Figures, cohort: int, devices: int) -> Layout:
    """Returns the placement of a cohort that the engine chooses with one process per host."""
    used = min(devices, cohort)
    return Layout(used, min(figures.lanes, -(-cohort // used)), _block(figures, cohort, used))


def _block(figures: Figures, cohort: int, used: int) -> int:
    """Returns the clients per cohort block: the cohort, or as many models as fit in a device's memory."""
    share = ASSUMPTIONS[OPTIMISTIC].memory_share
    fitting = int(share * figures.memory_bytes / (4 * figures.parameters))
    return cohort if fitting >= cohort else max(used, fitting - fitting % used)


def _seconds(figures: Figures, part: Kernels, layout: Layout, end: int, turns: float = 0.0) -> float:
    """Returns the seconds of a part on one device.

    Args:
        figures: of one device.
        part: the part.
        layout: gives the number of lanes.
        end: of the range.
        turns: iterations of a loop whose trip count is data.
    """
    assumed = ASSUMPTIONS[end]
    work = part.seconds[end] * layout.lanes / figures.lanes
    return max(assumed.launch * part.kernels, work) + turns * assumed.turn


def _step_seconds(figures: Figures, layout: Layout, end: int) -> float:
    return _seconds(figures, figures.step, layout, end, 1.0)


def _scoring_seconds(figures: Figures, group: Federation, layout: Layout, end: int) -> float:
    """Returns the seconds in which a device scores one client on each of its lanes."""
    passes = -(-group.validation // figures.rows_per_pass)
    return passes * _seconds(figures, figures.scoring_pass, layout, end)


def _busy_seconds(figures: Figures, group: Federation, work: Work, layout: Layout, end: int) -> float:
    """Returns the seconds of local steps and scoring, summed over all devices."""
    steps = layout.used * work.mean_steps * _step_seconds(figures, layout, end)
    return steps + layout.used * work.mean_passes * _scoring_seconds(figures, group, layout, end)


def _device_phases(
    figures: Figures, group: Federation, work: Work, layout: Layout, links: Sequence[Link], end: int
) -> dict[str, float]:
    """Returns the seconds of the phases on the devices."""
    step, scoring = _step_seconds(figures, layout, end), _scoring_seconds(figures, group, layout, end)
    blocks = -(-group.cohort // layout.block)
    training = work.mean_steps * step + work.mean_passes * scoring
    longest = work.steps * step + work.passes * scoring
    return {
        "training": training,
        "stragglers": max(0.0, longest - training),
        "lane changes": work.segments * _seconds(figures, figures.segment, layout, end, 1.0),
        "collectives": blocks * _collectives(figures, group.cohort, layout, links, end),
        "rest": blocks * figures.rest.seconds[end],
    }


SMALL_COLLECTIVES = 12
"""Collectives of a round with negligible sizes, in the program compiled for 16 GPUs."""


def _collectives(figures: Figures, cohort: int, layout: Layout, links: Sequence[Link], end: int) -> float:
    """Returns the seconds in which the devices exchange a block's clients and its weighted mean.

    As in the compiled programs: a reduce-scatter of one model per client of the block, padded to a multiple of the
    devices; an all-reduce of one model; small collectives. If the devices do not divide the block, removing the padding
    moves each device's models to others, and a second model is reduced.
    """
    block, used = min(layout.block, cohort), layout.used
    if used == 1:
        return 0.0
    assumed, model = ASSUMPTIONS[end], 4.0 * figures.parameters
    hosts = -(-used // DEVICES_PER_HOST)
    between, inside = links
    bandwidth = assumed.link_share * (between if hosts > 1 else inside).bandwidth
    sent, is_ragged = (used - 1) / used, block % used > 0
    ring = assumed.collective + (used - hosts) * inside.hop[end] + (hosts - 1) * between.hop[end]
    tree = assumed.collective + 2 * (min(used, DEVICES_PER_HOST) - 1) * inside.hop[end]
    tree += 2 * math.log2(hosts) * between.hop[end]
    padded = -(-block // used) * used
    num_bytes = sent * (padded + 2 * (1 + is_ragged)) * model + is_ragged * padded / used * model
    return ring + num_bytes / bandwidth + (1 + SMALL_COLLECTIVES) * tree


def _input(figures: Figures, work: Work, used: int, tables: float, pool: str, end: int) -> float:
    """Returns the seconds in which a host copies a round's row indices, plan and, with pool "host", images.

    Every device receives the indices of all rows, but only its own plan and images, over its own link.
    """
    copied = 4 * work.rows + tables
    if pool == "host":
        copied += figures.row_bytes * work.rows / used
    return copied / (ASSUMPTIONS[end].link_share * LINKS["pcie"].bandwidth)


def _round_seconds(phases: dict[str, tuple[float, float]]) -> tuple[float, float]:
    """Returns the seconds of the devices or of the host, whichever is longer."""
    ends = []
    for end in (OPTIMISTIC, PESSIMISTIC):
        host = sum(phases[name][end] for name in HOST_PHASES)
        ends.append(max(host, sum(pair[end] for name, pair in phases.items() if name not in HOST_PHASES)))
    return ends[0], ends[1]


def describe(figures: Figures, network: str, pool: str) -> list[str]:
    """Returns the assumptions of an estimate as sentences."""
    low, high = ASSUMPTIONS
    used = ("nvlink", network, "pcie")
    return [
        f"seconds of a step, a scoring pass and the rest are {figures.source}; fewer lanes take fewer bytes and"
        " operations, but as many launches",
        f"a kernel takes at least {low.launch * 1e6:g} to {high.launch * 1e6:g} us; an iteration of a loop over data"
        f" waits {low.turn * 1e6:g} to {high.turn * 1e6:g} us for the host",
        *(
            f"{LINKS[name].name}: {LINKS[name].bandwidth / 1e9:g} GB/s a device, at {high.link_share:.0%} to"
            f" {low.link_share:.0%}; {LINKS[name].source}"
            for name in used
        ),
        f"{DEVICES_PER_HOST} devices a host; a collective between hosts has the network's bandwidth",
        f"a reduce-scatter of one model a client, an all-reduce of one model, {SMALL_COLLECTIVES} small collectives, as"
        " in the programs compiled for 16 GPUs",
        "with two or more devices for each client, an all-reduce of one model a client and of one gradient",
        f"results of clients take at most {low.memory_share:.0%} of a device's memory; larger cohorts train in blocks",
        "all devices take the steps of the longest lane and stop for every change of a client",
        f"pixels are {'on the devices' if pool == 'device' else 'copied from the host every round'}",
        "the host plans and copies the next round while the devices work",
    ]
