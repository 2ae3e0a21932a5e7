"""Programs that put a verb on a backend: the set-up script, Ray over an allocation, DDP, MPI groups."""
