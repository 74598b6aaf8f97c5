"""`python -m benchmarks.gpu`, see `benchmarks.gpu.session`."""

import sys

from benchmarks.gpu.session import main

if __name__ == "__main__":
    sys.exit(main())
