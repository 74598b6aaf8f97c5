"""Reads texts for the prediction of the next character: one file for each author.

A text is cut into rows of `LENGTH` characters. The labels of a row are the same characters one place later:

    x_i = text[L i : L i + L],   y_i = text[L i + 1 : L i + L + 1]

Rows of one text do not overlap, so every character is a label at most once. No row is padded: the characters behind the
last whole row, fewer than `LENGTH` of each text, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedvg_jax.data.arrays import Arrays, refuse_too_large
from fedvg_jax.host import files
from fedvg_jax.host.errors import UsageError, one_line

LENGTH = 64
"""L, characters of a row."""

MAX_CHARACTERS = 1024
"""Most different characters: the confusion matrix has a cell for each pair of them."""

LAYOUT = "one .txt file in UTF-8 for each author"


def literature() -> Arrays:
    """Returns the texts that come with the package, cut into rows; see `cut`.

    Twenty texts by Carroll, Milton and Shakespeare, each for one client: 227,283 characters, 64 different ones.

    >>> arrays = literature()
    >>> arrays.x.shape, arrays.y.shape, len(arrays.class_names), arrays.groups.max()
    ((3541, 64), (3541, 64), 64, np.int32(19))
    """
    paths = sorted(Path(__file__).parents[1].joinpath("literature").glob("*.txt"))
    return cut({path.name: path.read_text(encoding="utf-8") for path in paths}, "literature", "literature")


def load(folder: Path, cache_dir: Path | None = None) -> Arrays:
    """Reads the .txt files of `folder` in the order of their names; each is a group.

    Args:
        folder: the texts.
        cache_dir: unused, because decoded texts are not kept.

    Raises:
        UsageError: no file, another encoding, a text shorter than a row, or too many different characters.
    """
    paths = sorted(folder.glob("[!.]*.txt")) if folder.is_dir() else []
    if not paths:
        raise UsageError(f"{folder}: holds no .txt file; --data-dir must be a folder with {LAYOUT}")
    refuse_too_large(8 * sum(path.stat().st_size for path in paths), folder)
    return cut({path.name: _text(path) for path in paths}, folder.resolve().name or "text", folder)


def cut(texts: Mapping[str, str], name: str, source: object) -> Arrays:
    """Returns rows of characters, their next characters, and the author of every row.

    Args:
        texts: name of an author -> text.
        name: of the data set.
        source: where the texts came from, named in errors.

    Returns:
        x int32 [T, L] and y int32 [T, L], numbers of characters in the order of their code points; `class_names`, the
        characters; `groups`, the numbers of the authors in the order of `texts`.

    Raises:
        UsageError: a text without a whole row, or too many different characters.

    >>> arrays = cut({"a": "ab" * 33, "b": "b" * 65}, "letters", "letters")
    >>> arrays.x[:, :3].tolist(), arrays.y[:, :3].tolist(), arrays.groups.tolist()
    ([[0, 1, 0], [1, 1, 1]], [[1, 0, 1], [1, 1, 1]], [0, 1])
    """
    characters = sorted(set().union(*texts.values()))
    if len(characters) > MAX_CHARACTERS:
        raise UsageError(
            f"{source}: the texts have {len(characters):,} different characters, of at most {MAX_CHARACTERS:,};"
            " replace rare ones"
        )
    numbers = {character: number for number, character in enumerate(characters)}
    rows, labels, groups = [], [], []
    for group, (author, text) in enumerate(texts.items()):
        count = (len(text) - 1) // LENGTH
        if count < 1:
            raise UsageError(f"{source}: {author} has {len(text)} characters, fewer than {LENGTH + 1}; remove its file")
        codes = np.array([numbers[character] for character in text], np.int32)
        rows.append(codes[: count * LENGTH].reshape(count, LENGTH))
        labels.append(codes[1 : count * LENGTH + 1].reshape(count, LENGTH))
        groups.append(np.full(count, group, np.int32))
    x, y = np.concatenate(rows), np.concatenate(labels)
    class_names = tuple("space" if character == " " else one_line(character) for character in characters)
    return Arrays(name, x, y, class_names, len(x), np.concatenate(groups))


def _text(path: Path) -> str:
    """Returns the text of a file, its line ends as newlines."""
    files.refuse_special(path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not text in UTF-8 ({files.reason(error)}); convert it") from None
