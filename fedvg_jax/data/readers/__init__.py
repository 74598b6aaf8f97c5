"""One data set format a file."""
