"""Studies: sweeps of runs, and reports on their folders: statistics, tables, figures, a page."""
