"""Views of runs and data sets: terminal output, plans, trackers."""
