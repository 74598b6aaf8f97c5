"""Digests that show whether the files of a run folder are as the run wrote them.

The seal of a checkpoint (`checkpoints/000040/seal.json`) holds the digests of the history up to its round, of
`layers.json`, `partition.json`, the data and the partition. `manifest.json` and `summary.json` end in a digest of
themselves. They detect accidents and careless edits, not a forger who rewrites every seal.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.core import files

FOLDER = "checkpoints"
SEAL = "seal.json"
FORMAT = 1
DIGEST = "sha256"
"""Key of the digest that a JSON object holds of its other entries."""

LINE_DIGITS = 8
"""Hexadecimal digits of a line's CRC-32 in `HistorySeal.lines`."""

SealEntries = dict[str, Any]
"""Content of a seal, plain JSON."""


class HistorySeal(NamedTuple):
    """Digests of the lines of history.jsonl up to a round."""

    size: int = 0
    """bytes"""
    crc: int = 0
    """CRC-32 of these bytes"""
    lines: str = ""
    """CRC-32 of every line, eight hexadecimal digits each; shows which lines of a damaged file are intact"""
    chain: str = ""
    """SHA-256 over lines: c_i = SHA-256(c_{i-1} line_i), c_0 empty"""

    def as_json(self) -> dict[str, Any]:
        """Returns the entries of a seal."""
        return {"history": [self.size, self.crc], "lines": self.lines, "chain": self.chain}


def extend(seal: HistorySeal, text: bytes) -> HistorySeal:
    r"""Returns the seal of the history with more lines.

    >>> extend(extend(HistorySeal(), b"one\n"), b"two\n") == extend(HistorySeal(), b"one\ntwo\n")
    True
    """
    crcs, chain = [], seal.chain
    for line in split_lines(text):
        crcs.append(f"{zlib.crc32(line):08x}")
        chain = hashlib.sha256(chain.encode() + line).hexdigest()
    return HistorySeal(seal.size + len(text), zlib.crc32(text, seal.crc), seal.lines + "".join(crcs), chain)


def split_lines(text: bytes) -> list[bytes]:
    """Returns the lines with their newlines; only a newline ends a line."""
    return [line + b"\n" for line in text.split(b"\n")[:-1]] + [line for line in text.split(b"\n")[-1:] if line]


def history_fits(seal: Mapping[str, Any], text: bytes) -> bool:
    """Returns whether the history begins with the sealed lines."""
    size, crc = seal["history"]
    if len(text) < size or zlib.crc32(text[:size]) != crc:
        return False
    return "chain" not in seal or extend(HistorySeal(), text[:size]).chain == seal["chain"]


def intact_lines(seal: Mapping[str, Any], text: bytes) -> dict[int, bytes]:
    """Returns the lines of a damaged history that are as they were sealed, by round, at any position."""
    round_of = {int(crc, 16): number for number, crc in enumerate(line_crcs(seal), 1)}
    lines = {round_of.get(zlib.crc32(line)): line for line in split_lines(text)}
    return {number: line for number, line in lines.items() if number is not None}


def line_crcs(seal: Mapping[str, Any]) -> Sequence[str]:
    """Returns the CRC-32 of every sealed line; empty for a seal of an earlier version."""
    lines = seal.get("lines", "")
    return [lines[i : i + LINE_DIGITS] for i in range(0, len(lines), LINE_DIGITS)]


def text_digest(text: str) -> str:
    """Returns the SHA-256 of a file's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def with_digest(value: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a JSON object that ends in a digest of its other entries."""
    entries = {name: entry for name, entry in value.items() if name != DIGEST}
    return entries | {DIGEST: text_digest(json.dumps(entries))}


def has_own_digest(value: Mapping[str, Any]) -> bool:
    """Returns whether an object of `with_digest` is as it was written.

    It is true without a digest, which earlier versions did not write.
    """
    return DIGEST not in value or with_digest(value)[DIGEST] == value[DIGEST]


# --- checkpoints


def folder_name(number: int) -> str:
    """Returns the name of the folder of a round's checkpoint."""
    return f"{number:06d}"


def checkpoint_folders(run: Path) -> list[Path]:
    """Returns the folders of a run's checkpoints, oldest first, complete or not."""
    folders = (path for path in (run / FOLDER).glob("*") if path.name.isdecimal() and path.name.isascii())
    return sorted(folders, key=lambda path: int(path.name))


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
    try:
        text = files.read_regular(path / SEAL).decode("utf-8")
    except FileNotFoundError:
        raise ValueError("half-written") from None
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"{SEAL} is damaged") from None
    with contextlib.suppress(ValueError, LookupError, AttributeError, TypeError, RecursionError):
        seal = json.loads(text)
        crc = seal.pop("crc")
        if crc == zlib.crc32(json.dumps(seal).encode()):
            if seal["format"] != FORMAT:
                raise RuntimeError(f"format {seal['format']}, this version reads {FORMAT}")
            return seal
    raise ValueError(f"{SEAL} is damaged")
