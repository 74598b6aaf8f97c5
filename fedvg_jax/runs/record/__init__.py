"""The record of a run: its folder, history and checkpoints."""
