"""One of the two ranks that `mpi_launch` starts: sum the ranks over all, and let the first say what it saw."""

from __future__ import annotations

import sys

from mpi4py import MPI


def main() -> None:
    world = MPI.COMM_WORLD
    total = world.allreduce(world.Get_rank() + 1)
    if world.Get_rank() == 0:
        library = MPI.Get_library_version().partition(",")[0].strip()
        sys.stdout.write(f"{world.Get_size()};{total};{library}\n")


if __name__ == "__main__":
    main()
