"""`python -m fedvg_jax.prepare`: counts of classes and clients."""

import numpy as np

from fedvg_jax import prepare


def test_prepare_prints_counts_of_classes_and_clients(tmp_path, capsys):
    y = np.repeat(np.arange(4), 30)
    x = np.zeros((120, 6, 6, 3), np.uint8)
    np.savez(tmp_path / "made.npz", x_train=x[:90], y_train=y[:90], x_test=x[90:], y_test=y[90:])
    flags = ["--data-dir", str(tmp_path / "made.npz"), "--clients", "3", "--partition", "iid"]
    assert prepare.main(["npz", *flags]) == 0
    output = capsys.readouterr().out
    for part in (
        "made: 120 images [6, 6, 3], 4 of 4 classes",
        "0 30, 1 30, 2 30, 3 30",
        "3 clients with 26 to 26 training images",
        "78 to train, 12 to validate, 30 to test",
    ):
        assert part in output
