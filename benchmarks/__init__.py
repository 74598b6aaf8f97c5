"""Measurements that anyone can repeat: `python -m benchmarks`, or the single scripts."""
