"""Readers of the paper's sets and of a user's own images, on tiny files written here in the real formats."""

import io
import pickle
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fedvg_jax import data
from fedvg_jax.data import cifar, folder, images, medmnist, pickles, stl10, tinyimagenet
from fedvg_jax.types import UsageError

Image = pytest.importorskip("PIL.Image", reason="images need Pillow")

RNG = np.random.default_rng(1)


def pixels(*shape):
    return RNG.integers(0, 256, shape, np.uint8)


def says(*parts):
    """A UsageError of one line that contains `parts` in this order."""
    return pytest.raises(UsageError, match=r"\A[^\n]*" + r"[^\n]*".join(map(re.escape, parts)) + r"[^\n]*\Z")


def twice(name, where, **options):
    """The set as decoded, and then as read from its cache; both the same."""
    first, second = (data.load(name, where, Path(where).parent / "cache", **options) for _ in range(2))
    np.testing.assert_array_equal(first.x, second.x)
    np.testing.assert_array_equal(first.y, second.y)
    assert second.x.dtype == np.uint8 and second.y.dtype == np.int32
    assert first[3:] == second[3:] and first.name == second.name
    return second


def png(array) -> bytes:
    """A file of exactly these pixels."""
    file = io.BytesIO()
    Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array).save(file, "PNG")
    return file.getvalue()


def write(file: Path, content: bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


# --- CIFAR, in all its published forms


def two_python_s_pickle(held: dict) -> bytes:
    """As Python 2 with NumPy 1 wrote it: protocol 2, byte strings as keys, the old place of `_reconstruct`."""
    written = pickle.dumps(held, protocol=2)
    return written.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def write_cifar(root: Path, name: str, form: int, rows=2):
    """The files of a form under its folder; returns the (x, y) they hold, in order."""
    kind, num_classes = cifar.SETS[name].forms[form], len(cifar.SETS[name].class_names)
    total = rows * len(kind.files)
    x, y = pixels(total, 32, 32, 3), RNG.integers(0, num_classes, total).astype(np.uint8)
    flat = x.transpose(0, 3, 1, 2).reshape(total, -1)
    coarse = y[:, None] // 5
    for i, file in enumerate(kind.files):
        part = slice(i * rows, (i + 1) * rows)
        if form == 0:
            labels = [y[:, None]] if name == "cifar10" else [coarse, y[:, None]]
            content = np.concatenate([*labels, flat], 1)[part].tobytes()
        else:
            key = b"labels" if name == "cifar10" else b"fine_labels"
            held = {b"batch_label": b"x", key: y[part].tolist(), b"data": flat[part], b"filenames": [b"a.png"] * rows}
            content = two_python_s_pickle(held)
        write(root / kind.folder / file, content)
    return x, y


def pack(root: Path, name: str, form: int) -> Path:
    """The folder as its official archive."""
    kind = cifar.SETS[name].forms[form]
    with tarfile.open(root / kind.archive, "w:gz") as tar:
        tar.add(root / kind.folder, kind.folder)
    return root / kind.archive


every_form = pytest.mark.parametrize(("name", "form"), [(n, f) for n in cifar.SETS for f in (0, 1)])


@every_form
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
def test_every_form_of_cifar_is_read_train_then_test(tmp_path, name, form, packed):
    x, y = write_cifar(tmp_path / "all", name, form)
    where = tmp_path / "all"
    if packed:
        (tmp_path / "archive").mkdir()
        where = pack(where, name, form).rename(tmp_path / "archive" / cifar.SETS[name].forms[form].archive).parent
    got = twice(name, where)
    np.testing.assert_array_equal(got.x, x)
    np.testing.assert_array_equal(got.y, y)
    assert got.num_train == len(x) - 2 and got.class_names == cifar.SETS[name].class_names
    if packed:  # nothing was unpacked, and the archive may be given by name
        assert len(list(where.iterdir())) == 1
        np.testing.assert_array_equal(data.load(name, next(where.iterdir())).x, x)


def test_cifar_100_has_a_hundred_names_in_alphabetical_order():
    assert len(set(cifar.CLASS_NAMES_100)) == 100 and list(cifar.CLASS_NAMES_100) == sorted(cifar.CLASS_NAMES_100)


def test_a_cut_or_altered_archive_is_told(tmp_path):
    write_cifar(tmp_path, "cifar10", 0)
    file = pack(tmp_path, "cifar10", 0)
    good = file.read_bytes()
    middle = len(good) // 2
    flipped = good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]
    for damaged in (good[:9], good[:middle], good[:-10], flipped):
        file.write_bytes(damaged)
        with says(str(file), "cs.toronto.edu"):
            data.load("cifar10", file, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_an_archive_of_something_else_writes_nothing_anywhere(tmp_path):
    (tmp_path / "in").mkdir()
    with tarfile.open(tmp_path / "in" / "cifar-10-binary.tar.gz", "w:gz") as tar:
        for name in ("../../escaped.bin", "/escaped.bin"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO(b""))
    with says("cifar-10-binary.tar.gz", "does not hold", "data_batch_1.bin"):
        data.load("cifar10", tmp_path / "in")
    assert [path.name for path in tmp_path.rglob("*")] == ["in", "cifar-10-binary.tar.gz"]


def test_a_member_that_claims_absurd_size_is_refused(tmp_path, monkeypatch):
    write_cifar(tmp_path, "cifar10", 0)
    monkeypatch.setattr(cifar, "MAX_MEMBER", 1000)
    with says("cifar-10-binary.tar.gz", "data_batch_1.bin claims 6,146 bytes"):
        data.load("cifar10", pack(tmp_path, "cifar10", 0))


class Evil:
    def __reduce__(self):
        return print, ("this must never run",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Evil()),
        pickle.dumps({b"data": Evil()}, 2),
        b"",
        b"no pickle",
        pickle.dumps([1, 2])[:-3],
        b"cos\nsystem\n.",
    ],
    ids=["call", "call within", "empty", "text", "cut", "name alone"],
)
def test_a_pickle_is_arrays_or_an_error_and_never_runs(tmp_path, capsys, content):
    with says("batch"):
        pickles.loads(content, "batch")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("held", "parts"),
    [
        ([1], ["'data'"]),
        ({b"labels": [1]}, ["'data'"]),
        ({b"data": np.zeros((1, 3072), np.float32), b"labels": [1]}, ["uint8 [n, 3072]"]),
        ({b"data": np.zeros((1, 3072), np.uint8)}, ["'labels'"]),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": ["cat"]}, ["'labels'"]),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [1, 2]}, ["1 images but 2 labels"]),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}, ["0..9, got 10"]),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [-1]}, ["0..9, got -1"]),
    ],
)
def test_a_python_file_that_is_none_is_told_by_name(tmp_path, held, parts):
    write_cifar(tmp_path, "cifar10", 1)
    write(tmp_path / "cifar-10-batches-py" / "data_batch_3", two_python_s_pickle(held))
    with says("data_batch_3", *parts):
        data.load("cifar10", tmp_path)


# --- STL-10


def write_stl(root: Path):
    x, y = pixels(5, 96, 96, 3), np.array([0, 9, 4, 1, 2], np.uint8)
    for split, part in {"train": slice(0, 3), "test": slice(3, 5)}.items():
        write(root / f"{split}_X.bin", x[part].transpose(0, 3, 2, 1).tobytes())  # columns before rows
        write(root / f"{split}_y.bin", (y[part] + 1).tobytes())
    return x, y


@pytest.mark.parametrize("where", [".", stl10.FOLDER])
def test_stl_10_is_turned_upright_and_counted_from_nought(tmp_path, where):
    x, y = write_stl(tmp_path / where)
    got = twice("stl10", tmp_path)
    np.testing.assert_array_equal(got.x, x)
    np.testing.assert_array_equal(got.y, y)
    assert got.num_train == 3 and got.class_names[8] == "ship"


@pytest.mark.parametrize(
    ("file", "content", "parts"),
    [
        ("train_X.bin", bytes(100), ["train_X.bin", "100 bytes", "27648"]),
        ("test_y.bin", bytes([1]), ["test_y.bin", "1 labels for 2 images"]),
        ("train_y.bin", bytes([1, 0, 2]), ["train_y.bin", "1..10, got 0"]),
        ("train_y.bin", bytes([1, 11, 2]), ["train_y.bin", "got 11"]),
        ("test_X.bin", None, ["test_X.bin missing", "stanford.edu"]),
    ],
)
def test_a_damaged_stl_file_is_told_by_name(tmp_path, file, content, parts):
    write_stl(tmp_path)
    (tmp_path / file).unlink() if content is None else write(tmp_path / file, content)
    with says(*parts):
        data.load("stl10", tmp_path)


# --- MedMNIST


def write_medmnist(file: Path, side: int, depth: tuple = (), counts=(4, 2, 3)):
    arrays = {}
    for split, count in zip(("train", "val", "test"), counts, strict=True):
        arrays |= {
            f"{split}_images": pixels(count, side, side, *depth),
            f"{split}_labels": RNG.integers(0, 7, (count, 1)),
        }
    np.savez_compressed(file, **arrays)
    return arrays


def test_medmnist_is_pooled_whole_at_the_paper_s_size_and_at_any_other(tmp_path):
    for name, side, depth in (("organamnist", 28, ()), ("dermamnist", 224, (3,))):
        arrays = write_medmnist(tmp_path / medmnist.file_name(name, side), side, depth)
        write_medmnist(tmp_path / medmnist.file_name(name, 64), 64, depth)
        got = twice(name, tmp_path)
        assert got.x.shape == (9, side, side, *(depth or (1,))) and got.num_train == 4
        assert got.y.tolist() == [int(v) for s in ("train", "val", "test") for v in arrays[f"{s}_labels"][:, 0]]
        assert len(got.class_names) == {"organamnist": 11, "dermamnist": 7}[name]
        assert data.load(name, tmp_path, size=(64, 64)).x.shape[1:3] == (64, 64)
        assert data.load(name, tmp_path / medmnist.file_name(name, 64)).x.shape[1:3] == (64, 64)


def test_the_official_pool_has_no_validation_split(tmp_path):
    arrays = write_medmnist(tmp_path / "dermamnist_224.npz", 2, (3,))
    for _ in range(2):  # the two pools have cache entries of their own
        whole, official = (data.load("dermamnist", tmp_path, tmp_path / "c", splits=s) for s in ("all", "official"))
        assert (len(whole.y), len(official.y), official.num_train) == (9, 7, 4)
    np.testing.assert_array_equal(official.x[4:], arrays["test_images"])


def test_what_medmnist_does_not_have_is_told(tmp_path):
    with says(str(tmp_path), "dermamnist_224.npz", "medmnist.com"):
        data.load("dermamnist", tmp_path)
    write_medmnist(tmp_path / "dermamnist.npz", 28, (3,))
    with says("dermamnist_224.npz", "holds dermamnist.npz", "--image-size"):
        data.load("dermamnist", tmp_path)
    with says("28, 64, 128, 224", "(30, 30)"):
        data.load("dermamnist", tmp_path, size=(30, 30))
    (tmp_path / "dermamnist.npz").rename(tmp_path / "dermamnist_64.npz")
    with says("dermamnist_64.npz", "28 x 28", "64 x 64"):
        data.load("dermamnist", tmp_path, size=(64, 64))


# --- folders of images


def write_folder(root: Path, counts: dict, side=6, inner=""):
    """PNG files per class; returns what they hold, in sorted order."""
    x = [pixels(side, side, 3) for _ in range(sum(counts.values()))]
    y = [label for label, count in enumerate(counts.values()) for _ in range(count)]
    files = (root / name / inner / f"{i:02}.png" for name, count in counts.items() for i in range(count))
    for file, image in zip(files, x, strict=True):
        write(file, png(image))
    return np.array(x), np.array(y)


def test_a_folder_of_classes_is_read_in_sorted_order(tmp_path):
    x, y = write_folder(tmp_path / "set", {"ant": 3, "bee": 2})
    for junk in (".DS_Store", "Thumbs.db"):
        write(tmp_path / "set" / "bee" / junk, b"left by a desktop")
    write(tmp_path / "set" / "notes.txt", b"beside the classes")
    heard = []
    got = data.load("folder", tmp_path / "set", tmp_path / "cache", progress=lambda *told: heard.append(told))
    np.testing.assert_array_equal(got.x, x)
    np.testing.assert_array_equal(got.y, y)
    assert (got.name, got.class_names, got.num_train, heard) == ("set", ("ant", "bee"), 5, [(5, 5)])
    again = data.load("folder", tmp_path / "set", tmp_path / "cache", progress=lambda *told: heard.append(told))
    assert len(heard) == 1 and isinstance(again.x, np.memmap)


def test_a_changed_folder_is_read_anew(tmp_path):
    write_folder(tmp_path / "set", {"a": 1, "b": 1})
    before = twice("folder", tmp_path / "set")
    write(tmp_path / "set" / "b" / "9.png", png(pixels(6, 6, 3)))
    assert len(before.y) == 2 and len(twice("folder", tmp_path / "set").y) == 3
    (tmp_path / "set" / "a" / "00.png").write_bytes(png(before.x[1]))
    np.testing.assert_array_equal(twice("folder", tmp_path / "set").x[0], before.x[1])


def test_images_of_many_kinds_become_bytes_of_one_size(tmp_path):
    for name, mode in {
        "grey.png": "L",
        "colour.jpg": "RGB",
        "palette.gif": "P",
        "alpha.png": "RGBA",
        "bits.bmp": "1",
    }.items():
        file = tmp_path / "set" / "a" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, (10, 7), 1).save(file)
    write(tmp_path / "set" / "b" / "x.png", png(np.full((9, 20, 3), 77, np.uint8)))
    with says("x.png", "9 x 20", "7 x 10", "--image-size HxW"):
        data.load("folder", tmp_path / "set")
    got = data.load("folder", tmp_path / "set", size=(4, 5))
    assert got.x.shape == (6, 4, 5, 3) and (got.x[-1] == 77).all()


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("notes.txt", b"text", ["notes.txt", "no image"]),
        ("text.png", b"text", ["text.png", "not a complete image"]),
        ("empty.png", b"", ["empty.png", "not a complete image"]),
        ("inner/x.png", b"", ["inner", "folder that is no image"]),
        ("script.eps", b"%!PS-Adobe-3.0 EPSF-3.0", ["script.eps", "no image"]),
        ("script.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", ["script.png", "not a complete image"]),
    ],
)
def test_what_is_no_image_is_told_by_name(tmp_path, name, content, parts):
    write_folder(tmp_path / "set", {"a": 2, "b": 1})
    write(tmp_path / "set" / "b" / name, content)
    with says(*parts):
        data.load("folder", tmp_path / "set", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_cut_image_is_told_by_name(tmp_path):
    write_folder(tmp_path, {"a": 1, "b": 1}, side=64)
    file = tmp_path / "b" / "00.png"
    file.write_bytes(file.read_bytes()[:-2000])
    with says(str(file), "not a complete image"):
        data.load("folder", tmp_path)


def test_a_picture_larger_than_any_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS", 99)
    with says("bomb.png", "10 x 10", "at most 99"):
        images.decode(png(pixels(10, 10, 3)), "bomb.png")


def test_sixteen_bits_are_not_cut_to_eight():
    file = io.BytesIO()
    Image.fromarray(np.full((2, 2), 40_000, np.uint16)).save(file, "PNG")
    with says("deep.png", "8 bits"):
        images.decode(file.getvalue(), "deep.png")


def test_the_first_bad_image_is_named_and_the_rest_is_given_up():
    """Of a thousand blocks, a thread has begun a few when the first fails."""
    good, begun = png(pixels(2, 2, 3)), []

    def read(i):
        begun.append(i)
        return (b"bad" if i in (70, 5_000) else good), f"image {i}"

    with says("image 70:"):
        images.stack(1000 * 64, read)
    assert len(begun) < 500 * 64


def test_a_folder_that_must_not_be_read_is_told(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    for name in ("folder", "covid19"):
        with says(str(tmp_path), "Permission denied", "check its permissions"):
            data.load(name, tmp_path)


def test_more_than_the_memory_is_refused_before_it_is_taken(tmp_path):
    write_folder(tmp_path, {"a": 1, "b": 1})
    with says("GiB", "--image-size"):
        images.stack(10**12, lambda i: (png(pixels(9, 9, 3)), "x.png"))


def test_an_empty_class_or_a_single_one_is_told(tmp_path):
    write_folder(tmp_path / "set", {"a": 1})
    with says(str(tmp_path / "set"), "1 sub-folders"):
        data.load("folder", tmp_path / "set")
    (tmp_path / "set" / "b").mkdir()
    with says(str(tmp_path / "set" / "b"), "holds no image"):
        data.load("folder", tmp_path / "set")


def test_without_pillow_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with says("fedvg_jax[images]"):
        images.decode(b"", "x.png")


# --- COVID-19


FOUR = {"COVID-19": 2, "Normal": 1, "Pneumonia-Bacterial": 1, "Pneumonia-Viral": 2}


@pytest.mark.parametrize("around", [".", "Curated X-Ray Dataset"])
@pytest.mark.parametrize("inner", ["", "images"])
def test_the_x_rays_are_four_folders_resized_to_the_published_size(tmp_path, around, inner):
    _, y = write_folder(tmp_path / "in" / around, FOUR, inner=inner)
    if inner:  # lung masks beside the images, as in the Radiography Database
        write(tmp_path / "in" / around / "Normal" / "masks" / "0.png", b"not read")
    got = twice("covid19", tmp_path / "in")
    assert got.x.shape == (6, 244, 224, 3) and got.class_names == tuple(FOUR) and got.y.tolist() == y.tolist()
    assert data.load("covid19", tmp_path / "in", size=(8, 8)).x.shape == (6, 8, 8, 3)


def test_another_number_of_folders_is_told_with_their_names(tmp_path):
    write_folder(tmp_path, {"a": 1, "b": 1, "c": 1})
    with says(str(tmp_path), "3 folders (a, b, c)", "10.17632/9xkhgts2s6"):
        data.load("covid19", tmp_path)


@pytest.mark.parametrize("first", [False, True], ids=["channels last", "channels first"])
@pytest.mark.parametrize("kind", ["bytes", "numbers 0..255", "numbers 0..1"])
def test_the_published_arrays_are_read_as_bytes(tmp_path, first, kind):
    x, y = pixels(300, 5, 4, 3), np.arange(300) % 4
    x[0, 0, 0] = 255
    held = {"bytes": x, "numbers 0..255": x.astype(np.float32), "numbers 0..1": (x / 255).astype(np.float32)}[kind]
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "xdata.npy", held.transpose(0, 3, 1, 2) if first else held)
    np.save(tmp_path / "in" / "ydata.npy", y.astype(np.float64)[:, None] if first else y)
    got = twice("covid19", tmp_path / "in")
    np.testing.assert_array_equal(got.x, x)
    np.testing.assert_array_equal(got.y, y)


def test_organamnist_may_be_the_published_arrays_too(tmp_path):
    x = pixels(3, 28, 28)
    np.save(tmp_path / "xdata.npy", x)
    np.save(tmp_path / "ydata.npy", np.array([0, 10, 3]))
    np.testing.assert_array_equal(data.load("organamnist", tmp_path).x[..., 0], x)


X = np.zeros((2, 3, 3, 3), np.uint8)


@pytest.mark.parametrize(
    ("x", "y", "parts"),
    [
        (X, None, ["ydata.npy missing"]),
        (X, [0], ["2 images but 1 labels"]),
        (X, [0, 4], ["0..3", "0..4"]),
        (X, [0.5, 1], ["ydata.npy", "whole numbers"]),
        (X, [np.nan, 1], ["ydata.npy", "whole numbers"]),
        (X[0, 0], [0, 1], ["xdata.npy", "[T, H, W, D]"]),
        (X[:0], [], ["xdata.npy", "[T, H, W, D]"]),
        (X - 1.0, [0, 1], ["xdata.npy", "0..255 or 0..1", "-1"]),
        (X + np.nan, [0, 1], ["xdata.npy", "nan"]),
        (X.astype(np.int32) + 256, [0, 1], ["xdata.npy", "256"]),
        (np.array([{}, {}], object), [0, 1], ["xdata.npy", "plain array"]),
    ],
)
def test_malformed_published_arrays_are_told_by_file(tmp_path, x, y, parts):
    np.save(tmp_path / "xdata.npy", x, allow_pickle=True)
    if y is not None:
        np.save(tmp_path / "ydata.npy", np.array(y))
    with says(*parts):
        data.load("covid19", tmp_path)


def test_a_cut_npy_file_is_told(tmp_path):
    for name in ("xdata.npy", "ydata.npy"):
        write(tmp_path / name, b"\x93NUMPY\x01\x00")
    with says("xdata.npy", "not a complete .npy"):
        data.load("covid19", tmp_path)


# --- Tiny ImageNet


def write_tiny(root: Path, wnids=("n02", "n01"), per_class=3):
    """The official tree, with PNGs called JPEG; returns (x, y): training set in the order of wnids.txt, then val."""
    write(root / "wnids.txt", "\n".join(wnids).encode())
    write(root / "words.txt", b"n01\tgoldfish, Carassius auratus\nn02\tboa\nn99\tunused\n")
    x, y = [], []
    for label, wnid in enumerate(wnids):
        for i in range(per_class):
            x.append(pixels(8, 8, 3))
            y.append(label)
            write(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", png(x[-1]))
        write(root / "train" / wnid / f"{wnid}_boxes.txt", b"not read")
    lines = []
    for i, label in enumerate((1, 0)):
        x.append(pixels(8, 8, 3))
        y.append(label)
        write(root / "val" / "images" / f"val_{i}.JPEG", png(x[-1]))
        lines.append(f"val_{i}.JPEG\t{wnids[label]}\t0\t0\t62\t62")
    write(root / "val" / "val_annotations.txt", "\n".join(reversed(lines)).encode())
    return np.array(x), np.array(y)


@pytest.mark.parametrize("where", [".", tinyimagenet.FOLDER])
def test_tiny_imagenet_is_in_the_order_of_its_lists_and_names(tmp_path, where):
    x, y = write_tiny(tmp_path / "in" / where)
    got = twice("tinyimagenet", tmp_path / "in")
    np.testing.assert_array_equal(got.x, x)
    np.testing.assert_array_equal(got.y, y)
    assert got.num_train == 6 and got.class_names == ("boa", "goldfish")


def test_classes_that_share_a_word_are_told_apart(tmp_path):
    write_tiny(tmp_path)
    write(tmp_path / "words.txt", b"n01\tcrane, bird\nn02\tcrane\n")
    assert data.load("tinyimagenet", tmp_path).class_names == ("crane (n02)", "crane (n01)")


@pytest.mark.parametrize(
    ("file", "content", "parts"),
    [
        ("wnids.txt", None, ["wnids.txt", "cs231n.stanford.edu"]),
        ("wnids.txt", b"", ["wnids.txt", "empty"]),
        ("wnids.txt", b"\xff\xfe", ["wnids.txt", "no text file"]),
        ("wnids.txt", b"n02\nn01\nn03", ["n03", "no such folder"]),
        ("train/n01/images/n01_2.JPEG", None, ["n01", "2 images, but other classes have 3"]),
        ("train/n01/images/n01_2.JPEG", b"half", ["n01_2.JPEG", "not a complete image"]),
        ("val/images/val_1.JPEG", None, ["val_annotations.txt", "val_1.JPEG"]),
        ("val/val_annotations.txt", b"val_0.JPEG\tn01", ["val_annotations.txt", "val_1.JPEG"]),
        ("val/val_annotations.txt", b"val_0.JPEG\tn07", ["val_annotations.txt", "'n07'"]),
        ("val/val_annotations.txt", b"val_0.JPEG", ["val_annotations.txt", "class ''"]),
        ("val/val_annotations.txt", None, ["val_annotations.txt", "cannot be read"]),
    ],
)
def test_a_tree_at_odds_with_its_lists_is_told_by_file(tmp_path, file, content, parts):
    write_tiny(tmp_path)
    (tmp_path / file).unlink() if content is None else write(tmp_path / file, content)
    with says(*parts):
        data.load("tinyimagenet", tmp_path)


# --- encoded images in one file


def encoded(key="jpeg", **changed):
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
def test_encoded_images_are_decoded_split_after_split(tmp_path, key):
    x, members = encoded(key=key, class_names=np.array(["a", "b", "c"]), wnids=np.array(["n1"]))
    np.savez(tmp_path / "set.npz", **members)
    got = twice("encoded", tmp_path / "set.npz")
    np.testing.assert_array_equal(got.x, x)
    assert got.y.tolist() == [0, 1, 2, 0, 1] and (got.name, got.num_train) == ("set", 3)
    assert got.class_names == ("a", "b", "c")
    assert data.load("encoded", tmp_path, size=(3, 3)).x.shape == (5, 3, 3, 3)


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"train_offsets": np.array([0, 5])}, ["1 images in train_offsets but 3 labels"]),
        ({"train_offsets": np.array([0, 9, 5, 20])}, ["train_offsets must rise"]),
        ({"train_offsets": np.array([0, 9, 15, 10**9])}, ["train_offsets must rise"]),
        ({"train_offsets": np.array([-5, 9, 15, 20])}, ["train_offsets must rise"]),
        ({"train_offsets": np.array([0.0, 9, 15, 20])}, ["integers"]),
        ({"train_offsets": np.array([0, 9, 15, 20])}, ["train image 0", "not a complete image"]),
        ({"test_labels": np.zeros((2, 2), int)}, ["test_labels integers"]),
        ({"train_jpeg": np.zeros((2, 2), np.uint8)}, ["train_jpeg must be uint8 [n]"]),
        ({"class_names": np.array(["only"])}, ["0..0", "0..2"]),
    ],
)
def test_encoded_images_that_do_not_fit_together_are_told(tmp_path, changed, parts):
    _, members = encoded(**changed)
    np.savez(tmp_path / "bad.npz", **members)
    with says("bad.npz", *parts):
        data.load("encoded", tmp_path)


def test_a_file_without_encoded_images_is_told(tmp_path):
    np.savez(tmp_path / "a.npz", train_labels=np.array([0]))
    with says("a.npz", "train_jpeg", "got train_labels"):
        data.load("encoded", tmp_path)


# --- all of them


FROM_FILES = [name for name in data.NAMES if name != "digits"]


@pytest.mark.parametrize("name", [*FROM_FILES, "tfds:mnist"])
def test_a_user_with_nothing_is_told_once_what_goes_where(tmp_path, name):
    with says(f"dataset {name} needs --data-dir DIR"):
        data.load(name)
    file = write(tmp_path / "a file", b"not it")
    for where in (tmp_path / "none", tmp_path, file):
        with says(str(where)):
            data.load(name, where, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


PAGES = {
    "cifar10": "cs.toronto.edu",
    "cifar100": "cs.toronto.edu",
    "stl10": "stanford.edu",
    "organamnist": "medmnist.com",
    "dermamnist": "medmnist.com",
    "tinyimagenet": "stanford.edu",
    "covid19": "doi.org",
}


@pytest.mark.parametrize("name", PAGES)
def test_a_public_set_is_named_with_its_official_page(tmp_path, name):
    assert set(PAGES) == set(FROM_FILES) - {"npz", "encoded", "folder"}
    for where in (None, tmp_path / "none", tmp_path):
        with says(PAGES[name]):
            data.load(name, where)


@pytest.mark.parametrize("name", data.NAMES)
def test_an_option_a_set_does_not_have_is_an_error_and_not_ignored(tmp_path, name):
    options = {"size": (8, 8), "splits": "official"}
    lacking = set(options) - set(data.SOURCES[name].takes if name != "digits" else ())
    assert lacking or name == "dermamnist"
    for option in lacking:
        with says(f"dataset {name} has no --", "leave it out"):
            data.load(name, tmp_path, **{option: options[option]})


def test_a_bomb_of_an_npz_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros((2000, 64, 64), np.uint8), y=np.zeros(2000, int))
    monkeypatch.setattr("os.sysconf", lambda name: 1000)  # a machine of a million bytes
    with says("bomb.npz", "GiB"):
        data.load("npz", tmp_path)


def test_stamps_tell_states_of_a_folder_apart(tmp_path):
    file = write(tmp_path / "a" / "x.png", b"one")
    before = folder.stamps(tmp_path, [file])
    assert before == folder.stamps(tmp_path, [file]) and before[0].startswith("a/x.png 3 ")
    file.write_bytes(b"four")
    assert folder.stamps(tmp_path, [file]) != before
