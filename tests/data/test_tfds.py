"""Data sets prepared by tensorflow-datasets: a tiny one, written as ArrayRecord and read by ours."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.files import png, usage_error

from fedvg_jax import data

RNG = np.random.default_rng(2)
X = RNG.integers(0, 256, (9, 8, 10, 3), np.uint8)
SPLITS = {"test": range(7, 9), "train": range(0, 5), "validation": range(5, 7)}


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("tensorflow_datasets", reason="prepared sets need the tfds extra")


def prepare(
    library, folder: Path, *, version="1.0.0", form="array_record", features=None, example=None
):
    """Prepares a data set of nine images in three splits."""
    features = features or {
        "id": library.features.Text(),
        "image": library.features.Image(shape=(None, None, 3), encoding_format="png"),
        "label": library.features.ClassLabel(names=["ant", "bee", "cat"]),
    }
    example = example or (lambda i: {"id": str(i), "image": io.BytesIO(png(X[i])), "label": i % 3})

    class Tiny(library.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = library.core.Version(version)
        pkg_dir_path = folder

        def _info(self):
            return library.core.DatasetInfo(
                builder=self, features=library.features.FeaturesDict(features)
            )

        def _split_generators(self, _):
            return {split: ((i, example(i)) for i in rows) for split, rows in SPLITS.items()}

        def _generate_examples(self):
            raise NotImplementedError  # the class asks for it; the splits give the examples

    Tiny(data_dir=str(folder), file_format=form).download_and_prepare()
    return folder / "tiny" / version


@pytest.fixture(scope="module")
def prepared(library, tmp_path_factory):
    return prepare(library, tmp_path_factory.mktemp("tfds")).parents[1]


def test_prepared_set_is_pooled_as_train_validation_test(prepared, tmp_path):
    for _ in range(2):  # decoded, then from the cache
        got = data.load("tfds:tiny", prepared, tmp_path)
        order = np.concatenate([X[SPLITS["train"]], X[SPLITS["validation"]], X[SPLITS["test"]]])
        order_of = {image.tobytes(): i for i, image in enumerate(X)}
        # tfds shuffles within a split, the same way every time
        rows = [order_of[image.tobytes()] for image in got.x]
        assert [sorted(rows[:5]), sorted(rows[5:7]), sorted(rows[7:])] == [
            list(range(5)),
            [5, 6],
            [7, 8],
        ]
        assert got.y.tolist() == [row % 3 for row in rows] and got.x.shape == order.shape
        assert (got.name, got.num_train, got.class_names) == ("tiny", 5, ("ant", "bee", "cat"))


def test_loading_uses_neither_tensorflow_nor_the_network(prepared):
    code = f"""
import socket, sys
def refuse(*args, **kwargs): raise SystemExit("the network was used")
socket.socket.connect = socket.getaddrinfo = refuse
from pathlib import Path
from fedvg_jax import data
assert len(data.load("tfds:tiny", Path({str(prepared)!r})).y) == 9
sys.exit("tensorflow" in sys.modules or "jax" in sys.modules)
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_newest_version_is_read_unless_one_is_named(library, tmp_path):
    for version, shift in (("1.9.0", 0), ("1.10.0", 1)):
        examples = [
            {"id": "", "image": io.BytesIO(png(image)), "label": (i + shift) % 3}
            for i, image in enumerate(X)
        ]
        prepare(library, tmp_path, version=version, example=examples.__getitem__)
    newest, named, old = (data.load(f"tfds:tiny{v}", tmp_path) for v in ("", ":1.10.0", ":1.9.0"))
    np.testing.assert_array_equal(newest.y, named.y)
    assert sorted(old.y) == sorted(newest.y) and old.y.tolist() != newest.y.tolist()
    with usage_error("tiny:2.0.0", "tfds build"):
        data.load("tfds:tiny:2.0.0", tmp_path)


@pytest.fixture
def copied(prepared, tmp_path):
    """A copy of the prepared folder, which tests may change."""
    target = tmp_path / "tiny" / "1.0.0"
    target.mkdir(parents=True)
    for file in (prepared / "tiny" / "1.0.0").iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def test_damaged_prepared_files_are_refused(copied, tmp_path):
    file = next(copied.glob("*train*"))
    intact = file.read_bytes()
    for damaged in (intact[: len(intact) // 2], b"", None):
        file.write_bytes(damaged) if damaged is not None else file.unlink()
        with usage_error(str(copied)):
            data.load("tfds:tiny", tmp_path, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
