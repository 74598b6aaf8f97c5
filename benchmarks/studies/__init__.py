"""Studies that a sweep file alone does not make, and the pictures and claims from committed results."""
