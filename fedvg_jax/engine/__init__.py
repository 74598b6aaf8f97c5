"""A federated round and everything it is made of."""
