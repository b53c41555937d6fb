"""The command line: `rooflog --help` is the manual."""

from helpers.cli.app import app, main

__all__ = ["app", "main"]
