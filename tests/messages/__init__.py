"""Mistakes by area: each module has `CASES`, a list of (id, call, the name that the message must have)."""
