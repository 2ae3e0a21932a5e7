"""Processes that train together: which one this is, how they join, and how they are started."""
