"""Sums of vectors of which nobody sees a term (Bonawitz et al. 2017, with the check of consistency).

Pure functions and values: nothing here knows of Flower, torch, files or sockets.
"""
