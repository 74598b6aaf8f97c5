"""Contracts and pytree algebra."""
