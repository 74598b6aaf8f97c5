"""Generated parts of the README and of docs."""
