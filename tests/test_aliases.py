"""Names of earlier versions lead to their successors and say so once."""

import importlib
import subprocess
import sys
import warnings

import pytest
from cases import naming

from fedvg_jax import _aliases

PROMISED = """
differentiable.stack differentiable.most_steps weighting.samples weighting.uniform weighting.fedvg weighting.mix
weighting.by_scalar weighting.shares weighting.everywhere weighting.with_own_statistics terms.Term terms.alone
terms.halves terms.split family.generalised family.sharpened controls.permuted controls.inverse_samples
controls.val_loss controls.val_accuracy controls.fltrust controls.fitted signals.normed signals.validation_gradient
signals.delta signals.fisher signals.validation_loss signals.validation_accuracy executors.lanes executors.vmapped
executors.sharded executors.looped types.Variables types.Task types.Batch types.Data types.Plan types.Schedule
types.Anchor types.Cohort types.Probe types.Algorithm types.Report types.Returns types.Weighting types.Client
types.Executor types.SimState types.Metrics history.History loop.run round.make_round schedule.make
"""


def test_a_documented_name_of_an_earlier_version_is_found():
    for name in PROMISED.split():
        with naming(name):
            module, _, attribute = name.partition(".")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                assert getattr(importlib.import_module(f"fedvg_jax.{module}"), attribute) is not None


def test_an_alias_warns_once_and_names_the_new_place():
    code = "import fedvg_jax.terms\nfrom fedvg_jax.terms import alone\nimport fedvg_jax.terms"
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.count("DeprecationWarning: fedvg_jax.terms has moved to fedvg_jax.weightings.streaming") == 1


def test_an_unknown_name_of_an_alias_says_where_to_look():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = importlib.import_module("fedvg_jax.terms")
    with pytest.raises(AttributeError, match=r"no 'xyzzy'; look in fedvg_jax\.weightings\.streaming"):
        _ = module.xyzzy


def test_every_alias_leads_to_modules_that_exist():
    for places in _aliases.MODULES.values():
        for place in places:
            importlib.import_module(f"fedvg_jax.{place}")
