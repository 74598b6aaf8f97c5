"""Where the rows of the pool and the memories of clients are: on a device, divided over devices, or on the host."""
