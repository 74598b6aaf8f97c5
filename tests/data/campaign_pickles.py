"""Loads mutated and assembled pickles: each must give uint8 arrays or a UsageError of one line.

Run by test_pickles.py in a separate process; the argument is the number of examples.
"""

import pickle
import sys

import numpy as np
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.readers import pickles

VALID = [
    pickle.dumps({b"data": np.arange(24, dtype=np.uint8).reshape(2, 12), b"labels": [1, 2], b"names": [b"a"]}, p)
    for p in (2, 3, 4)
]
VALID += [pickle.dumps(np.asfortranarray(np.zeros((3, 2), d)), p) for d in ("u1", "f4", "O", "i1,f8") for p in (2, 4)]
OPCODES = b"().0123ABCEGJKMNRTUXabehjlpqrstu]}\x80\x81\x85\x86\x87\x88\x89\x8a\x8b\x8c\x93\x94"
CODES = [bytes([code]) for code in OPCODES]
NAMES = [b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", b"cnumpy.core.multiarray\n_reconstruct\n", b"c_codecs\nencode\n"]
PIECE = st.sampled_from(CODES + NAMES) | st.binary(max_size=6)
EDIT = st.tuples(st.floats(0, 1), st.integers(0, 6), PIECE)


def check(content):
    try:
        result = pickles.loads(content, "file")
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        for part in result.values() if isinstance(result, dict) else [result]:
            if isinstance(part, np.ndarray):
                assert part.dtype == np.uint8 and part.nbytes <= len(content)
                part.sum(), part.copy()


@seed(0)
@settings(max_examples=int(sys.argv[1]), deadline=None, database=None)
@given(st.sampled_from(VALID), st.lists(EDIT, min_size=1, max_size=4))
def check_mutated(content, edits):
    for fraction, num_removed, piece in edits:
        offset = int(fraction * len(content))
        content = content[:offset] + piece + content[offset + num_removed :]
    check(content)


@seed(0)
@settings(max_examples=int(sys.argv[1]), deadline=None, database=None)
@given(st.lists(PIECE, max_size=30))
def check_assembled(pieces):
    check(b"\x80\x02" + b"".join(pieces) + b".")


check_mutated()
check_assembled()
