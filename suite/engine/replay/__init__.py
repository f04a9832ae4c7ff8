"""Every rank of a grid in one process."""
