"""Writes event files of TensorBoard by its own record format. TensorFlow is not needed.

The records are written here, not by a summary writer's thread, so that a full disk raises an error.
"""

# pyright: reportAttributeAccessIssue=false
# protobuf makes the classes of its messages when a module is imported

from __future__ import annotations

import itertools
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fedvg_jax.views.tracking.writers import Ending, Scalars, TrackedRun, Writer

VERSION = "brain.Event:2"
"""First record of every event file."""

RGBA = 4
"""Colour space of Matplotlib's PNG files."""


def open_writer(run: TrackedRun) -> Writer:
    """Returns a writer of a new event file in the run's folder.

    A resumed run first records that it goes on after `run.num_tracked` rounds; TensorBoard then hides what an
    interrupted part has recorded of later rounds.
    """
    assert run.folder is not None, "`trackers.require` refuses runs without a folder"
    from tensorboard.compat.proto import event_pb2  # pyright: ignore[reportMissingImports]  an extra
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # pyright: ignore[reportMissingImports]
    from tensorboard.summary.writer.record_writer import RecordWriter  # pyright: ignore[reportMissingImports]

    file = _new_file(run.folder)
    records = RecordWriter(file)

    def write(**content: Any) -> None:
        records.write(event_pb2.Event(wall_time=time.time(), **content).SerializeToString())

    def log(scalars: Scalars) -> None:
        for number, values in scalars.items():
            write(step=number, summary=_summary(values))
        _flush(file)

    def close(ending: Ending) -> None:
        for name, path in ending.pictures.items():
            write(step=ending.num_rounds, summary=_picture(name, path))
        _flush(file)
        file.close()

    write(file_version=VERSION)
    if run.num_tracked:
        session = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        write(step=run.num_tracked + 1, session_log=session)
    else:
        write(step=0, summary=_settings(run.settings))
        write(step=0, summary=hparams_pb(_plain(run.settings), trial_id=run.name))
    _flush(file)
    return Writer(str(run.folder), {}, log, close)


def _new_file(folder: Path) -> BinaryIO:
    """Opens an event file that sorts behind earlier ones of the folder."""
    for number in itertools.count():
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{number}"
        if not (folder / name).exists():
            return (folder / name).open("xb")
    raise AssertionError("itertools.count has no end")


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _summary(values: Mapping[str, float]) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportMissingImports]

    return Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])


def _settings(settings: Mapping[str, Any]) -> Any:
    """Returns the settings as JSON, which the tab of texts shows."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata  # pyright: ignore[reportMissingImports]
    from tensorboard.compat.proto.tensor_pb2 import TensorProto  # pyright: ignore[reportMissingImports]
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto  # pyright: ignore[reportMissingImports]

    lines = json.dumps(dict(settings), indent=2, default=str).splitlines()
    text = "\n".join(f"    {line}" for line in lines).encode()  # indented, Markdown shows it as it is
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype="DT_STRING", string_val=[text], tensor_shape=shape)
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    return Summary(value=[Summary.Value(tag="settings/text_summary", metadata=metadata, tensor=tensor)])


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings as hyperparameters may be: booleans, numbers and texts."""
    return {n: value if isinstance(value, (bool, int, float)) else str(value) for n, value in settings.items()}


def _picture(name: str, path: Path) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportMissingImports]

    png = path.read_bytes()
    width, height = (int.from_bytes(png[i : i + 4], "big") for i in (16, 20))  # of the header IHDR
    image = Summary.Image(encoded_image_string=png, width=width, height=height, colorspace=RGBA)
    return Summary(value=[Summary.Value(tag=name, image=image)])
