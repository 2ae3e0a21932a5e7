"""A study in Python: a model made of its parts, fitted to instances; a config file is the same, written down."""
