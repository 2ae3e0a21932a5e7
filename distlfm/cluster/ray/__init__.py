"""Blocks, ranks and trials on Ray: on this machine, on a cluster, or on a Ray of our own over several hosts."""
