"""Forward solvers and their gradients: ODEs with torchdiffeq, PDEs with FEniCS and PETSc."""
