"""IREE's names over Partita's compiler and runner: ``from partita.iree import compiler, runtime``."""

from partita.iree import compiler, runtime

__all__ = ["compiler", "runtime"]
