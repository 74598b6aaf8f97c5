"""`python -m fedvg_jax.prepare NAME --data-dir DIR`: reads a data set, checks and caches it, and shows it.

Prints the images per class and the sizes of the clients, and draws a contact sheet (images.png) and who holds how much
of which class (clients.png) into --out DIR (default: runs/data-NAME).

NAME is a data set as `--dataset` of `python -m fedvg_jax.sim` takes it, and every setting of a run may follow: --alpha,
--clients, --partition, --image-size, --config FILE, ... `--download` has tensorflow-datasets fetch and prepare
a set called tfds:NAME into --data-dir; nothing is ever downloaded without it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from fedvg_jax import sim
from fedvg_jax.config import Config, presets
from fedvg_jax.core import files
from fedvg_jax.core.types import UsageError

MOST_CLASSES = 30
"""Lines of the table of classes; of more, the largest and the smallest are told."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 for a mistake of the user's, told in one line; 130 after Ctrl-C."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(argv):
        print(f"{__doc__}\nData sets: {', '.join(presets.DATASETS)}, tfds:NAME")
        return 0
    return sim.guarded(lambda: prepare(*parse(argv)), stopped="interrupted")


def parse(argv: Sequence[str]) -> tuple[Config, bool]:
    """The settings of a command line, and whether it asks for a download."""
    if not argv or argv[0].startswith("-"):
        raise UsageError(
            f"prepare needs the name of a data set first: {', '.join(presets.DATASETS)}, or tfds:NAME;"
            " python -m fedvg_jax.prepare --help tells more"
        )
    name, *rest = argv
    config = sim.parse(["--dataset", name, *(flag for flag in rest if flag != "--download")])
    if "--download" not in rest:
        return config, False
    if not name.startswith("tfds:") or config.data_dir is None:
        raise UsageError(f"--download is for tfds:NAME with a --data-dir DIR, got {name}; other sets are never fetched")
    return config, True


def prepare(config: Config, downloads: bool) -> int:
    """Reads it, shows it, and leaves the pictures."""
    from rich.console import Console

    from fedvg_jax.data.readers import tfds
    from fedvg_jax.runs import simulation
    from fedvg_jax.views import display

    console = Console()
    files.private_folder(config.cache_dir, config.trust_cache)
    if downloads:
        tfds.download(config.dataset.removeprefix(tfds.PREFIX), config.data_dir)
    with display.reads(console) as reading:
        arrays = simulation.load_data(config, reading)
    console.print(*headline(arrays), sep="\n", highlight=False, soft_wrap=True)
    console.print(classes(arrays))
    with display.draws(console) as progress:
        partition = simulation.make_partition(config, arrays, progress)
    said = f"{config.clients} clients, partition {config.partition}"
    said += f", alpha {config.alpha:g}" if "alpha" in display.dealt(config.partition, config.alpha) else ""
    console.print(said, *sizes(arrays, partition), sep="\n", highlight=False, soft_wrap=True)
    folder = config.out or Path("runs") / f"data-{config.dataset.replace(':', '-').replace('/', '-')}"
    console.print(draw(folder, arrays, partition, f"{arrays.name}: {said}"), highlight=False, soft_wrap=True)
    return 0


def headline(arrays) -> list[str]:
    """What it is, and whether the paper's has as many images."""
    shape, wanted = " x ".join(map(str, arrays.x.shape[1:])), presets.NUM_IMAGES.get(arrays.name)
    lines = [f"{arrays.name}: {len(arrays.y):,} images {shape}, {len(arrays.class_names)} classes"]
    if wanted:
        lines.append("as many as the paper" if wanted == len(arrays.y) else f"the paper counts {wanted:,}")
    return lines


def classes(arrays):
    """Images per class and official split, as a table."""
    import numpy as np
    from rich.table import Table

    num_classes, first = len(arrays.class_names), arrays.num_train
    train, rest = (np.bincount(y, minlength=num_classes) for y in (arrays.y[:first], arrays.y[first:]))
    order = np.arange(num_classes)
    if num_classes > MOST_CLASSES:
        order = np.argsort(-(train + rest), kind="stable")
    half = MOST_CLASSES // 2
    table = Table(show_footer=True)
    totals = ("all", f"{train.sum():,}", f"{rest.sum():,}", f"{len(arrays.y):,}", "")
    for column, total in zip(("class", "training", "other splits", "images", "share"), totals, strict=True):
        is_name = column == "class"
        least = None if is_name else max(len(column), len(total))
        table.add_column(
            column, total, justify="left" if is_name else "right", no_wrap=True, min_width=least, max_width=32
        )
    for place, c in enumerate(order):
        if num_classes > MOST_CLASSES and half <= place < num_classes - half:
            if place == half:
                table.add_row(f"... {num_classes - 2 * half} more", "", "", "", "")
            continue
        count = train[c] + rest[c]
        row = (f"{train[c]:,}", f"{rest[c]:,}", f"{count:,}", f"{count / len(arrays.y):.1%}")
        table.add_row(arrays.class_names[c], *row)
    return table


def sizes(arrays, partition) -> list[str]:
    """Of the clients and of the shared sets, in two lines."""
    import numpy as np

    from fedvg_jax.views import pictures

    held = sum(pictures.counts_by_part(arrays, partition).values())
    size, num = held.sum(1), (held > 0).sum(1)
    parts = {name: sum(map(len, rows)) for name, rows in partition._asdict().items()}
    return [
        f"images of a client: {size.min():,} to {size.max():,}, median {np.median(size):,.0f};"
        f" its classes: {num.min()} to {num.max()}, mean {num.mean():.1f}",
        f"{parts['train']:,} to train, {parts['val']:,} to validate, {parts['test']:,} to test",
    ]


def draw(folder: Path, arrays, partition, title: str) -> str:
    """Draws the pictures; a line about them."""
    if importlib.util.find_spec("matplotlib") is None:
        return "no pictures: they need matplotlib: pip install 'fedvg_jax[plot]'"
    from fedvg_jax.views import pictures

    try:
        return "drawn: " + ", ".join(map(str, pictures.write(folder, arrays, partition, title)))
    except OSError as error:
        raise UsageError(
            f"cannot write pictures into {folder} ({error.strerror or error}); choose another --out"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
