"""Rounds compute eigenvectors on one thread of LAPACK, and leave its threads as they were."""

import jax
import threadpoolctl
from support import linear

import fedvg_jax as fv

CONFIG = fv.Config(rounds=1, clients=4, join_ratio=0.5, local_epochs=1, alpha=10.0, min_samples=2)


def threads() -> set[int]:
    return {
        pool["num_threads"]
        for pool in threadpoolctl.threadpool_info()
        if pool["user_api"] == "blas"
    }


def test_lapack_has_one_thread_while_rounds_are_computed():
    seen = []

    def watching(task):
        def scalar(hyper, client, data):
            jax.debug.callback(lambda: seen.append(threads()))
            return client.num_samples.astype(float)

        return fv.weightings.by_scalar(scalar)

    with threadpoolctl.threadpool_limits(2, "blas"):
        results = fv.run_sweep(CONFIG, {"seed": [0, 1]}, **linear.GIVEN, weighting=watching)
        jax.effects_barrier()
        assert [isinstance(each.result, fv.History) for each in results] == [True, True]
        assert threads() == {2}
    assert {1} in seen  # trials before the first round have two
