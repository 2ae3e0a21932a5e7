"""A federation in one process, and what it is worth."""
