"""Runs an experiment: makes its simulation, computes the rounds, and records them in a run folder."""
