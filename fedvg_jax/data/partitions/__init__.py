"""Partitions: the division of rows among clients, one kind per file; `draw.KINDS` lists them."""
