"""`on_records` of a run gets the records of every chunk, and leaves the chunks as long as they are."""

import functools
import itertools
from dataclasses import replace

import pytest
from support import linear
from support.small_sweeps import assert_equal_runs

import fedvg_jax as fv
from fedvg_jax.runs import chunks
from fedvg_jax.runs.record import history

SETTINGS = fv.Config(rounds=9, clients=4, weighting="uniform", alpha=10.0, eval_every=4)
run = functools.partial(fv.run, **linear.GIVEN)


@pytest.fixture(autouse=True)
def no_chunk_ends_by_the_clock(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_SECONDS", 1e6)


def stop_at(number):
    """Returns a function of records that ends the run with the chunk of that round."""

    def stop(records):
        if records[-1]["round"] >= number:
            raise fv.StopRun("enough")

    return stop


def chunk_lengths(records):
    """The rounds of each chunk; its rounds have the same seconds."""
    return [
        len(list(chunk))
        for _, chunk in itertools.groupby(records, key=lambda record: record["seconds"])
    ]


def test_on_records_gets_copies_of_the_records_of_the_history():
    received = []

    def change(records):
        received.extend(history.by_round(records))
        for record in records:
            record["weights"].clear()
            record.clear()

    changed, whole = run(SETTINGS, on_records=change), run(SETTINGS)
    assert received == history.by_round(changed.records)
    assert_equal_runs(changed, whole)


def test_on_records_is_called_once_for_a_chunk_and_shortens_none():
    received = []
    finished, alone = run(SETTINGS, on_records=received.append), run(SETTINGS)
    lengths = [len(records) for records in received]
    assert (
        lengths
        == chunk_lengths(finished.records)
        == chunk_lengths(alone.records)
        == [1, 1, 2, 4, 1]
    )


def test_on_records_ends_a_run_after_its_chunk_which_is_then_evaluated(tmp_path):
    settings = replace(SETTINGS, out=tmp_path / "run")
    first = run(settings, on_records=stop_at(1))
    assert len(first.records) == 1 and "test_loss" in first.records[0]
    assert (first.summary["stopped_early"], first.summary["stopped_by"]) == (
        "callback: enough",
        None,
    )
    again = run(replace(settings, resume=str(settings.out)), on_records=stop_at(1))
    assert again.records == first.records == history.read(tmp_path / "run")


def test_on_records_of_a_resumed_run_first_gets_the_records_before_its_checkpoint(tmp_path):
    received, settings = [], replace(SETTINGS, out=tmp_path / "run")
    run(settings, on_records=stop_at(4))
    resumed = replace(settings, resume=str(settings.out), rounds=10)
    finished = run(resumed, on_records=received.append)
    assert [len(records) for records in received] == [4, 1, 1, 2, 2]
    assert list(itertools.chain(*received)) == finished.records


def test_on_records_gets_no_round_after_the_one_that_diverged():
    received = []
    with pytest.raises(fv.DivergedError) as error:
        run(replace(SETTINGS, lr=3.0, eval_every=9, nonfinite="raise"), on_records=received.append)
    assert [len(records) for records in received] == [1, 1, 1], "the third chunk has seven rounds"
    assert list(itertools.chain(*received)) == error.value.history.records
