"""Convolutions for clients side by side."""
