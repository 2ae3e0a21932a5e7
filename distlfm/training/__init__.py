"""Training of an operator: its config, what each rank does, its log, and the trials of a sweep."""
