"""From a config to everything that a run needs."""
