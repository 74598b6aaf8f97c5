"""The record of a run: its folder, history, checkpoints and the digests that vouch for them."""
