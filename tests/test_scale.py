"""Laws of the estimates of many devices, and of their comparison with this machine. No test reads a clock."""

import dataclasses
import json

import numpy as np
import pytest

from benchmarks import scale, scale_cpu, scale_model
from fedvg_jax.config import Config

PART = scale_model.Kernels((1e-3, 2e-3), 10)
FIGURES = scale_model.Figures(
    "a model", "estimated", "a device", 4, PART, PART, PART, PART, 512, parameters=1000, memory_bytes=1e9, row_bytes=64
)
FREE = scale_model.Planning(0.0, 0.0, 0.0)
GROUP = scale_model.Federation(32, 320, (np.arange(32) * 32 + 320,), epochs=5, batch_size=32, validation=512)


def estimate(devices, figures=FIGURES, group=GROUP, planning=FREE, **options):
    return scale_model.estimate(figures, group, devices, planning, **options)


def test_a_round_takes_as_long_as_its_devices_or_its_host():
    for devices in (1, 8, 64):
        point = estimate(devices)
        on_devices = [name for name in scale_model.PHASES if name not in scale_model.HOST_PHASES]
        for end in (0, 1):
            assert point.seconds[end] == pytest.approx(sum(point.phases[name][end] for name in on_devices))
    slow = estimate(8, planning=scale_model.Planning(1.0, 0.0, 0.0))
    assert slow.bottleneck == "planning" and min(slow.seconds) >= 32.0


def test_one_device_exchanges_nothing_and_wide_networks_cost_more_than_one_host():
    assert estimate(1).phases["collectives"] == (0.0, 0.0)
    inside, across = (estimate(devices).phases["collectives"] for devices in (8, 16))
    slow = estimate(16, network="ethernet").phases["collectives"]
    assert all(a < b < c for a, b, c in zip(inside, across, slow, strict=True))


def test_no_more_devices_are_used_than_clients():
    all_used, more = estimate(32), estimate(1024)
    assert (all_used.used, more.used) == (32, 32) and more.seconds == all_used.seconds


def test_equal_clients_on_dividing_devices_have_no_stragglers():
    equal = GROUP._replace(rows=(np.full(32, 320),))
    assert estimate(8, group=equal).phases["stragglers"][0] == pytest.approx(0.0, abs=1e-12)
    assert estimate(8).phases["stragglers"][0] > 0


def test_a_cohort_that_exceeds_memory_trains_in_blocks():
    small = FIGURES._replace(memory_bytes=4 * 1000 * 16 * 2.0)
    assert estimate(8, small).block == 16 and estimate(8).block == 32
    assert estimate(8, small).phases["rest"][0] == 2 * estimate(8).phases["rest"][0]


def test_pixels_of_a_pool_on_the_host_are_copied():
    assert estimate(8, pool="host").phases["input"][0] > estimate(8).phases["input"][0]


def test_local_steps_are_those_of_the_schedule():
    assert scale_model.num_steps(np.array([0, 1, 2, 32, 33, 34]), 5, 32).tolist() == [0, 0, 5, 5, 5, 10]


def test_the_arithmetic_on_this_machine_starts_from_one_device(monkeypatch):
    monkeypatch.setattr(scale_cpu, "steps_of_clients", lambda: np.array([4, 2, 2]))
    seconds = {(1, 1): 3.0, (1, 2): 2.0, (2, 2): 2.5, (1, 4): 2.0}
    points = scale_cpu.compare(seconds, 2.0, [[0, 1, 2]], cores=2)
    assert [p["estimated"] for p in points] == pytest.approx([3.0, 1 + 2 / 3, 1 + 2 / 3, 2 * (1 + 1 / 3)])
    assert [p["measured"] for p in points] == list(seconds.values())


def test_figures_of_a_stored_plan_have_its_model():
    plan = json.loads(scale.PLANS.read_text(encoding="utf-8"))["plans"]["digits on an H100"]["plan"]
    figures = scale.figures_of("digits", plan, dataclasses.replace(Config(), model="mlp"))
    assert figures.parameters == 64 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10
    assert figures.rows_per_pass == 1024 and figures.step.kernels == plan["parts"]["step"]["kernels"]
