"""Everything that can befall a run folder: see `__main__`."""
