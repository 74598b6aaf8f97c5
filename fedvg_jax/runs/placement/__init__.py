"""Where the rows of the pool and the client states are: on the devices, or on the host."""
