"""Readers of data sets, one per format; `data.datasets` lists them by name."""
