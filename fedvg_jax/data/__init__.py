"""Data as NumPy arrays: reading data sets, dividing them among clients, and the shared validation set. No jax.

    arrays = data.load("cifar10", "DIR", cache_dir)                     # Arrays: one pool of images and labels
    parts = data.draw_partition(arrays.y, num_clients=10, alpha=0.1)    # Partition: rows of every client
    shared = data.from_clients(arrays, parts, 1.0, 0.1, seed=42)        # Shared: rows of D_val

Where to look:

- `datasets`: data sets by name; `readers/` has one reader per format, and what they share in `sources`.
- `downloads`: addresses and checksums of published data sets, for `prepare NAME --download`.
- `arrays`: the container of a data set, and the checks that every reader applies. `user_data`: arrays from Python.
- `table`: DataFrames. `scaling`: transformers of scikit-learn that encode them;
  `plain_pickles` reads them.
- `partitions/`: `partitioners` divide rows over clients, and draw partitions; `exchange` reads and
  writes partitions; `client_rows` holds and checks them, and measures their skew.
- `validation`: D_val from the clients' rows or from an external set; smaller, imbalanced or noisy ones.
- `corrupt`: corrupt training rows of some clients.
- `images`, `cache`: decoding, and the cache of decoded data sets.
"""

from fedvg_jax.data.arrays import Arrays as Arrays
from fedvg_jax.data.datasets import (
    NAMES as NAMES,
    SOURCES as SOURCES,
    Source as Source,
    load as load,
)
from fedvg_jax.data.partitions import exchange
from fedvg_jax.data.partitions.client_rows import Partition as Partition
from fedvg_jax.data.partitions.partitioners import draw_partition as draw_partition
from fedvg_jax.data.validation import (
    Shared as Shared,
    from_clients as from_clients,
    from_outside as from_outside,
)

read_partition = exchange.read
write_partition = exchange.write
