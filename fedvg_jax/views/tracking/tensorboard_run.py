"""Writes event files of TensorBoard, with the record writer and the messages of its package; needs no TensorFlow.

Its `EventFileWriter` is not used: at a full disk the thread of that writer prints a traceback.
"""

# pyright: reportAttributeAccessIssue=false
# protobuf makes the classes of its messages when a module is imported

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from fedvg_jax.views.tracking import Scalars, TrackedRun, Writer


def open_writer(run: TrackedRun) -> Writer:
    """Returns a writer of a new event file in the run's folder.

    A resumed run first records after how many rounds it goes on; TensorBoard then hides what an
    interrupted part has recorded of later rounds.
    """
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportMissingImports]  an extra
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportMissingImports]
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # pyright: ignore[reportMissingImports]
    from tensorboard.plugins.text.summary_v2 import text_pb  # pyright: ignore[reportMissingImports]
    from tensorboard.summary.writer.record_writer import RecordWriter  # pyright: ignore[reportMissingImports]

    assert run.folder is not None, "`tracking.require` refuses runs without a folder"
    # TensorBoard reads a folder's files by name
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    name = (
        f"events.out.tfevents.{seconds:010d}.{nanoseconds:09d}.{socket.gethostname()}.{os.getpid()}"
    )
    file = (run.folder / name).open("xb")
    records = RecordWriter(file)

    def write(*messages: dict[str, Any]) -> None:
        for content in messages:
            records.write(Event(wall_time=time.time(), **content).SerializeToString())
        file.flush()
        os.fsync(file.fileno())

    def log(scalars: Scalars) -> None:
        def summary(values: dict[str, float]) -> Any:
            return Summary(
                value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            )

        write(*({"step": number, "summary": summary(values)} for number, values in scalars.items()))

    write({"file_version": "brain.Event:2"})
    if num_tracked := run.stored["rounds"]:
        write({"step": num_tracked + 1, "session_log": SessionLog(status=SessionLog.START)})
    else:
        lines = json.dumps(dict(run.settings), indent=2, default=str).splitlines()
        text = "\n".join(f"    {line}" for line in lines)  # indented, Markdown shows it as it is
        plain = {
            n: v if isinstance(v, (bool, int, float)) else str(v) for n, v in run.settings.items()
        }
        write(
            {"summary": text_pb("settings/text_summary", text)},
            {"summary": hparams_pb(plain, trial_id=run.name)},
        )

    def close(status: str, summary: Mapping[str, float], num_rounds: int) -> None:
        log({num_rounds: {f"summary/{name}": value for name, value in summary.items()}})
        file.close()

    return Writer(str(run.folder), {}, log, close)
