"""The command line: one thin function per verb, no logic."""

from distlfm.cli.app import main

__all__ = ["main"]
