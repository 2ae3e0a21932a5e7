"""PDEs on FEniCS. Importing dolfin initialises MPI, so nothing here imports it before a helper process asks."""
