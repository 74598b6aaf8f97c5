"""Studies that a sweep file alone does not make, and the claims of the paper."""
