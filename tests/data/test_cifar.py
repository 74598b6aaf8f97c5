"""CIFAR-10 and CIFAR-100 in all published formats, from tiny files."""

import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from files import RNG, load_twice, pixels, usage_error, write

from fedvg_jax import data
from fedvg_jax.data.readers import cifar_stl10, pickles


def python_2_pickle(content: dict) -> bytes:
    """Pickles as Python 2 with NumPy 1 did: protocol 2, byte strings as keys, the old module of `_reconstruct`."""
    pickled = pickle.dumps(content, protocol=2)
    return pickled.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def write_cifar(root: Path, name: str, form: int, rows=2):
    """Writes the files of a published format into its folder; returns their (x, y), in order."""
    kind, num_classes = cifar_stl10.SETS[name].forms[form], len(cifar_stl10.SETS[name].class_names)
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
            batch = {b"batch_label": b"x", key: y[part].tolist(), b"data": flat[part], b"filenames": [b"a.png"] * rows}
            content = python_2_pickle(batch)
        write(root / kind.folder / file, content)
    return x, y


def pack(root: Path, name: str, form: int) -> Path:
    """Packs the folder as its official archive."""
    kind = cifar_stl10.SETS[name].forms[form]
    with tarfile.open(root / kind.archive, "w:gz") as tar:
        tar.add(root / kind.folder, kind.folder)
    return root / kind.archive


every_form = pytest.mark.parametrize(("name", "form"), [(n, f) for n in cifar_stl10.SETS for f in (0, 1)])


@every_form
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
def test_every_format_of_cifar_is_read_with_the_training_set_first(tmp_path, name, form, packed):
    x, y = write_cifar(tmp_path / "all", name, form)
    folder = tmp_path / "all"
    if packed:
        (tmp_path / "archive").mkdir()
        folder = (
            pack(folder, name, form).rename(tmp_path / "archive" / cifar_stl10.SETS[name].forms[form].archive).parent
        )
    arrays = load_twice(name, folder)
    np.testing.assert_array_equal(arrays.x, x)
    np.testing.assert_array_equal(arrays.y, y)
    assert arrays.num_train == len(x) - 2 and arrays.class_names == cifar_stl10.SETS[name].class_names
    if packed:  # nothing is unpacked, and the path of the archive is accepted too
        assert len(list(folder.iterdir())) == 1
        np.testing.assert_array_equal(data.load(name, next(folder.iterdir())).x, x)


class Malicious:
    def __reduce__(self):
        return print, ("this must never run",)


def test_pickle_is_read_as_arrays_or_refused_and_never_executed(capsys):
    for content in (pickle.dumps({b"data": Malicious()}, 2), b"", b"cos\nsystem\n."):
        with usage_error("batch"):
            pickles.loads(content, "batch")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ([1], ["'data'"]),
        ({b"data": np.zeros((1, 3072), np.float32), b"labels": [1]}, ["dtype 'f4'", "only 'u1'"]),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [1, 2]}, ["1 images but 2 labels"]),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [-1]}, ["0..9, got -1"]),
    ],
)
def test_malformed_python_file_is_named(tmp_path, content, parts):
    write_cifar(tmp_path, "cifar10", 1)
    write(tmp_path / "cifar-10-batches-py" / "data_batch_3", python_2_pickle(content))
    with usage_error("data_batch_3", *parts):
        data.load("cifar10", tmp_path)
