"""The search for reference cycles is paused where objects live on, and never left off."""

import gc

from fedvg_jax.core import collection


def test_the_search_is_on_again_after_an_error_and_after_the_outermost_context():
    assert gc.isenabled()
    try:
        with collection.paused():
            with collection.paused():
                pass
            assert not gc.isenabled()
            raise ValueError
    except ValueError:
        assert gc.isenabled()


def test_a_search_that_is_off_stays_off():
    gc.disable()
    try:
        with collection.paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
