"""A user's own images: folders of image files."""

import io

import numpy as np
import pytest
from support.files import (
    assert_rows,
    load_twice,
    pixels,
    png,
    rewrite,
    usage_error,
    write,
    write_folder,
)

from fedvg_jax import data
from fedvg_jax.data import images

Image = pytest.importorskip("PIL.Image", reason="images need Pillow")


def test_folder_of_classes_is_read_in_sorted_order(tmp_path):
    x, y = write_folder(tmp_path / "set", {"ant": 3, "bee": 2})
    write(tmp_path / "set" / "bee" / ".DS_Store", b"written by a file manager")
    write(tmp_path / "set" / "notes.txt", b"not in a folder of a class")
    got = load_twice("folder", tmp_path / "set")
    assert_rows(got, x, y)
    assert (got.name, got.class_names, got.num_train) == ("set", ("ant", "bee"), 5)
    assert isinstance(got.x, np.memmap)


def test_an_image_that_is_rewritten_in_place_is_decoded_again(tmp_path):
    files = [write(tmp_path / "set" / name / "x.ppm", b"P6 1 1 255\none") for name in "ab"]
    load_twice("folder", tmp_path / "set")
    rewrite(files[0], b"P6 1 1 255\ntwo")
    assert load_twice("folder", tmp_path / "set").x[0].tobytes() == b"two"


def test_official_splits_in_a_folder_are_pooled(tmp_path):
    root, parts = (
        tmp_path / "set",
        {"val": {"bee": 1}, "test": {"ant": 1, "bee": 1}, "Train": {"ant": 2, "bee": 1}},
    )
    x = {name: write_folder(root / name, counts)[0] for name, counts in parts.items()}
    got = load_twice("folder", root)
    assert_rows(got, np.concatenate([x["Train"], x["val"], x["test"]]), [0, 0, 1, 1, 0, 1])
    assert (got.class_names, got.num_train) == (("ant", "bee"), 3)


@pytest.mark.parametrize("pattern", ["[^_]+", "(p.)_", "p[12]"])
def test_beginnings_of_file_names_are_the_groups_of_a_folder(tmp_path, pattern):
    for name in ("ant/p2_1.png", "ant/p1_1.png", "bee/p2_2.png"):
        write(tmp_path / "in" / name, png(pixels(4, 4, 3)))
    for _ in range(2):  # from the files, and from the cache
        got = data.load("folder", tmp_path / "in", tmp_path / "cache", group_pattern=pattern)
        assert got.groups.tolist() == [0, 1, 1]  # p1 and p2 of ant, p2 of bee
    with usage_error("p1_1.png", "--group-pattern"):
        data.load("folder", tmp_path / "in", group_pattern="p2")


@pytest.mark.parametrize("orientation", [2, 6, 7])
def test_images_are_turned_as_their_exif_orientation_says(orientation):
    """Orientation 6 is a quarter turn, whose first row is the stored first column from below."""
    upright, file = pixels(6, 9, 3), io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(upright).save(file, "PNG", exif=exif)
    mirrored = upright[:, ::-1]
    turned = {2: mirrored, 6: np.rot90(upright, -1), 7: np.rot90(mirrored, -1)}
    np.testing.assert_array_equal(images.decode(file.getvalue(), "x.png"), turned[orientation])


def test_images_of_many_formats_are_resized_to_uint8_of_one_size(tmp_path):
    modes = {"a.png": "L", "b.jpg": "RGB", "c.gif": "P", "d.png": "RGBA", "e.bmp": "1"}
    write(tmp_path / "set" / "b" / "x.png", png(np.full((9, 20, 3), 77, np.uint8)))
    (tmp_path / "set" / "a").mkdir()
    for name, mode in modes.items():
        Image.new(mode, (10, 7), 1).save(tmp_path / "set" / "a" / name)
    got = data.load("folder", tmp_path / "set", size=(4, 5))
    assert got.x.shape == (6, 4, 5, 3) and (got.x[-1] == 77).all()
