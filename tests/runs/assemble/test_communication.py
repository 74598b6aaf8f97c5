"""Bytes of a round against numbers counted by hand, and where they are recorded."""

import pytest

import fedvg_jax as fv

PARAMS = 64 * 10 + 10  # logistic regression on 8 x 8 digits
THETA = 4 * PARAMS
TENSORS = 2


@pytest.mark.parametrize(
    ("algorithm", "down", "up"),
    [
        ("fedavgm", THETA, THETA),  # clients do not read the momentum
        ("scaffold", 2 * THETA, 2 * THETA),  # c, and c_k+ - c_k
        ("feddyn", THETA, 2 * THETA),  # lambda_k stays with the client; its change is sent
        ("elastic", THETA, THETA + 4 * TENSORS),  # one sensitivity a tensor
    ],
)
def test_bytes_of_a_client_equal_those_counted_by_hand(algorithm, down, up):
    sim = fv.simulation(fv.Config(algorithm=algorithm, clients=4, model="linear"))
    assert sim.traffic == (down, up, 0, 0, 0)


@pytest.mark.parametrize(
    ("algorithm", "down", "up"),
    [("scaffold", 5120, 5120), ("feddyn", 2560, 5120), ("fednova", 2560, 5124)],
)
def test_nothing_of_a_local_tensor_is_sent(algorithm, down, up):
    sim = fv.simulation(fv.Config(algorithm=algorithm, clients=4, model="linear", local="/bias$"))
    assert sim.traffic == (down, up, 0, 0, 0)


def test_dropped_clients_receive_and_do_not_send():
    config = fv.Config(
        clients=8, join_ratio=1.0, rounds=6, dropout=0.4, weighting="samples", model="linear"
    )
    found = fv.run(config)
    assert any("dropped" in record for record in found.records)
    for record in found.records:
        assert record["bytes_down"] == 8 * THETA
        assert record["bytes_up"] == (8 - len(record.get("dropped", ()))) * THETA
    assert found.summary["bytes_down"] == 6 * 8 * THETA
    assert found.summary["bytes_up"] == sum(record["bytes_up"] for record in found.records)
