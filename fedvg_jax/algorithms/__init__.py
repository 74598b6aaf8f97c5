"""One federated algorithm per page, each a factory returning an `Algorithm`."""
