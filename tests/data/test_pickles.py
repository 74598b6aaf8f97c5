"""The reader of pickled byte arrays: plain ones are read, others refused and not executed."""

import pickle

import numpy as np
import pytest
from support.files import usage_error

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
        (forged("K\x02K\x03\x86"), ["not a complete pickle"]),
        (forged(SHAPE, dtype="O8"), ["'O8'", "only 'u1'"]),
        (forged(SHAPE, content="N"), ["not a complete pickle"]),
        (b"", ["not a complete pickle"]),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", ["os.system"]),
        (b"\x80\x02c__builtin__\nprint\nU\x04ran!\x85R.", ["__builtin__.print"]),
    ],
)
def test_other_pickle_is_refused_in_one_line_and_never_executed(content, parts, capsys):
    with usage_error("file: ", *parts, "fetch it again"):
        pickles.loads(content, "file")
    assert capsys.readouterr().out == ""


def test_state_of_a_dtype_changes_no_array():
    assert pickles.loads(forged(SHAPE, state="U\x01xX\x00\x00\x00\x00\x86"), "file").dtype == np.uint8
