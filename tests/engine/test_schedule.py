"""Laws of the schedule: its streams, its table of minibatches, its plan of the lanes."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedvg_jax.engine import lane_plan, schedule as schedules

pytestmark = pytest.mark.quick

SETTINGS = {
    "cohort_size": 4,
    "local_epochs": (3, 3),
    "batch_size": 4,
    "num_lanes": 2,
}
SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=12)
STEPS = st.lists(st.integers(0, 30), min_size=1, max_size=12).map(np.array)


def clients_of(sizes):
    """Rows 0, 1, ... dealt out in order."""
    return np.split(np.arange(sum(sizes), dtype=np.int32), np.cumsum(sizes)[:-1])


def make(number=0, train_rows=None, seed=0, **changes):
    train_rows = clients_of([9, 4, 13, 0, 1, 8, 30]) if train_rows is None else train_rows
    return schedules.make(number, train_rows, **{**SETTINGS, "seed": seed, **changes})


def minibatches_of(schedule, position):
    first = schedule.start[position]
    return schedule.rows[first : first + schedule.num_steps[position]]


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


# --- streams


def test_a_cohort_is_sampled_without_replacement_in_random_order():
    drawn = [schedules.cohort(0, number, 20, 10)[0] for number in range(50)]
    assert all(len(set(c)) == 10 for c in drawn) and any(np.any(np.diff(c) < 0) for c in drawn)
    # 500 seats over 20 clients: 25 each, with a binomial deviation of sqrt(50 / 4) = 3.5
    assert np.abs(np.bincount(np.concatenate(drawn), minlength=20) - 25).max() < 5 * 3.5


def test_a_clients_minibatches_depend_on_seed_round_and_id_alone():
    """Not on its place in the cohort, on who else plays, on lanes, or on which rounds were planned before."""
    train_rows = clients_of([9, 4, 13, 0, 1, 8, 30])
    alone = {}
    for number in (3, 0, 1):
        schedule = make(number, train_rows, cohort_size=7, num_lanes=1)
        alone |= {(number, c): minibatches_of(schedule, k) for k, c in enumerate(schedule.clients)}
    positions = set()
    for number, cohort_size, num_lanes in itertools.product((0, 1, 3), (2, 5, 7), (1, 3, 7)):
        schedule = make(number, train_rows, cohort_size=cohort_size, num_lanes=num_lanes)
        for k, c in enumerate(schedule.clients):
            assert_equal(minibatches_of(schedule, k), alone[number, c])
            positions.add((c, k))
    assert len(positions) > 7  # clients did change their place


def test_clients_drop_out_with_their_probability():
    """Of 2,000 seats; five deviations of sqrt(2000 p q) = 20."""
    participating = [schedules.cohort(0, number, 20, 10, 0.3)[1] for number in range(200)]
    assert abs(np.sum(~np.array(participating)) - 600) <= 5 * 20


def test_dropout_changes_neither_the_cohort_nor_its_minibatches():
    plain, ragged = make(), make(dropout=0.9)
    assert plain.participating.all() and not ragged.participating.all()
    assert_equal(ragged._replace(participating=plain.participating), plain)


def test_every_round_and_seed_has_its_own_permutation_of_the_cohort_and_key():
    drawn = [schedules.cohort(seed, number, 20, 10)[2] for number in range(20) for seed in range(3)]
    keys = [tuple(make(number, seed=seed).key) for number in range(20) for seed in range(3)]
    assert all(sorted(order) == list(range(10)) for order in drawn)
    assert len({tuple(order) for order in drawn}) == len(set(keys)) == 60


def test_a_straggler_s_epochs_depend_on_seed_round_and_client_alone_and_take_every_number():
    drawn = {}
    for seed, number, cohort_size in itertools.product((0, 1), range(12), (3, 5)):
        schedule = make(
            number, clients_of([8] * 5), seed, local_epochs=(2, 4), cohort_size=cohort_size
        )
        for client, steps in zip(schedule.clients, schedule.num_steps, strict=True):
            assert drawn.setdefault((seed, number, int(client)), int(steps)) == steps
    assert set(drawn.values()) == {4, 6, 8}


# --- probes


def probes_of(schedule, position):
    first = schedule.start[position] + schedule.num_steps[position]
    return schedule.rows[first : first + schedule.probe_steps[position]]


@given(SIZES.map(lambda sizes: [*sizes, *[0] * 4]), st.floats(0, 1), st.booleans())
def test_a_probe_reads_a_share_of_a_client_s_rows_and_may_exclude_them_from_training(
    sizes, ratio, apart
):
    schedule = make(train_rows=clients_of(sizes), probe_ratio=ratio, probe_apart=apart)
    for k, client in enumerate(schedule.clients):
        mine = {*clients_of(sizes)[client]}
        probed = int(ratio * sizes[client])
        trained = {*minibatches_of(schedule, k).ravel()} - {-1}
        probe_rows = {*probes_of(schedule, k).ravel()} - {-1}
        assert len(probe_rows) == probed - (probed % 4 == 1)
        assert trained | probe_rows <= mine and not (apart and trained & probe_rows)
        assert schedule.num_samples[k] == len(mine) - apart * probed


def test_single_batches_are_the_first_of_the_epochs():
    whole = make(local_epochs=(2, 2))
    single = make(local_epochs=(2, 2), single_batches=True)
    for k in range(len(whole.clients)):
        assert_equal(minibatches_of(whole, k)[:2], minibatches_of(single, k))


# --- the published cohorts


def test_the_published_cohorts_are_reproduced():
    """The first ten of 100 clients, as the published code sampled them."""
    for seed, first in (
        (0, [49, 97, 53, 5, 33, 65, 62, 51, 38, 61]),
        (42, [81, 14, 3, 94, 35, 31, 28, 17, 13, 86]),
    ):
        cohorts = [*map(schedules.official_cohorts(seed, 100, 10), range(3))]
        assert cohorts[0].tolist() == first and [len(set(c)) for c in cohorts] == [10, 10, 10]


# --- minibatches


@given(st.integers(0, 40), st.integers(1, 4), st.integers(1, 9), st.integers(0, 99))
def test_every_row_is_used_once_per_epoch_except_a_last_single_row(size, epochs, batch_size, seed):
    rows = np.arange(100, 100 + size, dtype=np.int32)
    table = schedules.minibatches(rows, epochs, batch_size, np.random.default_rng(seed))
    skipped = int(size % batch_size == 1)
    per_epoch = -(-(size - skipped) // batch_size)
    assert table.dtype == np.int32 and table.shape == (epochs * per_epoch, batch_size)
    for epoch in np.split(table, epochs):
        used = epoch[epoch >= 0]
        assert len(used) == size - skipped == len(set(used)) and set(used) <= set(rows)
        assert np.array_equal(epoch.reshape(-1)[: len(used)], used)  # padding comes last


# --- the table of a round


@given(SIZES, st.integers(1, 3), st.integers(2, 9), st.data())
def test_no_cohort_of_any_partition_exceeds_the_capacity(sizes, epochs, batch_size, data):
    cohort_size = data.draw(st.integers(1, len(sizes)))
    needed = epochs * sum(sorted(-(-n // batch_size) for n in sizes)[-cohort_size:])
    assert needed <= epochs * (sum(sizes) // batch_size + cohort_size + 1)
    assert needed <= schedules.capacity(sum(sizes), cohort_size, epochs, batch_size)


@given(SIZES.filter(any), st.floats(0, 1), st.integers(0, 5))
def test_a_drawn_table_has_no_padding_and_a_padded_one_as_much_as_is_asked(sizes, ratio, spare):
    drawn = make(train_rows=clients_of(sizes), cohort_size=1, probe_ratio=ratio)
    used = schedules.num_minibatches(drawn)
    padded = schedules.padded(drawn, used + spare)
    assert len(drawn.rows) == used and (padded.rows[used:] == -1).all()
    assert_equal(padded._replace(rows=padded.rows[:used]), drawn)
    assert len(padded.rows) == used + spare
    with pytest.raises(ValueError, match="negative"):
        schedules.padded(drawn, used - 1)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=4))
def test_a_round_of_a_stack_equals_the_round(numbers):
    rounds = [make(number) for number in numbers]
    stacked = schedules.stack(rounds, 6, 256)
    assert stacked.rows.shape[0] == 256
    assert {len(leaf) for leaf in jax.tree.leaves(stacked._replace(rows=None))} == {6}
    for r, schedule in enumerate(rounds):
        unstacked = schedules.round_at(stacked, r)
        assert_equal(unstacked._replace(start=0, rows=0), schedule._replace(start=0, rows=0))
        for k in range(len(schedule.clients)):
            assert_equal(minibatches_of(unstacked, k), minibatches_of(schedule, k))


# --- the plan of the lanes


LANES = st.tuples(st.integers(1, 5), st.integers(1, 4)).map(
    lambda shape: (shape[0] * shape[1], shape[1])
)
"""(lanes, of which so many are on one device)"""


def played(plan):
    """The plan run as a machine would: per lane, (client, step) at every time; None when a lane is idle.

    A lane works on a client from its reset to its finish."""
    num_lanes = plan.client.shape[1]
    lanes = [[] for _ in range(num_lanes)]
    busy = [None] * num_lanes
    for s in range(int(plan.num_segments)):
        for lane in range(num_lanes):
            if plan.reset[s, lane]:
                assert busy[lane] is None
                busy[lane] = int(plan.client[s, lane])
            if busy[lane] is not None:
                assert busy[lane] == plan.client[s, lane]
            work = [(busy[lane], int(plan.step[s, lane]) + i) for i in range(plan.length[s])]
            lanes[lane] += work if busy[lane] is not None else [None] * len(work)
            if plan.finish[s, lane]:
                assert busy[lane] is not None
                busy[lane] = None
    assert busy == [None] * num_lanes
    return lanes


@given(STEPS, LANES)
def test_every_step_of_every_client_runs_once_in_order_on_one_device(num_steps, lanes):
    """One after the other, never two at a time, though they may change lanes."""
    num_lanes, together = lanes
    played_lanes = played(lane_plan.plan_lanes(num_steps, num_lanes, together))
    for k, steps in enumerate(num_steps):
        visits = sorted(
            (now, job[1], lane // together)
            for lane, jobs in enumerate(played_lanes)
            for now, job in enumerate(jobs)
            if job and job[0] == k
        )
        assert [step for _, step, _ in visits] == list(range(steps))
        assert len({now for now, _, _ in visits}) == steps
        assert len({device for _, _, device in visits}) <= 1


@given(STEPS, st.integers(1, 14))
def test_lanes_of_one_device_reach_the_optimal_makespan(num_steps, num_lanes):
    """No client can be on two lanes at once, and no lane does more than one step at a time."""
    longest = num_steps.max()
    share = -(-num_steps.sum() // num_lanes)
    assert lane_plan.plan_lanes(num_steps, num_lanes, num_lanes).length.sum() == max(longest, share)
