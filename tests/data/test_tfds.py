"""Data sets prepared by tensorflow-datasets: a tiny one, written as ArrayRecord and read again."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from files import png, says

from fedvg_jax import data
from fedvg_jax.data.readers import tfds

RNG = np.random.default_rng(2)
X = RNG.integers(0, 256, (9, 8, 10, 3), np.uint8)
SPLITS = {"test": range(7, 9), "train": range(0, 5), "validation": range(5, 7)}


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("tensorflow_datasets", reason="prepared sets need the tfds extra")


def prepare(library, folder: Path, *, version="1.0.0", form="array_record", features=None, example=None):
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
            return library.core.DatasetInfo(builder=self, features=library.features.FeaturesDict(features))

        def _split_generators(self, _):
            return {split: ((i, example(i)) for i in rows) for split, rows in SPLITS.items()}

        def _generate_examples(self):
            raise NotImplementedError

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
        rows = [order_of[image.tobytes()] for image in got.x]  # tfds shuffles within a split, the same way every time
        assert [sorted(rows[:5]), sorted(rows[5:7]), sorted(rows[7:])] == [list(range(5)), [5, 6], [7, 8]]
        assert got.y.tolist() == [row % 3 for row in rows] and got.x.shape == order.shape
        assert (got.name, got.num_train, got.class_names) == ("tiny", 5, ("ant", "bee", "cat"))


def test_neither_tensorflow_nor_the_network_is_used(prepared):
    code = f"""
import socket, sys
def refuse(*args, **kwargs): raise SystemExit("the network was used")
socket.socket.connect = socket.getaddrinfo = refuse
from pathlib import Path
from fedvg_jax import data
assert len(data.load("tfds:tiny", Path({str(prepared)!r})).y) == 9
sys.exit("tensorflow" in sys.modules or "jax" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prepared_images_are_resized(prepared):
    assert data.load("tfds:tiny", prepared, size=(4, 4)).x.shape == (9, 4, 4, 3)


def test_newest_version_is_read_unless_one_is_named(library, tmp_path):
    for version, shift in (("1.9.0", 0), ("1.10.0", 1)):
        made = [{"id": "", "image": io.BytesIO(png(image)), "label": (i + shift) % 3} for i, image in enumerate(X)]
        prepare(library, tmp_path, version=version, example=made.__getitem__)
    newest, named, old = (data.load(f"tfds:tiny{v}", tmp_path) for v in ("", ":1.10.0", ":1.9.0"))
    np.testing.assert_array_equal(newest.y, named.y)
    assert sorted(old.y) == sorted(newest.y) and old.y.tolist() != newest.y.tolist()
    with says("tiny:2.0.0", "tiny/1.10.0, tiny/1.9.0", "--download"):
        data.load("tfds:tiny:2.0.0", tmp_path)


def test_one_of_several_configurations_must_be_named(prepared, tmp_path):
    for config in ("large", "small"):
        target = tmp_path / "tiny" / config / "1.0.0"
        target.mkdir(parents=True)
        for file in (prepared / "tiny" / "1.0.0").iterdir():
            (target / file.name).write_bytes(file.read_bytes())
    with says("several configurations", "tfds:tiny/large, tfds:tiny/small"):
        data.load("tfds:tiny", tmp_path)
    assert len(data.load("tfds:tiny/small", tmp_path).y) == 9


def test_grey_images_stay_grey(library, tmp_path):
    features = {
        "image": library.features.Image(shape=(8, 10, 1), encoding_format="png"),
        "label": library.features.ClassLabel(num_classes=3),
    }
    prepare(
        library,
        tmp_path,
        features=features,
        example=lambda i: {"image": io.BytesIO(png(X[i, ..., :1])), "label": i % 3},
    )
    assert data.load("tfds:tiny", tmp_path).x.shape == (9, 8, 10, 1)


def test_prepared_set_without_labelled_images_is_refused(library, tmp_path):
    features = {"text": library.features.Text(), "label": library.features.ClassLabel(num_classes=3)}
    prepare(library, tmp_path, features=features, example=lambda i: {"text": "", "label": i % 3})
    with says("one image and one class label", "text"):
        data.load("tfds:tiny", tmp_path)


@pytest.fixture
def copied(prepared, tmp_path):
    """A copy of the prepared folder, for changes."""
    target = tmp_path / "tiny" / "1.0.0"
    target.mkdir(parents=True)
    for file in (prepared / "tiny" / "1.0.0").iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def test_damaged_prepared_files_are_refused(copied, tmp_path):
    file = next(copied.glob("*train*"))
    good = file.read_bytes()
    for bad in (good[: len(good) // 2], b"", None):
        file.write_bytes(bad) if bad is not None else file.unlink()
        with says(str(copied), "prepare it again"):
            data.load("tfds:tiny", tmp_path, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_prepared_set_of_another_format_is_refused(copied, tmp_path):
    info = json.loads((copied / "dataset_info.json").read_text())
    (copied / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "tfrecord"}))
    with says("prepared as tfrecord", "array_record"):
        data.load("tfds:tiny", tmp_path)


def test_description_that_names_other_code_is_refused(copied, tmp_path):
    text = (copied / "features.json").read_text()
    (copied / "features.json").write_text(
        text.replace("tensorflow_datasets.core.features.image_feature.Image", "os.Evil")
    )
    with says("features.json names os.Evil"):
        data.load("tfds:tiny", tmp_path)


def test_truncated_description_is_refused(copied, tmp_path):
    (copied / "features.json").write_text("{")
    with says("features.json", "not complete JSON"):
        data.load("tfds:tiny", tmp_path)


@pytest.mark.parametrize("text", ["", "../x", "a/b/c", "a:1", "a b", "/etc"])
def test_malformed_name_is_refused(tmp_path, text):
    with says("tfds:NAME", repr(text)):
        data.load(f"tfds:{text}", tmp_path)


def test_missing_set_is_not_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds, "download", lambda *_: pytest.fail("downloaded"))
    with says(str(tmp_path), "no prepared mnist", "python -m fedvg_jax.prepare tfds:mnist", "--download"):
        data.load("tfds:mnist", tmp_path)


def test_missing_extra_is_reported_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    folder = tmp_path / "tiny" / "1.0.0"
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text('{"fileFormat": "array_record"}')
    (folder / "features.json").write_text("{}")
    with says("fedvg_jax[tfds]"):
        data.load("tfds:tiny", tmp_path)
    with says("fedvg_jax[tfds]"):
        tfds.download("tiny", tmp_path)


def test_prepared_set_is_decoded_once_per_content_and_size(copied, tmp_path, monkeypatch):
    decoded, decode = [], tfds._decode
    monkeypatch.setattr(tfds, "_decode", lambda *args: decoded.append(args) or decode(*args))

    def load(size=None):
        return data.load("tfds:tiny", tmp_path, tmp_path / "cache", size=size)

    first, second = load(), load()
    np.testing.assert_array_equal(first.x, second.x)
    assert len(decoded) == 1
    assert load(size=(4, 4)).x.shape == load(size=(4, 4)).x.shape == (9, 4, 4, 3)
    assert len(decoded) == 2
    features = copied / "features.json"
    features.write_text(features.read_text() + "\n")
    load()
    assert len(decoded) == 3
