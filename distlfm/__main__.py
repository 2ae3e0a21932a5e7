"""`python -m distlfm` is the command `distlfm`."""

from distlfm.cli import main

if __name__ == "__main__":
    main()
