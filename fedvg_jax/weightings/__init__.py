"""Aggregation weights: what is measured of each client, and the rule that turns it into weights."""
