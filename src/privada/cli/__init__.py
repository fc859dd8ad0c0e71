"""The command line: parse, call, print."""

from privada.cli.app import main

__all__ = ["main"]
