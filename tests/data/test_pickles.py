"""The reader of pickled byte arrays: valid pickles are read, forged and mutated ones are refused."""

import pickle
import random

import numpy as np
import pytest
from support.cases import naming
from support.files import usage_error

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.readers import pickles

CONTENT = {
    "data": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "order": np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3)),
    b"labels": [0, 1, 2**40, -1, True, None, 0.5, (1,), (1, 2, 3, 4)],
    b"names": [b"a.png", "b\u00fc", b"\xff\x00"],
}


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_arrays_text_numbers_and_containers_equal_those_of_pickle(protocol):
    result = pickles.loads(pickle.dumps(CONTENT, protocol), "file")
    assert list(result) == list(CONTENT)
    for name in ("data", "order"):
        assert result[name].dtype == np.uint8
        np.testing.assert_array_equal(result[name], CONTENT[name])
    assert result[b"labels"] == CONTENT[b"labels"] and result[b"names"] == CONTENT[b"names"]


def test_array_referenced_twice_is_one_array():
    array = np.arange(5, dtype=np.uint8)
    first, second = pickles.loads(pickle.dumps([array, array], 2), "file")
    assert first is second and first.tolist() == array.tolist()


def forged(shape, dtype="u1", state="N", content="U\x04abcd") -> bytes:
    """Returns an array's pickle with replaced parts of its state."""
    text = (
        "\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
        f"{shape}cnumpy\ndtype\nU{chr(len(dtype))}{dtype}K\x00K\x01\x87R(K\x03U\x01|{state}NNJ\xff\xff\xff\xff"
        f"J\xff\xff\xff\xffK\x00tb\x89{content}tb."
    )
    return text.encode("latin1")


SHAPE = "K\x02K\x02\x86"


def test_pickle_without_forged_parts_is_read():
    assert pickles.loads(forged(SHAPE), "file").tobytes() == b"abcd"


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (forged("K\x02K\x03\x86"), ["[2, 3]", "do not fit"]),
        (forged("J\xff\xff\xff\xffJ\xfc\xff\xff\xff\x86"), ["odd shape"]),
        (forged("\x88K\x04\x86"), ["odd shape"]),
        (forged(")"), ["odd shape"]),
        (forged("(" + "K\x01" * 70 + "t"), ["odd shape"]),
        (forged("(K\x00" + "J\xff\xff\xff\x7f" * 3 + "t", content="U\x00"), ["odd shape"]),
        (forged(SHAPE, dtype="O8"), ["'O8'", "only 'u1'"]),
        (forged(SHAPE, state="U\x01xX\x00\x00\x00\x00\x86"), ["fields"]),
        (forged(SHAPE, content="N"), ["do not fit"]),
        (b"\x80\x02cnumpy\nndarray\n)R.", ["not a complete pickle"]),
        (b"\x80\x02cnumpy\ndtype\n}b.", ["not a complete pickle"]),
        (b"\x80\x02cnumpy\ndtype\nN" + b"q\x00h\x00\x86" * 20 + b"\x85R.", ["dtype 'tuple'"]),
        (b"\x80\x02})" + b"\x85" * 200_000 + b"Ns.", ["32 tuples"]),
        (b"", ["not a complete pickle"]),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", ["os.system"]),
        (b"\x80\x02c__builtin__\nprint\nU\x04ran!\x85R.", ["__builtin__.print"]),
        (b"\x80\x02Nr\xff\xff\xff\xff.", ["beyond its opcodes"]),
        (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7fa.", ["not a complete pickle"]),
        (b"\x80\x02\x8b\xff\xff\x00\x00" + b"\x7f" * 65535 + b".", ["more than 64 bits"]),
    ],
)
def test_forged_pickle_is_refused_in_one_line_and_never_executed(content, parts, capsys):
    with usage_error("file: ", *parts, "fetch it again"):
        pickles.loads(content, "file")
    assert capsys.readouterr().out == ""


def test_deep_nesting_is_read_and_freed_without_recursion():
    depth = 60_000
    assert len(pickles.loads(b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".", "file")) == 1


def test_repeated_copies_of_text_and_arrays_are_refused():
    once = b"X\x10\x27\x00\x00" + b"a" * 10_000 + b"q\x00"
    again = b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R"
    array = forged("K\xfa\x85", content="h\x00")[2:-1]
    for content in ((once + again * 1000), b"U\xfa" + b"a" * 250 + b"q\x00" + array * 1000):
        with usage_error("32 tuples"):
            pickles.loads(b"\x80\x02](" + content + b"e.", "file")


def test_pickle_beyond_a_limit_is_refused(monkeypatch):
    content = pickle.dumps(list(range(100)), 2)
    monkeypatch.setattr(pickles, "MAX_OPCODES", 99)
    with usage_error("more than 99 opcodes"):
        pickles.loads(content, "file")
    monkeypatch.setattr(pickles, "MAX_BYTES", 99)
    with usage_error(f"{len(content)} bytes", "at most 99"):
        pickles.loads(content, "file")


VALID = [
    pickle.dumps({b"data": np.arange(24, dtype=np.uint8).reshape(2, 12), b"labels": [1, 2], b"names": [b"a"]}, p)
    for p in (2, 3, 4)
]
VALID += [pickle.dumps(np.asfortranarray(np.zeros((3, 2), d)), p) for d in ("u1", "f4", "O", "i1,f8") for p in (2, 4)]
OPCODES = b"().0123ABCEGJKMNRTUXabehjlpqrstu]}\x80\x81\x85\x86\x87\x88\x89\x8a\x8b\x8c\x93\x94"
PIECES = [bytes([code]) for code in OPCODES]
PIECES += [b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", b"cnumpy.core.multiarray\n_reconstruct\n", b"c_codecs\nencode\n"]


def check_read_or_refused(content):
    try:
        result = pickles.loads(content, "file")
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        for part in result.values() if isinstance(result, dict) else [result]:
            if isinstance(part, np.ndarray):
                assert part.dtype == np.uint8 and part.nbytes <= len(content)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # pickletools, of mutated escapes
@pytest.mark.parametrize("examples", [2000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_mutated_and_assembled_pickles_are_read_or_refused(examples):
    """Each gives uint8 arrays or a line; the campaign of 200,000 runs with -m slow."""
    stream = random.Random(0)

    def piece():
        return stream.randbytes(stream.randrange(7)) if stream.random() < 0.3 else stream.choice(PIECES)

    for _ in range(examples):
        mutated = stream.choice(VALID)
        for _ in range(stream.randint(1, 4)):
            offset = stream.randrange(len(mutated) + 1)
            mutated = mutated[:offset] + piece() + mutated[offset + stream.randrange(7) :]
        assembled = b"\x80\x02" + b"".join(piece() for _ in range(stream.randrange(31))) + b"."
        for content in (mutated, assembled):
            with naming(content):
                check_read_or_refused(content)
