"""Views of runs and data sets: terminal output, plans, plots, pictures."""
