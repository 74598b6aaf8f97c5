"""Mistakes in data sets, partitions and validation sets."""

import io
import tempfile
from pathlib import Path

import numpy as np
from support.files import png, write

import fedvg_jax as fv
from fedvg_jax import data, resolve
from fedvg_jax.config import apply
from fedvg_jax.data import images, user_data, validation
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions import exchange, kinds, label_skew, partitioners
from fedvg_jax.data.readers import text
from fedvg_jax.data.readers.cifar_stl10 import CLASS_NAMES

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [300, 200, 120, 80]))
GROUPS = np.random.default_rng(1).integers(0, 40, 700)


def partition(partitioner=None, **changes):
    """Returns the call that draws a partition of 700 rows in four classes."""
    settings = {"num_clients": 8, "alpha": 0.5, "groups": GROUPS} | changes
    return lambda: partitioners.draw_partition(LABELS, partitioner, **settings)


def custom(divide):
    """Returns the call that draws a partition by a custom partitioner."""
    return partition(partitioners.Partitioner(divide))


def given(rows, **changes):
    """Returns the call that checks rows of two clients, of twelve."""
    return lambda: exchange.check(
        rows, **{"num_samples": 12, "num_clients": 2, "source": "here"} | changes
    )


def partition_file(text):
    """Returns the call that reads a file with this text."""

    def call():
        with tempfile.TemporaryDirectory() as folder:
            exchange.read(write(Path(folder, "rows.json"), text))

    return call


_RANDOM = np.random.default_rng(0)

PARTITIONS = [
    ("more clients than rows", partition(num_clients=71), "--min-samples"),
    ("alpha beyond the published draw", partition(partitioners.official(), alpha=1e-9), "alpha"),
    ("no draw with the minimum", lambda: label_skew.bulk(LABELS, 60, _RANDOM, 0.05, 10, 50), "--min-samples-rule"),
    ("no groups to divide by", partition(partitioners.group(), groups=None), "partition group"),
    ("fewer groups than clients", partition(partitioners.group(), num_clients=41, min_samples=1), "client 40 has 0"),
    ("a balanced client that is too large", lambda: kinds.balanced_client(LABELS, 2, _RANDOM, 0.05), "class 3"),
    ("no pieces", lambda: partitioners.shards(0), "per_client"),
    ("a custom partitioner of too few clients", custom(lambda labels, num_clients, stream: [[0]]), "clients"),
    ("a custom partitioner of other arguments", custom(lambda labels: [labels]), "partitioner"),
    ("a custom partitioner that repeats rows", custom(lambda labels, n, stream: [[*range(10)]] * n), "row 0"),
    ("one client given of two", given([[0, 1]]), "clients"),
    ("a row of two clients", given([[0, 1], [1, 2]]), "row 1"),
    ("a row beyond the pool", given([[0, 1], [2, 12]]), "0..11"),
    ("two parts", given(([[0], [1]], [[2], [3]])), "train, val, test"),
    ("fewer rows than the minimum", given([[0, 1, 2], [3]], min_samples=2), "--min-samples"),
    ("no file", lambda: exchange.read(Path("none.json")), "none.json"),
    ("a file without test rows", partition_file(b'{"train": [[1]], "val": []}'), "`test`"),
]  # fmt: skip

# --- files of data sets


def load(name, files=(), **options):
    """Returns the call that loads a set from a folder with these files: path -> bytes, or arrays of an .npz."""

    def call():
        with tempfile.TemporaryDirectory() as folder:
            for path, content in dict(files).items():
                if isinstance(content, bytes):
                    write(Path(folder, path), content)
                else:
                    np.savez(Path(folder, path), **content)
            data.load(name, Path(folder), **options)

    return call


def arrays(**members):
    """Returns the call that reads an .npz of these arrays."""
    return load("npz", {"set.npz": members})


def folders(*names):
    """Returns the call that reads a folder with these files, images where their names end in .png."""
    image = png(np.zeros((9, 20, 3), np.uint8))
    content = {".png": image, ".ppm": b"P6 1 1 255\none", ".ps": b"%!PS-Adobe-3.0 EPSF-3.0"}
    return load("folder", {name.partition("#")[0]: content[Path(name).suffix] for name in names})


def _deep_image():
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.full((2, 2), 40_000, np.uint16)).save(file, "PNG")
    return file.getvalue()


X, Y = np.zeros((3, 4, 4), np.uint8), np.array([0, 1, 2])

DATA_SETS = [
    ("an unknown set", lambda: data.load("mnist"), "mnist"),
    ("a size that a set does not have", load("digits", size=(8, 8)), "size"),
    ("splits that a set does not have", load("covid19", splits="official"), "splits"),
    ("no file of CIFAR", load("cifar10"), "prepare cifar10 --download"),
    ("a table in text", load("npz", {"rows.csv": b"a,label\n1,0\n"}), "0 .npz files"),
    ("two files of arrays", load("npz", {"a.npz": {"x": X}, "b.npz": {"x": X}}), "2 .npz files"),
    ("fewer labels than images", arrays(x=X, y=Y[:2]), "y 2"),
    ("images that are floats", arrays(x=X.astype(np.float32), y=Y), "float32"),
    ("labels beyond 32 bits", arrays(x=X, y=Y + 2**62, class_names=["a"]), "32 bits"),
    ("images of two sizes", arrays(x_train=X, y_train=Y, x_test=X[:, 1:], y_test=Y), "one size"),
    ("one class", folders("train/a/1.png", "test/1.png"), "1 classes"),
    ("images of two sizes in a folder", folders("a/1.png", "b/1.ppm"), "--image-size"),
    ("a size that MedMNIST does not have", load("dermamnist", size=(30, 30)), "dermamnist_30.npz"),
    ("a file that is no image", folders("a/1.png", "b/x.ps"), "x.ps"),
    ("another format by the name of an image", folders("a/1.png", "b/x.png#.ps"), "x.png"),
    ("an image of 16 bits", lambda: images.decode(_deep_image(), "deep.png"), "deep.png"),
    ("a text that is too short", lambda: text.cut({"author": "short"}, "mine"), "author"),
]  # fmt: skip


# --- arrays from Python

FLOATS, LABELS_6, TARGETS = np.ones((6, 3)), np.array([0, 1, 2, 0, 1, 2]), np.linspace(0, 1, 6)
CHANNELS_FIRST = np.zeros((6, 3, 32, 32), np.uint8)
TOKENS = np.arange(12).reshape(6, 2) % 3


def given_data(*pair):
    """Returns the call that takes arrays (x, y), or one object."""
    return lambda: user_data.as_arrays(pair if len(pair) == 2 else pair[0])


def fits(x, y, **settings):
    """Returns the call that checks whether settings fit these data."""

    def call():
        made, config = user_data.as_arrays((x, y)), fv.Config(**settings)
        resolve.data.check_pixel_settings(made, config)
        resolve.model.check_images(config, made)

    return call


GIVEN = [
    ("one array", given_data(FLOATS), "(x, y)"),
    ("more classes than names", given_data(Arrays("mine", FLOATS, LABELS_6, ("a", "b"), 6)), "class_names"),
    ("a row of x that is not finite", given_data(np.diag([1, 1, 1, 1, np.nan, 1]), TARGETS), "row 4"),
    ("pixels of a table", fits(FLOATS, LABELS_6, normalise="half"), "normalise half"),
    ("channels first", fits(CHANNELS_FIRST, LABELS_6, model="resnet18"), "np.moveaxis(x, 1, -1)"),
    ("targets for a classifier", fits(FLOATS, TARGETS), "class labels"),
    ("labels beyond the most classes", fits(FLOATS, LABELS_6 + 2**16), "65535"),
    ("sequences without names", fits(TOKENS, TOKENS, model="gru"), "class_names"),
]  # fmt: skip


# --- validation sets

_TEN = Arrays(
    "ten",
    np.zeros((600, 4, 4, 3), np.uint8),
    np.repeat(np.arange(10, dtype=np.int32), 60),
    CLASS_NAMES,
    600,
)
_PARTS = partitioners.draw_partition(_TEN.y, num_clients=8, alpha=5.0)
_NO_VAL = _PARTS._replace(val=[own[:0] for own in _PARTS.val])
_ONE_VAL = _PARTS._replace(val=[np.concatenate(list(_PARTS.val))])


def shared(rows):
    """Returns a D_val of these rows."""
    return validation.Shared(_TEN.x, _TEN.y, np.asarray(rows, np.int32), len(rows), None)


def outside(names, target=_TEN):
    """Returns the call that reads CIFAR-100's images of these classes as an external set."""

    def call():
        with tempfile.TemporaryDirectory() as folder:
            x, y = np.zeros((len(names), 32, 32, 3), np.uint8), np.arange(len(names))
            np.savez(Path(folder, "cifar100.npz"), x=x, y=y, class_names=np.array(names))
            validation.outside_images("cifar100", Path(folder), target)

    return call


VALIDATION = [
    ("no validation row", lambda: validation.from_clients(_TEN, _NO_VAL, 1.0, 0.1, 0), "--validation.source"),
    ("rows of no client", lambda: validation.from_clients(_TEN, _ONE_VAL, 0.5, 0.1, 0), "validation.source"),
    ("a subset that is too large", lambda: validation.subset(shared(range(600)), 601, 0), "validation.size"),
    ("a class without an image", lambda: validation.imbalanced(shared(range(60, 540)), 0.5, 10, 0), "validation.rho"),
    ("an external set of other classes",
     outside(("bus", "fox"), _TEN._replace(class_names=tuple("0123456789"))), "validation.source cifar100"),
    ("no class in common", outside(("tractor", "rose")), "tractor"),
    ("colour images for grey ones", outside(("bus", "fox"), _TEN._replace(x=_TEN.x[..., :1])), "channels"),
]  # fmt: skip

# --- settings that do not fit a population

_ROWS = np.array_split(np.arange(60), 6)
_SPLIT = ([own[:6] for own in _ROWS], [own[6:8] for own in _ROWS], [own[8:] for own in _ROWS])
_SMALL = Arrays(
    "small", np.zeros((60, 4, 4, 1), np.uint8), np.arange(60, dtype=np.int32) % 4, tuple("abcd"), 60
)


def populated(partition=_SPLIT, **settings):
    """Returns the call that takes a partition of 60 rows over six clients and builds their D_val."""

    def call():
        config = apply(fv.Config(clients=6, join_ratio=1.0), settings, "test")
        resolve.data.make_shared(
            config, _SMALL, resolve.data.take_partition(config, _SMALL, partition)
        )

    return call


CHANGED = partitioners.shards()._replace(divide=lambda labels, n, stream: [[*range(10)]] * n)

POPULATIONS = [
    ("min_samples of rows that are split", populated(min_samples=20), "min_samples"),
    ("rows of each client, held out first", populated(_ROWS, holdout="global"), "holdout global"),
    ("a name in place of rows", populated("iid"), "the partition given"),
    ("a function in place of rows", populated(len), "Partitioner"),
    ("a changed partitioner that repeats rows", lambda: fv.run(partition=CHANGED), "row 0"),
    (
        "a custom partitioner with a setting",
        lambda: fv.run(partition=fv.partitioners.dirichlet()._replace(text="")),
        "alpha",
    ),
    ("no test row", populated((*_SPLIT[:2], [[]])), "test"),
]

CASES = [*PARTITIONS, *DATA_SETS, *GIVEN, *VALIDATION, *POPULATIONS]
