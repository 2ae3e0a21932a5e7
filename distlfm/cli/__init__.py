"""The command line: one thin function a verb, no logic."""

from distlfm.cli.app import main

__all__ = ["main"]
