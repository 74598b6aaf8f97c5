"""Partitions: the division of rows among clients; `draw.KINDS` lists the kinds."""
