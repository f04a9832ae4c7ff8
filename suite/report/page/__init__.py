"""The HTML page of a reports folder."""
