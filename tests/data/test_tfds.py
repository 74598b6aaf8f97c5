"""Data sets prepared by tensorflow-datasets: a tiny one, written as ArrayRecord and read by ours."""

import io
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.files import pixels, png, usage_error

from fedvg_jax import data

X = pixels(9, 8, 10, 3)
SPLITS = {"test": range(7, 9), "train": range(0, 5), "validation": range(5, 7)}


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("tensorflow_datasets", reason="prepared sets need the tfds extra")


def prepare(library, folder: Path):
    """Prepares a data set of nine images in three splits."""
    features = {
        "id": library.features.Text(),
        "image": library.features.Image(shape=(None, None, 3), encoding_format="png"),
        "label": library.features.ClassLabel(names=["ant", "bee", "cat"]),
    }

    def examples(rows):
        for i in rows:
            yield i, {"id": str(i), "image": io.BytesIO(png(X[i])), "label": i % 3}

    class Tiny(library.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = library.core.Version("1.0.0")
        pkg_dir_path = folder

        def _info(self):
            return library.core.DatasetInfo(
                builder=self, features=library.features.FeaturesDict(features)
            )

        def _split_generators(self, _):
            return {split: examples(rows) for split, rows in SPLITS.items()}

        def _generate_examples(self):
            raise NotImplementedError  # the class asks for it; the splits give the examples

    Tiny(data_dir=str(folder), file_format="array_record").download_and_prepare()
    return folder


@pytest.fixture(scope="module")
def prepared(library, tmp_path_factory):
    return prepare(library, tmp_path_factory.mktemp("tfds"))


def test_prepared_set_is_pooled_as_train_validation_test(prepared, tmp_path):
    for _ in range(2):  # decoded, then from the cache
        got = data.load("tfds:tiny", prepared, tmp_path)
        order_of = {image.tobytes(): i for i, image in enumerate(X)}
        # tfds shuffles within a split, the same way every time
        rows = [order_of[image.tobytes()] for image in got.x]
        assert [*sorted(rows[:5]), *sorted(rows[5:7]), *sorted(rows[7:])] == [*range(9)]
        assert got.y.tolist() == [row % 3 for row in rows]
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


def test_damaged_prepared_files_are_refused(prepared, tmp_path):
    shutil.copytree(prepared / "tiny", tmp_path / "tiny")
    file = next((tmp_path / "tiny" / "1.0.0").glob("*train*"))
    intact = file.read_bytes()
    for damaged in (intact[: len(intact) // 2], b"", None):
        file.write_bytes(damaged) if damaged is not None else file.unlink()
        with usage_error(str(file.parent)):
            data.load("tfds:tiny", tmp_path, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
