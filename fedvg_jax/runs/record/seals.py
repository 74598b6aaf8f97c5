"""Digests that show whether the files of a run folder are as the run wrote them.

The seal of a checkpoint (`checkpoints/000040/seal.json`) holds the digests of the history up to its round, of
`layers.json`, `partition.json`, the data and the partition. `manifest.json` and `summary.json` end in a digest of
themselves. They detect accidental changes, not tampering.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files

FOLDER = "checkpoints"
SEAL = "seal.json"
FORMAT = 2

DIGEST = "sha256"
"""Key of the digest that a JSON object holds of its other entries."""

SealEntries = dict[str, Any]
"""Content of a seal, plain JSON."""


def history_fits(sealed: Sequence[Any], text: bytes) -> bool:
    """Returns whether a history begins with the sealed lines; what follows them is not compared.

    Args:
        sealed: size of these lines in bytes, and their SHA-256.
        text: of history.jsonl.
    """
    size, digest = sealed
    prefix = text[:size]
    return len(prefix) == size and hashlib.sha256(prefix).hexdigest() == digest


def text_digest(text: str) -> str:
    """Returns the SHA-256 of a file's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def with_digest(value: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a JSON object that ends in a digest of its other entries."""
    entries = {name: entry for name, entry in value.items() if name != DIGEST}
    return entries | {DIGEST: text_digest(json.dumps(entries))}


def has_own_digest(value: Mapping[str, Any]) -> bool:
    """Returns whether an object of `with_digest` is as it was written."""
    return value.get(DIGEST) == with_digest(value)[DIGEST]


def is_run(path: Path) -> bool:
    """Returns whether a path is a run folder or one of its checkpoints, and not a file or folder of weights alone."""
    return any((path / name).exists() for name in (FOLDER, SEAL, "history.jsonl"))


def folder_name(number: int) -> str:
    """Returns the name of the folder of a round's checkpoint."""
    return f"{number:06d}"


def checkpoint_folders(run: Path) -> list[Path]:
    """Returns the folders of a run's checkpoints, oldest first, complete or not.

    Raises:
        UsageError: their folder cannot be read, so that it is unknown whether there are any.
    """
    try:
        paths = list((run / FOLDER).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UsageError(f"{run / FOLDER} cannot be read: {files.reason(error)}") from None
    return sorted((p for p in paths if p.name.isdecimal() and p.name.isascii()), key=lambda path: int(path.name))


def newest_round(run: Path) -> int:
    """Returns the round of the newest complete checkpoint, 0 where there is none. It is not verified."""
    return max((int(path.name) for path in checkpoint_folders(run) if (path / SEAL).is_file()), default=0)


def seal_text(seal: SealEntries) -> str:
    """Returns the text of a checkpoint's seal, with a CRC-32 of its own entries."""
    text = json.dumps(seal)
    return json.dumps({"crc": zlib.crc32(text.encode())})[:-1] + ", " + text[1:]


def read_seal(path: Path) -> SealEntries:
    """Returns the seal of a checkpoint's folder.

    Raises:
        ValueError: there is none, or it is damaged.
        RuntimeError: it has another format.
    """
    if not os.path.exists(path / SEAL):  # Path.exists raises in a folder without permission
        raise ValueError("half-written")
    with contextlib.suppress(UsageError):  # it cannot be read, or is no JSON object
        seal = files.read_object(path / SEAL)
        if seal.pop("crc", None) == zlib.crc32(json.dumps(seal).encode()):
            if seal.get("format") != FORMAT:
                raise RuntimeError(f"format {seal.get('format')}, this version reads {FORMAT}")
            return seal
    raise ValueError(f"{SEAL} is damaged")
