"""A definition as StableHLO text: a call for each statement, a constraint for each layout, the functions beside them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from partita._function import tensor_type
from partita.nvfuser import _mesh
from partita.nvfuser._value import Layout, Statement, Tensor

if TYPE_CHECKING:
    from partita.nvfuser._definition import FusionDefinition


class Text:
    """The module of a definition: its statements in order of need, their functions beside it."""

    def __init__(self, fd: FusionDefinition) -> None:
        self._fd, self._lines, self._functions = fd, list[str](), list[str]()
        self._names: dict[int, str] = {}
        arguments = []
        for number, tensor in enumerate(fd._inputs):
            layout = self._layout(tensor)
            attributes = f'partita.name = "T{tensor._number}"'
            if layout is not None:
                attributes += f", sdy.sharding = #sdy.sharding{layout.text()}"
            arguments.append(f"%arg{number}: {_type(tensor)} {{{attributes}}}")
            self._names[tensor._number] = f"%arg{number}"
        outputs = [self._value(tensor) for tensor in fd._outputs]
        types = ", ".join(_type(tensor) for tensor in fd._outputs)
        mesh = fd._device_mesh or _mesh.create_mesh(1)
        sizes = ", ".join(f'"{axis}"={size}' for axis, size in zip(mesh._axes, mesh._shape))
        body = "".join(f"    {line}\n" for line in self._lines)
        self.text = (
            f"module {{\n  sdy.mesh @mesh = <[{sizes}]>\n"
            f"  func.func public @main({', '.join(arguments)}) -> ({types}) {{\n{body}"
            f"    return {', '.join(outputs)} : {types}\n  }}\n{''.join(self._functions)}}}\n"
        )

    def _layout(self, tensor: Tensor) -> Layout | None:
        if tensor._annotation is not None:
            return tensor._annotation
        return Layout(((),) * tensor.ndim) if tensor in self._fd._whole else None

    def _value(self, tensor: Tensor) -> str:
        """The name of a value, whose statement is written first if it is not yet."""
        todo = [tensor]
        while todo:
            needed = todo[-1]
            missing = [] if needed._number in self._names else self._fd._producer(needed).operands
            missing = [operand for operand in missing if operand._number not in self._names]
            if missing:
                todo += missing
                continue
            todo.pop()
            if needed._number not in self._names:
                self._write(self._fd._producer(needed))
        return self._names[tensor._number]

    def _write(self, statement: Statement) -> None:
        operands = [self._names[operand._number] for operand in statement.operands]
        results = statement.results
        names = [f"%{result._number}" for result in results]
        if statement.function is not None:
            callee = f"op{len(self._functions)}"
            self._functions.append(_private(statement.function.text, callee))
            taken = ", ".join(map(_type, statement.operands))
            given = ", ".join(map(_type, results))
            base = f"%r{len(self._functions)}"
            if len(results) > 1:
                names = [f"{base}#{number}" for number in range(len(results))]
            target = names[0] if len(results) == 1 else f"{base}:{len(results)}"
            self._lines.append(f"{target} = func.call @{callee}({', '.join(operands)}) : ({taken}) -> ({given})")
        elif statement.layout is not None:
            self._lines.append(self._constraint(names[0], operands[0], statement.layout, results[0]))
        else:
            names = operands
        for result, name in zip(results, names):
            layout = self._layout(result)
            if layout is not None:
                self._lines.append(self._constraint(f"%c{result._number}", name, layout, result))
                name = f"%c{result._number}"
            self._names[result._number] = name

    @staticmethod
    def _constraint(name: str, of: str, layout: Layout, tensor: Tensor) -> str:
        return f"{name} = sdy.sharding_constraint {of} {layout.text()} : {_type(tensor)}"


def _type(tensor: Tensor) -> str:
    return tensor_type(tensor.dtype, tensor.shape)


_SYMBOL = re.compile(r'"(?:[^"\\]|\\.)*"|@([A-Za-z_][\w.$]*)')


def _private(text: str, name: str) -> str:
    """The functions of a module under names of their own, the entry as ``name``."""
    inner = text.strip().removeprefix("module {").removesuffix("}").strip("\n") + "\n"

    def renamed(found: re.Match[str]) -> str:
        symbol = found.group(1)
        if symbol is None:
            return found.group(0)
        return f"@{name}" if symbol == "main" else f"@{name}_{symbol}"

    return _SYMBOL.sub(renamed, inner).replace("func.func public", "func.func private")
