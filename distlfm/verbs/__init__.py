"""The verbs as functions, one file each: they read what is given, call the rooms below, and write the result."""
