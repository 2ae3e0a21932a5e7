"""Training of an operator: its config, what each rank does, and its log."""
