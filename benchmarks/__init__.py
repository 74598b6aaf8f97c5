"""Benchmarks of fedvg_jax. `python -m benchmarks` runs all CPU benchmarks; each module also runs alone."""
