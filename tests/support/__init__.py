"""Helpers of tests: small federations, an independent round in NumPy, files, processes and run folders."""
