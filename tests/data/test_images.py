"""A user's own images: folders of image files."""

import io

import numpy as np
import pytest
from support.files import assert_rows, load_twice, pixels, png, rewrite, write, write_folder

from fedvg_jax import data
from fedvg_jax.data import images

Image = pytest.importorskip("PIL.Image", reason="images need Pillow")


# --- folders of images


def test_folder_of_classes_is_read_in_sorted_order(tmp_path):
    x, y = write_folder(tmp_path / "set", {"ant": 3, "bee": 2})
    write(tmp_path / "set" / "bee" / ".DS_Store", b"written by a file manager")
    write(tmp_path / "set" / "notes.txt", b"not in a folder of a class")
    reports = []
    got = data.load(
        "folder", tmp_path / "set", tmp_path / "cache", progress=lambda *args: reports.append(args)
    )
    assert_rows(got, x, y)
    assert (got.name, got.class_names, got.num_train, reports) == (
        "set",
        ("ant", "bee"),
        5,
        [(5, 5)],
    )
    again = data.load(
        "folder", tmp_path / "set", tmp_path / "cache", progress=lambda *args: reports.append(args)
    )
    assert len(reports) == 1 and isinstance(again.x, np.memmap)


def test_an_image_that_is_rewritten_in_place_is_decoded_again(tmp_path):
    for name in "ab":
        write(tmp_path / "set" / name / "x.ppm", ppm(b"one"))
    load_twice("folder", tmp_path / "set")
    rewrite(tmp_path / "set" / "a" / "x.ppm", ppm(b"two"))
    assert load_twice("folder", tmp_path / "set").x[0].tobytes() == b"two"


def ppm(pixel: bytes) -> bytes:
    return b"P6 1 1 255\n" + pixel


def test_official_splits_in_a_folder_are_pooled_or_named(tmp_path):
    root, parts = (
        tmp_path / "set",
        {"val": {"bee": 1}, "test": {"ant": 1, "bee": 1}, "Train": {"ant": 2, "bee": 1}},
    )
    x = {name: write_folder(root / name, counts)[0] for name, counts in parts.items()}
    got = load_twice("folder", root)
    assert_rows(
        got, np.concatenate([x["Train"], x["val"], x["test"]]), np.array([0, 0, 1, 1, 0, 1])
    )
    assert (got.class_names, got.num_train) == (("ant", "bee"), 3)
    assert_rows(
        data.load("folder", root, splits="Train,test"),
        np.concatenate([x["Train"], x["test"]]),
        [0, 0, 1, 0, 1],
    )


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_their_exif_orientation_says(orientation):
    """Orientation 6 is a quarter turn, whose first row is the stored first column from below; 8 are its composites."""
    upright, file = pixels(6, 9, 3), io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(upright).save(file, "PNG", exif=exif)
    mirrored = upright[:, ::-1]
    turned = {1: upright, 2: mirrored, 3: np.rot90(upright, 2), 4: np.rot90(mirrored, 2)}
    turned |= {
        5: np.rot90(mirrored, 1),
        6: np.rot90(upright, -1),
        7: np.rot90(mirrored, -1),
        8: np.rot90(upright, 1),
    }
    np.testing.assert_array_equal(images.decode(file.getvalue(), "x.png"), turned[orientation])


def test_images_of_many_formats_are_resized_to_uint8_of_one_size(tmp_path):
    modes = {
        "grey.png": "L",
        "colour.jpg": "RGB",
        "palette.gif": "P",
        "alpha.png": "RGBA",
        "bits.bmp": "1",
    }
    for name, mode in modes.items():
        file = tmp_path / "set" / "a" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, (10, 7), 1).save(file)
    write(tmp_path / "set" / "b" / "x.png", png(np.full((9, 20, 3), 77, np.uint8)))
    got = data.load("folder", tmp_path / "set", size=(4, 5))
    assert got.x.shape == (6, 4, 5, 3) and (got.x[-1] == 77).all()
