"""IREE's compiler by name: texts become bytes that ``partita.iree.runtime`` loads."""

from __future__ import annotations

from collections.abc import Sequence

from partita._compile import compile_str as _compile
from partita._error import refuse

__all__ = ["compile_file", "compile_str"]

TARGETS = ("llvm-cpu", "vmvx")
"""Names of targets that mean the cores of this machine."""

HEADER = b"partita module\n"
"""How compiled bytes begin: the text follows."""


def compile_str(
    input_str: str | bytes, *, target_backends: Sequence[str] = ("llvm-cpu",), input_type: str = "auto"
) -> bytes:
    """The module as bytes, after it was read and checked. ``input_type`` is not needed: dialects are known by their names.

    Raises ``PartitaError``: E388 for targets among which no CPU is, E140 to E149 for a text that cannot be read.
    """
    if not any(target in TARGETS for target in target_backends):
        raise refuse(
            "E388",
            "partita compiles for the cores of this machine",
            expected=f"one of {', '.join(TARGETS)} in target_backends",
            found=", ".join(target_backends) or "no target",
        )
    text = input_str.decode() if isinstance(input_str, bytes) else input_str
    _compile(text)
    return HEADER + text.encode()


def compile_file(
    input_file: str, *, target_backends: Sequence[str] = ("llvm-cpu",), input_type: str = "auto"
) -> bytes:
    """``compile_str`` of a file."""
    with open(input_file, encoding="utf-8") as file:
        return compile_str(file.read(), target_backends=target_backends, input_type=input_type)
