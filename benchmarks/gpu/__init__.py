"""Measurements on a GPU, and plans for hardware that is not there."""
