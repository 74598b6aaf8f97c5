"""Partitions: the division of rows among clients; `partitioners` lists the ways to divide them."""
