"""Runs that compute eigenvectors do so on one thread of LAPACK, and leave its threads as they were."""

import dataclasses

import jax
import pytest
import threadpoolctl
import worlds

import fedvg_jax as fv
from fedvg_jax.config import FedVG

CONFIG = fv.Config(
    rounds=1, clients=4, join_ratio=0.5, local_epochs=1, alpha=10.0, min_samples=2, model="mlp", weighting="fedvg"
)


def threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}


@pytest.mark.parametrize("vectorize", ["off", 2])
@pytest.mark.parametrize(("norm", "is_limited"), [("spectral", True), ("spectral_l2", True), ("l1", False)])
def test_lapack_has_one_thread_while_rounds_compute_eigenvectors(norm, is_limited, vectorize):
    seen = []

    def watching(task):
        def scalar(hyper, report, data):
            jax.debug.callback(lambda: seen.append(threads()))
            return report.num_samples.astype(float)

        return fv.weightings.by_scalar(scalar)

    config = dataclasses.replace(CONFIG, fedvg=FedVG(norm=norm))
    with threadpoolctl.threadpool_limits(2, "blas"):
        points = fv.run_sweep(config, {"seed": [0, 1]}, data=worlds.images(80), weighting=watching, vectorize=vectorize)
        jax.effects_barrier()
        assert [isinstance(point.result, fv.History) for point in points] == [True, True]
        assert threads() == {2}
    assert seen and ({1} in seen) == is_limited  # trials before the first round have two
