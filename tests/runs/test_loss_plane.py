"""The loss plane of a run: its points are the models of the round that follows the newest checkpoint."""

import dataclasses

import jax
import numpy as np
import pytest

import fedvg_jax as fv
from fedvg_jax import plots
from fedvg_jax.config.robustness import Robust, Tuning
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs import loss_plane
from fedvg_jax.views import loss_plane as picture

RECORD = "client_drift,client_val_loss"
CONFIG = fv.Config(clients=3, join_ratio=0.67, local_epochs=1, rounds=1, eval_every=1, record=RECORD, devices=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of one round."""
    out = tmp_path_factory.mktemp("plane") / "run"
    fv.run(dataclasses.replace(CONFIG, out=out))
    return out


@pytest.fixture(scope="module")
def plane(folder):
    return loss_plane.of_run(folder, num_points=3)


@pytest.fixture(scope="module")
def following(folder, tmp_path_factory):
    """The record of the same run's second round, under uniform weights from the second round on."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return fv.run(dataclasses.replace(CONFIG, rounds=2, out=out)).records[1]


@pytest.mark.slow
def test_plane_of_two_updates_holds_them(plane, following):
    """The lengths of the updates are the clients' drifts, and their squares lie in the plane."""
    assert plane.number == 2 and plane.clients == following["clients"]
    assert plane.explained == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(np.linalg.norm(plane.points, axis=1), following["client_drift"], rtol=1e-4)


@pytest.mark.slow
def test_clients_models_are_theirs_whatever_the_server_does(tmp_path):
    """The server's momentum, its steps on D_val and the median move the rules' models, not the clients'."""
    settings = {"tuning": Tuning(steps=2), "robust": Robust("median"), "weighting": "uniform"}
    config = dataclasses.replace(CONFIG, algorithm="fedavgm", out=tmp_path / "run", **settings)
    fv.run(config)
    sim, state, number = loss_plane.restored(config.out)
    models = loss_plane.models_of_round(sim, state, number)
    updates = jax.tree.map(lambda leaf, before: leaf[:2] - before[None], models.params, state.variables.params)
    lengths = np.sqrt(sum(np.square(leaf).reshape(2, -1).sum(1) for leaf in jax.tree.leaves(updates)))
    resumed = fv.run(dataclasses.replace(config, rounds=2, resume=str(config.out)))
    np.testing.assert_allclose(lengths, resumed.records[1]["client_drift"], rtol=1e-4)


@pytest.mark.slow
def test_rules_lie_between_the_clients_where_their_weights_say(plane, following):
    sizes = np.array(following["num_samples"])
    expected = {"FedAvg": sizes / sizes.sum(), "uniform": [0.5, 0.5], "FedVG": following["weights"]}
    for name, weights in expected.items():
        np.testing.assert_allclose(plane.rules[name], weights @ plane.points, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_loss_at_a_client_s_coordinates_is_its_model_s(folder, plane, following):
    sim, state, number = loss_plane.restored(folder)
    models = loss_plane.models_of_round(sim, state, number)
    updates = jax.tree.map(lambda leaf, before: leaf[:2] - before[None], models.params, state.variables.params)
    losses = loss_plane.losses_at(sim, state.variables, updates, np.eye(2), sim.data.val)
    np.testing.assert_allclose(losses, following["client_val_loss"], rtol=1e-4)


def test_random_directions_have_the_norms_of_the_model_s_filters():
    params = {"kernel": np.arange(6, dtype=np.float32).reshape(3, 2), "bias": np.ones(2, np.float32)}
    span = loss_plane.random_directions(params, 0)
    lengths = np.linalg.norm(params["kernel"], axis=0)
    np.testing.assert_allclose(np.linalg.norm(span["kernel"], axis=1), [lengths, lengths], rtol=1e-6)
    assert not np.any(span["bias"])


def test_equal_updates_span_no_plane():
    with pytest.raises(UsageError, match="two clients with different updates"):
        loss_plane.principal_directions({"w": np.ones((2, 3), np.float32)})


@pytest.mark.parametrize("directions", loss_plane.DIRECTIONS)
def test_picture_and_table_are_written(tmp_path, directions):
    pytest.importorskip("matplotlib", reason="pictures need the plot extra")
    points, rules = np.array([[0.0, 1], [1, 0]]), {name: np.full(2, 0.5) for name in loss_plane.RULES}
    losses = {part: np.arange(1.0, 10).reshape(3, 3) for part in ("val", "test")}
    plane = loss_plane.LossPlane(1, directions, np.array([[-1.0, 0, 1]] * 2), losses, [4, 7], points, rules, 1.0)
    png, pdf, table = picture.write(tmp_path, plane, "title")
    assert png.read_bytes().startswith(b"\x89PNG") and pdf.read_bytes().startswith(b"%PDF")
    lines = table.read_text().splitlines()
    assert lines[0] == "point,first,second,val_loss,test_loss" and len(lines) == 1 + 9 + 2 + 3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--loss-plane"], "name the folder of a run"),
        (["run", "--loss-plane=x"], "--loss-plane must be updates or random; got x"),
        (["run", "--loss-plain"], "unknown argument --loss-plain"),
        (["/no/such", "--loss-plane", "random"], "/no/such is not a run folder"),
    ],
)
def test_mistake_is_one_line(capsys, args, message):
    assert plots.main(args) == 2
    errors = capsys.readouterr().err
    assert message in errors and errors.count("\n") == 1


@pytest.mark.slow
def test_run_without_a_checkpoint_or_with_other_data_is_refused(folder, tmp_path):
    fv.run(dataclasses.replace(CONFIG, keep=0, out=tmp_path / "none"))
    with pytest.raises(UsageError, match="no intact checkpoint"):
        loss_plane.of_run(tmp_path / "none")
    x = np.arange(240 * 16).reshape(240, 4, 4, 1).astype(np.float32)
    fv.run(dataclasses.replace(CONFIG, out=tmp_path / "own"), data=(x, np.arange(240) % 3))
    with pytest.raises(UsageError, match="other data"):
        loss_plane.of_run(tmp_path / "own")
