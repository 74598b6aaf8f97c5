"""Makes a simulation, which is everything that the rounds of a run need, of its experiment."""
