"""One rank of a run: its process, its channel to the parent, and the messages on it."""
