"""Digests that show whether the files of a run folder are those that the run wrote.

The seal of a checkpoint (`checkpoints/000040/seal.json`) holds the digests of the history up to its round, of
`layers.json`, `partition.json`, the data and the partition. `manifest.json` and `summary.json` end in a digest of
themselves. Accidents and careless edits are found; a forger who rewrites every seal is not.
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
OWN = "sha256"
"""Key of the digest that a JSON object holds of its other entries."""

LINE = 8
"""Hexadecimal digits of a line's CRC-32 in `HistorySeal.lines`."""

About = dict[str, Any]
"""What a checkpoint says of itself, plain JSON."""


class HistorySeal(NamedTuple):
    """Digests of the whole lines of history.jsonl up to some round."""

    size: int = 0
    """bytes"""
    crc: int = 0
    """CRC-32 of these bytes"""
    lines: str = ""
    """CRC-32 of every line, eight hexadecimal digits each: they show which lines of a damaged file are intact"""
    chain: str = ""
    """SHA-256 over lines: c_i = SHA-256(c_{i-1} line_i), c_0 empty"""

    def as_json(self) -> dict[str, Any]:
        """The entries of a seal."""
        return {"history": [self.size, self.crc], "lines": self.lines, "chain": self.chain}


def extend(seal: HistorySeal, text: bytes) -> HistorySeal:
    """The seal of the history with more lines.

    >>> extend(extend(HistorySeal(), b"one\\n"), b"two\\n") == extend(HistorySeal(), b"one\\ntwo\\n")
    True
    """
    crcs, chain = [], seal.chain
    for line in split_lines(text):
        crcs.append(f"{zlib.crc32(line):08x}")
        chain = hashlib.sha256(chain.encode() + line).hexdigest()
    return HistorySeal(seal.size + len(text), zlib.crc32(text, seal.crc), seal.lines + "".join(crcs), chain)


def split_lines(text: bytes) -> list[bytes]:
    """The lines with their newlines; only a newline ends one."""
    return [line + b"\n" for line in text.split(b"\n")[:-1]] + [line for line in text.split(b"\n")[-1:] if line]


def history_fits(about: Mapping[str, Any], text: bytes) -> bool:
    """Whether the history begins with the lines that a seal vouches for."""
    size, crc = about["history"]
    if len(text) < size or zlib.crc32(text[:size]) != crc:
        return False
    return "chain" not in about or extend(HistorySeal(), text[:size]).chain == about["chain"]


def intact_lines(about: Mapping[str, Any], text: bytes) -> dict[int, bytes]:
    """The lines of a damaged history that are as they were sealed, by round; wherever they stand."""
    known = {int(crc, 16): number for number, crc in enumerate(line_crcs(about), 1)}
    found = {known.get(zlib.crc32(line)): line for line in split_lines(text)}
    return {number: line for number, line in found.items() if number is not None}


def line_crcs(about: Mapping[str, Any]) -> Sequence[str]:
    """CRC-32 of every sealed line; none in a seal of an earlier version."""
    lines = about.get("lines", "")
    return [lines[i : i + LINE] for i in range(0, len(lines), LINE)]


def text_digest(text: str) -> str:
    """SHA-256 of a file's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def with_digest(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object that ends in a digest of its other entries."""
    rest = {name: entry for name, entry in value.items() if name != OWN}
    return rest | {OWN: text_digest(json.dumps(rest))}


def has_own_digest(value: Mapping[str, Any]) -> bool:
    """Whether an object of `with_digest` is as it was written; one without a digest is of an earlier version."""
    return OWN not in value or with_digest(value)[OWN] == value[OWN]


# --- checkpoints


def name(number: int) -> str:
    """The folder of a checkpoint."""
    return f"{number:06d}"


def listed(run: Path) -> list[Path]:
    """The folders of a run's checkpoints, oldest first, whole or not."""
    found = (path for path in (run / FOLDER).glob("*") if path.name.isdecimal() and path.name.isascii())
    return sorted(found, key=lambda path: int(path.name))


def newest(run: Path) -> int:
    """Rounds done at the newest checkpoint that was completed; 0 where there is none. It is not verified."""
    return max((int(path.name) for path in listed(run) if (path / SEAL).is_file()), default=0)


def sealed(seal: About) -> str:
    """The text of a checkpoint's seal, which vouches for itself too."""
    text = json.dumps(seal)
    return json.dumps({"crc": zlib.crc32(text.encode())})[:-1] + ", " + text[1:]


def unsealed(path: Path) -> About:
    """The seal of a checkpoint's folder.

    Raises:
        ValueError: there is none, or it is damaged.
        RuntimeError: it is of another format.
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
