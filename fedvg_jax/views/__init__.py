"""What people look at: terminal, plots, pictures."""
