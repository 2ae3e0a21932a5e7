"""Helper groups: MPI ranks that hold meshes and matrices, and how the fitting process talks to them."""
