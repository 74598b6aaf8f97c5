"""A user's own images: folders of image files, and .npz files of encoded images."""

import io
import shutil

import numpy as np
import pytest
from support.files import assert_rows, load_twice, pixels, png, usage_error, write, write_folder

from fedvg_jax import data
from fedvg_jax.data import images

Image = pytest.importorskip("PIL.Image", reason="images need Pillow")
ImageOps = pytest.importorskip("PIL.ImageOps")


# --- folders of images


def test_folder_of_classes_is_read_in_sorted_order(tmp_path):
    x, y = write_folder(tmp_path / "set", {"ant": 3, "bee": 2})
    for name in (".DS_Store", "Thumbs.db"):
        write(tmp_path / "set" / "bee" / name, b"written by a file manager")
    write(tmp_path / "set" / "notes.txt", b"not in a folder of a class")
    reports = []
    got = data.load("folder", tmp_path / "set", tmp_path / "cache", progress=lambda *args: reports.append(args))
    assert_rows(got, x, y)
    assert (got.name, got.class_names, got.num_train, reports) == ("set", ("ant", "bee"), 5, [(5, 5)])
    again = data.load("folder", tmp_path / "set", tmp_path / "cache", progress=lambda *args: reports.append(args))
    assert len(reports) == 1 and isinstance(again.x, np.memmap)


def test_official_splits_in_a_folder_are_pooled_or_named_and_loose_images_refused(tmp_path):
    root, parts = tmp_path / "set", {"val": {"bee": 1}, "test": {"ant": 1, "bee": 1}, "Train": {"ant": 2, "bee": 1}}
    x = {name: write_folder(root / name, counts)[0] for name, counts in parts.items()}
    write(root / "@eaDir" / "x.png", b"a thumbnail of a file server")
    write(root / "Train" / "bee" / "Desktop.ini", b"")
    got = load_twice("folder", root)
    assert_rows(got, np.concatenate([x["Train"], x["val"], x["test"]]), np.array([0, 0, 1, 1, 0, 1]))
    assert (got.class_names, got.num_train) == (("ant", "bee"), 3)
    assert_rows(
        data.load("folder", root, splits="Train,test"), np.concatenate([x["Train"], x["test"]]), [0, 0, 1, 0, 1]
    )
    with usage_error("has no split 'nosuch'", "Train, val, test"):
        data.load("folder", root, splits="nosuch")
    write(root / "unlabelled.jfif", png(pixels(6, 6, 3)))
    shutil.rmtree(root / "test")
    write(root / "test" / "1.jfif", png(pixels(6, 6, 3)))
    with usage_error("test: holds 0 sub-folders and 1 images outside, such as 1.jfif", "leave it out by --splits"):
        data.load("folder", root)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_their_exif_orientation_says_and_counted(caplog, orientation):
    upright, file = Image.fromarray(pixels(6, 9, 3)), io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright.save(file, "PNG", exif=exif)
    got = images.stack(2, lambda i: (file.getvalue(), f"{i}.png"))
    with Image.open(io.BytesIO(file.getvalue())) as stored:
        expected = np.asarray(ImageOps.exif_transpose(stored))
    np.testing.assert_array_equal(got, [expected, expected])
    assert ("0.png and 1 more images are turned" in caplog.text) == (orientation > 1)


def test_changed_folder_is_decoded_again(tmp_path):
    write_folder(tmp_path / "set", {"a": 1, "b": 1})
    before = load_twice("folder", tmp_path / "set")
    write(tmp_path / "set" / "b" / "9.png", png(pixels(6, 6, 3)))
    assert len(before.y) == 2 and len(load_twice("folder", tmp_path / "set").y) == 3
    (tmp_path / "set" / "a" / "00.png").write_bytes(png(before.x[1]))
    np.testing.assert_array_equal(load_twice("folder", tmp_path / "set").x[0], before.x[1])


def test_images_of_many_formats_are_resized_to_uint8_of_one_size(tmp_path):
    modes = {"grey.png": "L", "colour.jpg": "RGB", "palette.gif": "P", "alpha.png": "RGBA", "bits.bmp": "1"}
    for name, mode in modes.items():
        file = tmp_path / "set" / "a" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, (10, 7), 1).save(file)
    write(tmp_path / "set" / "b" / "x.png", png(np.full((9, 20, 3), 77, np.uint8)))
    with usage_error("x.png", "9 x 20", "7 x 10", "--image-size HxW"):
        data.load("folder", tmp_path / "set")
    got = data.load("folder", tmp_path / "set", size=(4, 5))
    assert got.x.shape == (6, 4, 5, 3) and (got.x[-1] == 77).all()


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("notes.txt", b"text", ["notes.txt", "not an image"]),
        ("short.png", png(np.zeros((64, 64, 3), np.uint8))[:-20], ["short.png", "not a complete image"]),
        ("script.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", ["script.png", "not a complete image"]),
    ],
)
def test_file_that_is_not_an_image_is_named(tmp_path, name, content, parts):
    write_folder(tmp_path / "set", {"a": 2, "b": 1})
    write(tmp_path / "set" / "b" / name, content)
    with usage_error(*parts):
        data.load("folder", tmp_path / "set", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_oversized_image_is_refused_before_decoding(monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS", 99)
    with usage_error("bomb.png", "10 x 10", "at most 99"):
        images.decode(png(pixels(10, 10, 3)), "bomb.png")  # a decompression bomb


def test_sixteen_bit_images_are_refused():
    file = io.BytesIO()
    Image.fromarray(np.full((2, 2), 40_000, np.uint16)).save(file, "PNG")
    with usage_error("deep.png", "8 bits"):
        images.decode(file.getvalue(), "deep.png")


def test_folder_with_an_empty_class_or_a_single_class_is_refused(tmp_path):
    write_folder(tmp_path / "set", {"a": 1})
    with usage_error(str(tmp_path / "set"), "1 sub-folders"):
        data.load("folder", tmp_path / "set")
    (tmp_path / "set" / "b").mkdir()
    with usage_error(str(tmp_path / "set" / "b"), "holds no image"):
        data.load("folder", tmp_path / "set")


def test_error_without_pillow_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with usage_error("fedvg_jax[images]"):
        images.decode(b"", "x.png")


# --- encoded images in one file


def encoded(key="jpeg", **changed):
    """Returns images and the arrays of their encoded file; `changed` replaces some."""
    x, members = [], {}
    for split, count in (("train", 3), ("test", 2)):
        new = [pixels(5, 6, 3) for _ in range(count)]
        files = [png(image) for image in new]
        x += new
        members |= {
            f"{split}_{key}": np.frombuffer(b"".join(files), np.uint8),
            f"{split}_offsets": np.cumsum([0, *map(len, files)]),
            f"{split}_labels": np.arange(count).astype(np.uint8),
        }
    return np.array(x), members | changed


@pytest.mark.parametrize("key", ["jpeg", "png", "encoded"])
def test_encoded_images_are_decoded_in_the_order_of_the_splits(tmp_path, key):
    x, members = encoded(key=key, class_names=np.array(["a", "b", "c"]), wnids=np.array(["n1"]))
    np.savez(tmp_path / "set.npz", **members)
    got = load_twice("encoded", tmp_path / "set.npz")
    np.testing.assert_array_equal(got.x, x)
    assert got.y.tolist() == [0, 1, 2, 0, 1] and (got.name, got.num_train) == ("set", 3)
    assert got.class_names == ("a", "b", "c")
    assert data.load("encoded", tmp_path, size=(3, 3)).x.shape == (5, 3, 3, 3)
    none = {f"train_{key}": np.zeros(0, np.uint8), "train_offsets": np.zeros(1, int), "train_labels": np.zeros(0, int)}
    np.savez(tmp_path / "set.npz", **members | none)
    got = data.load("encoded", tmp_path)
    assert (len(got.y), got.num_train) == (2, 0), "no row of another split is one of training"


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"train_offsets": np.array([0, 5])}, ["1 images in train_offsets but 3 labels"]),
        ({"train_offsets": np.array([0, 9, 5, 20])}, ["train_offsets must increase"]),
        ({"train_offsets": np.array([0, 2**63 - 1, 9, 20])}, ["train_offsets must increase"]),
        ({"train_offsets": np.array([0, 9, 15, 20])}, ["train image 0", "not a complete image"]),
        ({"test_labels": np.zeros((2, 2), int)}, ["test_labels integers"]),
        ({"train_jpeg": np.zeros((2, 2), np.uint8)}, ["train_jpeg must be uint8 [n]"]),
    ],
)
def test_inconsistent_encoded_images_are_refused(tmp_path, changed, parts):
    _, members = encoded(**changed)
    np.savez(tmp_path / "bad.npz", **members)
    with usage_error("bad.npz", *parts):
        data.load("encoded", tmp_path)


def test_a_file_of_another_layout_is_refused_with_what_it_holds(tmp_path):
    np.savez(tmp_path / "set.npz", **encoded()[1])
    with usage_error("set.npz", "got train_jpeg, train_offsets", "--dataset encoded"):
        data.load("npz", tmp_path)
    np.savez(tmp_path / "set.npz", x=np.zeros((2, 3)), **{f"array {i}": np.zeros(2) for i in range(20)})
    with usage_error("set.npz", "must hold train_jpeg", "got x, array 0,", "array 6 and 13 more"):
        data.load("encoded", tmp_path)
    np.savez(tmp_path / "set.npz")
    with usage_error("set.npz", "got no array"):
        data.load("npz", tmp_path)
