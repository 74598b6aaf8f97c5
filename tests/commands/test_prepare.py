"""`python -m fedvg_jax.prepare`: counts, pictures and errors."""

import warnings

import numpy as np
import pytest

from fedvg_jax import prepare
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions import draw
from fedvg_jax.data.partitions.client_rows import Partition

RNG = np.random.default_rng(3)


def made(num_classes=4, shape=(6, 6, 3), per_class=30, name="made"):
    y = np.repeat(np.arange(num_classes), per_class).astype(np.int32)
    x = RNG.integers(0, 256, (len(y), *shape), np.uint8)
    return Arrays(name, x, y, tuple(f"class {c}" for c in range(num_classes)), len(y) // 2)


@pytest.fixture
def file(tmp_path):
    arrays = made()
    np.savez(
        tmp_path / "made.npz",
        x_train=arrays.x[:90],
        y_train=arrays.y[:90],
        x_test=arrays.x[90:],
        y_test=arrays.y[90:],
    )
    return tmp_path / "made.npz"


def call(file, *flags):
    alpha = [] if "iid" in flags else ["--alpha", "1"]
    return prepare.main(["npz", "--data-dir", str(file), "--clients", "3", *alpha, *flags])


def test_prepare_prints_counts_and_draws_pictures(file, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="pictures need the plot extra")
    assert call(file, "--out", str(tmp_path / "out")) == 0
    output = capsys.readouterr().out
    for part in (
        "made: 120 images 6 x 6 x 3, 4 classes",
        "3 clients, partition dirichlet, alpha 1",
        "to validate",
    ):
        assert part in output
    rows = [line.replace("│", " ").split() for line in output.splitlines() if line.startswith("│")]
    assert rows[:5] == [
        *([str(c), "30", "0", "30", "25.0%"] for c in range(3)),
        ["3", "0", "30", "30", "25.0%"],
        ["all", "90", "30", "120", "100.0%"],
    ]
    assert (tmp_path / "out" / "clients.png").read_bytes().startswith(b"\x89PNG")


# --- pictures


def test_picture_has_the_images_of_every_client_and_class():
    """Two clients share the first class; the second one has all of the other."""
    pytest.importorskip("matplotlib", reason="pictures need the plot extra")
    from fedvg_jax.study.figures import clients

    arrays = made(num_classes=2, per_class=500)
    mine = [np.arange(0, 400), np.concatenate([np.arange(400, 500), np.arange(500, 1000)])]
    parts = Partition(mine, [np.array([], int)] * 2, [np.array([], int)] * 2)
    figure = clients.one_partition(
        prepare.counts_of_clients(arrays, parts), arrays.class_names, "t"
    )
    (image,) = figure.axes[0].images
    assert image.get_array().filled(0).tolist() == [[400, 100], [0, 500]]


@pytest.mark.parametrize(
    "names", [("$x^{$", "a$b", "\\$", "猫"), ("line\nbreak", "\x00", "c", "d")]
)
def test_pictures_show_any_class_names_without_a_warning(tmp_path, capfd, names):
    """Neither mathematics, nor remarks on glyphs that a font lacks; nor in a title."""
    pytest.importorskip("matplotlib", reason="pictures need the plot extra")
    arrays, title = made()._replace(class_names=names, name="".join(names)), "".join(names)
    parts = draw.draw_partition(arrays.y, num_clients=3, alpha=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare.draw(tmp_path, arrays, parts, title)
    assert capfd.readouterr() == ("", "")
