"""The verbs as functions, each readable in one screen."""
