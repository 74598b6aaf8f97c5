"""Where the rows of the pool and the client states are: on a device, divided over devices, or on the host."""
