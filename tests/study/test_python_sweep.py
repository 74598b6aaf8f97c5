"""Objects from Python in sweeps: compared between calls, checked before the first run, with axes of their own."""

import contextlib
import dataclasses
import functools
import json
import re
import threading

import jax.numpy as jnp
import numpy as np
import pytest
from support import linear
from support.files import one_line
from support.small_sweeps import timeless

import fedvg_jax as fv
from fedvg_jax.core.types import Hyperparameter
from fedvg_jax.data import user_data
from fedvg_jax.host import files
from fedvg_jax.resolve.custom import Custom, identities
from fedvg_jax.study import named, sweep_folder, sweep_trials
from fedvg_jax.study.collect import collect
from fedvg_jax.study.sweep_trials import Trial
from fedvg_jax.study.trial_runs import Recipe
from fedvg_jax.views import tracking

CONFIG = fv.Config(clients=4, rounds=1, model="linear")


def tempered(task):
    """Weights n_k^T, normalised."""
    rule = fv.weightings.by_scalar(
        lambda hyper, client, data: client.num_samples.astype(float) ** hyper["T"]
    )
    return rule._replace(hyperparameters=(Hyperparameter("T", 1.0, 0.0, 4.0),))


def arrays(factor=1):
    rng = np.random.default_rng(0)
    return rng.integers(0, 255, (200, 8, 8, 1), dtype=np.uint8), factor * (np.arange(200) % 2)


def test_declared_hyperparameters_are_axes_whose_trials_equal_runs_alone(tmp_path):
    results = fv.run_sweep(
        CONFIG, {"seed": [0], "hyper.T": [0.5, 2.0]}, tmp_path / "s", weighting=tempered
    )
    assert [(r.name, r.values) for r in results] == [
        ("seed=0,hyper.T=0.5", {"seed": 0, "hyper.T": 0.5}),
        ("seed=0,hyper.T=2", {"seed": 0, "hyper.T": 2.0}),
    ]
    for result in results:
        alone = fv.run(CONFIG, weighting=tempered, hyper={"T": result.values["hyper.T"]})
        assert result.result.records[0]["weights"] == alone.records[0]["weights"]
    assert results[0].result.records[0]["weights"] != results[1].result.records[0]["weights"]


def test_a_hyperparameter_of_an_axis_wins_over_the_given_one():
    given = Custom(hyper={"T": 1.0, "eps": 0.5})
    trial = Trial("", {"seed": 0, "hyper.T": 2.0}, CONFIG)
    assert Recipe(given).custom_of(trial).hyper == {"T": 2.0, "eps": 0.5}


def test_axis_of_one_value_is_extended_by_more_and_refused_without_it(tmp_path):
    fv.run_sweep(CONFIG, {"seed": [0], "hyper.T": [0.0]}, tmp_path / "s", weighting=tempered)
    for axes in ({"hyper.T": [4.0]}, {}):
        with pytest.raises(fv.UsageError, match=r"holds another sweep: it has seed=0,hyper\.T=0"):
            fv.run_sweep(CONFIG, {"seed": [0], **axes}, tmp_path / "s", weighting=tempered)
    more = fv.run_sweep(
        CONFIG, {"seed": [0, 1], "hyper.T": [4.0, 0.0]}, tmp_path / "s", weighting=tempered
    )
    assert len(more) == 4 and all(result.result.summary["resumed_from"] is None for result in more)


def power(exponent):
    """A weighting proportional to the sample counts to a power, which it reads from here."""
    return lambda task: fv.weightings.by_scalar(
        lambda hyper, client, data: client.num_samples.astype(float) ** exponent
    )


def rooted(task, exponent=0.5):
    """Weights proportional to a power of the sample counts."""
    return power(exponent)(task)


ONE_SEED = {"seed": [0]}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (power(0.5), power(2.0)),
        (functools.partial(rooted, exponent=0.5), functools.partial(rooted, exponent=2.0)),
        (lambda task: fv.weightings.uniform(), lambda task: fv.weightings.samples()),
        (fv.weightings.given(np.full(4, 0.25)), fv.weightings.given(np.arange(4) / 6)),
    ],
    ids=["value of an enclosing function", "argument of a partial", "body of a lambda", "array"],
)
def test_results_of_a_changed_object_are_refused_computed_again_or_kept(tmp_path, first, second):
    def run(weighting, axes=ONE_SEED, **arguments):
        return fv.run_sweep(
            CONFIG, {"weighting": {"mine": weighting}, **axes}, tmp_path / "s", **arguments
        )

    before, alone = run(first), fv.run_sweep(CONFIG, {"weighting": {"mine": second}, **ONE_SEED})
    assert timeless(run(first)[0].result.records) == timeless(before[0].result.records)
    for axes in (ONE_SEED, {"seed": [0, 1]}):
        with pytest.raises(
            fv.UsageError, match=r"^weighting mine has changed[^\n]*changed=[^\n]*$"
        ):
            run(second, axes)
    kept = run(second, changed="keep")
    assert timeless(kept[0].result.records) == timeless(before[0].result.records)
    assert run(second)[0].result.summary == kept[0].result.summary == run(first)[0].result.summary
    run(second, {"seed": [0, 1]})
    assert len(collect([tmp_path / "s"]).frame) == 2  # the caller has said that they are the same
    fv.run_sweep(CONFIG, {"weighting": {"mine": first}, **ONE_SEED}, tmp_path / "t")
    new = fv.run_sweep(
        CONFIG, {"weighting": {"mine": second}, **ONE_SEED}, tmp_path / "t", changed="recompute"
    )
    assert timeless(new[0].result.records) == timeless(alone[0].result.records)
    with pytest.raises(fv.UsageError, match="weighting mine has changed"):
        fv.run_sweep(CONFIG, {"weighting": {"mine": first}, **ONE_SEED}, tmp_path / "t")


def test_keep_keeps_finished_trials_and_computes_others_with_the_object_of_the_call(tmp_path):
    def run(weighting, **arguments):
        axes = {"weighting": {"mine": weighting}, "seed": [0, 1]}
        return [r.result for r in fv.run_sweep(CONFIG, axes, **arguments)]

    first, alone = run(power(0.5), out=tmp_path), run(power(2.0))
    # as a kill after the last checkpoint leaves a trial
    (first[1].folder / "summary.json").unlink()
    kept = run(power(2.0), out=tmp_path, changed="keep")
    assert [timeless(r.records) for r in kept] == [
        timeless(first[0].records),
        timeless(alone[1].records),
    ]
    assert timeless(first[1].records) != timeless(alone[1].records)


def test_recompute_clears_no_trial_that_another_process_computes(tmp_path):
    def run(weighting, **arguments):
        return fv.run_sweep(
            CONFIG, {"weighting": {"mine": weighting}, **ONE_SEED}, tmp_path, **arguments
        )

    (first,) = run(power(0.5))
    with contextlib.ExitStack() as other:
        other.enter_context(files.claimed(first.result.folder / sweep_folder.CLAIM))
        ending = threading.Timer(5, other.close)  # a call that waits for the other process goes on
        ending.start()
        with one_line(re.escape(str(first.result.folder))):
            run(power(2.0), changed="recompute")
        ending.cancel()
    assert fv.History.load(first.result.folder).records == first.result.records


def test_objects_beside_those_of_an_axis_extend_a_sweep(tmp_path):
    for names in (["a"], ["a", "b"], ["b", "fedvg", "a"]):
        objects = {"a": power(0.5), "b": power(2.0), "fedvg": "fedvg"}
        axes = {"weighting": {name: objects[name] for name in names}, **ONE_SEED}
        results = fv.run_sweep(CONFIG, axes, tmp_path / "s")
        assert len(results) == len(names) and all(
            result.result.summary["resumed_from"] is None for result in results
        )


def test_metrics_of_finished_trials_are_those_of_the_call(tmp_path):
    def run(changed=None, **metrics):
        return fv.run_sweep(CONFIG, ONE_SEED, tmp_path / "s", metrics=metrics, changed=changed)[
            0
        ].result.records[-1]

    def one(model, data):
        return 1.0

    run()
    for metrics in ({"one": one}, {"one": lambda model, data: 2.0}):
        with pytest.raises(fv.UsageError, match=r"^metric one [^\n]*changed=[^\n]*$"):
            run(**metrics)
        assert run(changed="recompute", **metrics)["one"] == metrics["one"](None, None)
    with pytest.raises(fv.UsageError, match="metric one is not given"):
        run()


def test_results_before_the_first_trial_are_none_of_a_changed_object(tmp_path):
    """An object that failed in every trial may be repaired under its name."""

    def broken(task):
        raise ValueError("not yet")

    axes = {"weighting": {"mine": broken}, **ONE_SEED}
    with pytest.raises(ValueError, match="not yet"):
        fv.run_sweep(CONFIG, axes, tmp_path / "s")
    assert fv.run_sweep(CONFIG, {**axes, "weighting": {"mine": power(1.0)}}, tmp_path / "s")[
        0
    ].result.records


def test_resumed_run_names_what_cannot_be_compared(tmp_path):
    lock = threading.Lock()
    metrics = {"m": lambda model, data: float(lock.locked())}
    fv.run(dataclasses.replace(CONFIG, out=tmp_path / "run"), metrics=metrics)
    with pytest.raises(fv.UsageError, match=r"^[^\n]*other metric m [^\n]* holds a lock[^\n]*$"):
        fv.run(dataclasses.replace(CONFIG, resume=str(tmp_path / "run"), rounds=2), metrics=metrics)


@pytest.mark.parametrize("argument", ["weighting", "metrics"])
def test_resumed_run_has_the_functions_that_it_began_with(tmp_path, argument):
    metrics = [{"m": lambda model, data, value=value: value} for value in (1.0, 2.0)]
    first, other = {"weighting": [power(0.5), power(2.0)], "metrics": metrics}[argument]
    config = dataclasses.replace(CONFIG, out=tmp_path / "run")
    fv.run(config, **{argument: first})
    longer = dataclasses.replace(config, out=None, resume=str(tmp_path / "run"), rounds=2)
    with pytest.raises(fv.UsageError, match=r"ran with other (weighting|metric m) [^\n]*$"):
        fv.run(longer, **{argument: other})
    more = {argument: first, "metrics": {**metrics[0], "new": lambda model, data: 1.0}}
    with pytest.raises(fv.UsageError, match=r"^[^\n]* metric (m|new)[^\n]*$"):
        fv.run(longer, **more)
    assert len(fv.run(longer, **{argument: first}).records) == 2


def test_values_on_axes_of_hyperparameters_are_those_of_a_list_of_python_numbers():
    for values in (
        [np.float32(0.5), np.float64(2)],
        np.array([0.5, 2]),
        jnp.array([0.5, 2]),
        [0.5, 2, 2.0],
    ):
        (axis,) = sweep_trials.parse_axes({"hyper.T": values})
        assert json.dumps(axis.as_json()) in ('{"hyper.T": [0.5, 2.0]}', '{"hyper.T": [0.5, 2]}')


def test_other_objects_have_another_identity():
    rows = [np.arange(50), np.arange(50, 100)]
    base = Custom(data=arrays(), partition=rows, weighting=tempered, hyper={"T": 1.0})
    others = Custom(
        data=arrays(2), partition=rows[::-1], weighting=fv.weightings.uniform(), hyper={"T": 2.0}
    )
    assert identities(base, {}) == identities(base._replace(hyper={"T": np.float32(1)}), {})
    known = user_data.as_arrays(arrays())
    assert identities(Custom(data=known), {}) == identities(Custom(data=arrays()), {})
    for changed in (
        known._replace(class_names=tuple(reversed(known.class_names))),
        known._replace(groups=np.zeros(len(known.y), np.int32)),
    ):
        assert identities(Custom(data=changed), {}) != identities(Custom(data=known), {})
    for name in ("data", "partition", "weighting", "hyper"):
        replaced = identities(base._replace(**{name: getattr(others, name)}), {})
        assert {n for n, identity in replaced.items() if identity != identities(base, {})[n]} == {
            name
        }


TRACKED = fv.Config(
    clients=4, alpha=10.0, rounds=1, local_epochs=1, weighting="samples", keep=0, devices="1"
)


def sweep(axes, config=TRACKED, **arguments):
    return fv.run_sweep(config, axes, **linear.GIVEN, **arguments)


def test_failed_trackers_are_logged_with_the_names_of_their_trials(monkeypatch, caplog):
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setitem(tracking.WRITERS, "wandb", lambda run: {}["no answer"])
    results = sweep({"seed": "0:2"}, dataclasses.replace(TRACKED, track="wandb"))
    lines = [record.getMessage() for record in caplog.records]
    assert [result.name for result in results] == ["seed=0", "seed=1"]
    assert [line.partition(": ")[0] for line in lines] == ["seed=0", "seed=1"]
    assert all("tracker wandb failed, and the run continues without it" in line for line in lines)


def test_data_sets_that_the_settings_name_are_no_object_of_a_run(tmp_path):
    """Their manifests name no given data; with two of them the report would refuse the runs as one study."""
    pytest.importorskip("scipy", reason="reports need the report extra")
    config = dataclasses.replace(TRACKED, model="linear")
    fv.run_sweep(config, {"dataset": ["digits", "breast_cancer"]}, tmp_path / "s")
    manifests = [json.loads(path.read_text()) for path in (tmp_path / "s").rglob("manifest.json")]
    assert len(manifests) == 2 and not any("data" in manifest["custom"] for manifest in manifests)
    assert len(collect([tmp_path / "s"]).conditions) == 2


def root(task):
    """Weights proportional to the roots of the sample counts."""
    return fv.weightings.by_scalar(
        lambda hyper, client, data: client.num_samples.astype(float) ** 0.5
    )


def square(task):
    """Weights proportional to the squares of the sample counts."""
    return fv.weightings.by_scalar(
        lambda hyper, client, data: client.num_samples.astype(float) ** 2
    )


def test_own_weightings_by_name_are_an_axis_whose_trials_equal_runs_alone_and_methods_of_one_report(
    tmp_path,
):
    """Settings that only a named weighting uses multiply its trials alone. Names stand as they are written."""
    pytest.importorskip("scipy", reason="reports need the report extra")
    axes = {
        "weighting": {"Root": root, "by square": square, "x": "FedVG"},
        "fedvg.norm": ["l1", "l2"],
        "seed": [0],
    }
    config = dataclasses.replace(CONFIG, eval_every=1)
    results = {r.name: r.result for r in fv.run_sweep(config, axes, tmp_path / "s")}
    assert list(results) == [
        f"weighting={name},seed=0"
        for name in ("Root", "by%20square", "x,fedvg.norm=l1", "x,fedvg.norm=l2")
    ]
    for name, weighting in {"Root": root, "by%20square": square}.items():
        alone = fv.run(dataclasses.replace(config, out=tmp_path / name), weighting=weighting)
        assert (
            results[f"weighting={name},seed=0"].records[0]["weights"] == alone.records[0]["weights"]
        )
    assert collect([tmp_path / "s"]).methods == (
        "Root",
        "by square",
        "x, fedvg.norm l1",
        "x, fedvg.norm l2",
    )
    assert {"Root", "by square", "x, fedvg.norm l1"} < {
        *collect([tmp_path / "s" / "trials"]).methods
    }
    assert set(collect([tmp_path / name for name in ("Root", "by%20square")]).methods) == {
        "root",
        "square",
    }
    (tmp_path / "s" / "trials" / "weighting=Root,seed=0" / "config.json").unlink()
    assert collect([tmp_path / "s"], partial=True).group("Root", ()).lines("missing")
    changed = {**axes["weighting"], "Root": square}
    with pytest.raises(
        fv.UsageError, match=r"weighting Root has changed since .*weighting=Root,seed=0 "
    ):
        fv.run_sweep(
            dataclasses.replace(CONFIG, eval_every=1),
            {**axes, "weighting": changed},
            tmp_path / "s",
        )


def test_functions_of_a_list_have_their_own_names_on_the_axis():
    axes, bundles = named.name_values({"weighting": [root, "fedvg", square], "seed": "0:2"})
    assert axes == {"weighting": ["root", "fedvg", "square"], "seed": "0:2"}
    objects = {name: dict(bundle.objects) for name, bundle in bundles["weighting"].items()}
    assert objects == {"root": {"weighting": root}, "fedvg": {}, "square": {"weighting": square}}
    assert named.name_values({"weighting": root})[0] == {"weighting": ["root"]}
