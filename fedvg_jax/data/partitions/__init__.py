"""How rows are divided among clients."""
