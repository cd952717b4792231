"""``compile_str``: the functions of a text, on one device of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from partita import _partita
from partita._error import refuse
from partita._program import Program, Step

if TYPE_CHECKING:
    import numpy as np

__all__ = ["CompiledModule", "DeviceArray", "Function", "compile_str"]


class DeviceArray:
    """A result on the device. ``to_host()`` gives it as an array of numpy."""

    def __init__(self, value: np.ndarray) -> None:
        self._value = value

    def to_host(self) -> np.ndarray:
        """The value; bfloat16, which numpy lacks, as float32."""
        return self._value

    @property
    def shape(self) -> tuple[int, ...]:
        return self._value.shape

    @property
    def dtype(self) -> np.dtype:
        return self._value.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        import numpy as np

        return np.asarray(self._value, dtype=dtype)

    def __repr__(self) -> str:
        return f"<partita.DeviceArray: shape={list(self.shape)} dtype={self.dtype}>\n{self._value!r}"


class Function:
    """A function of a compiled module: takes arrays, lists or tensors, one for each argument, of its shapes and types."""

    def __init__(self, name: str, program: Program) -> None:
        self.__name__, self.program = name, program
        self._step: Step | None = None

    def __call__(self, *arguments: Any) -> DeviceArray | tuple[DeviceArray, ...] | None:
        """The result: one, a tuple of several, or None.

        Raises ``TypeError`` for another number of arguments, ``PartitaError`` E415 for another shape or type.
        """
        if len(arguments) != len(self.program.inputs):
            raise TypeError(f"{self.__name__} takes {len(self.program.inputs)} arguments, found {len(arguments)}")
        if self._step is None:
            self._step = self.program.on("dp=1", batch=[])
        given = [argument.to_host() if isinstance(argument, DeviceArray) else argument for argument in arguments]
        found = [DeviceArray(value) for value in self._step(*given).values()]
        return found[0] if len(found) == 1 else tuple(found) or None

    def __repr__(self) -> str:
        return f"<function {self.__name__}: {self.program!r}>"


class CompiledModule:
    """The public functions of a text as attributes, and by name: ``module.f`` is ``module["f"]``."""

    def __init__(self, text: str, file: str = "<text>") -> None:
        names = _partita.Program.functions(text, file)
        self._functions = {name: Function(name, Program(text, file, name)) for name in names}

    def __getitem__(self, name: str) -> Function:
        return self._functions[name]

    def __getattr__(self, name: str) -> Function:
        functions: dict[str, Function] = self.__dict__.get("_functions", {})
        if name in functions:
            return functions[name]
        raise AttributeError(f"the module has no public function {name}; it has {', '.join(functions) or 'none'}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._functions]

    def __repr__(self) -> str:
        return f"<compiled module: {', '.join(self._functions)}>"


def compile_str(mlir: str, *, file: str = "<text>") -> CompiledModule:
    """Compiles a module in text for this machine.

        module = partita.compile_str('''
            func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
              %0 = stablehlo.add %a, %b : tensor<4xf32>
              return %0 : tensor<4xf32>
            }''')
        module.add([1, 2, 3, 4], [5, 6, 7, 8]).to_host()          # [6, 8, 10, 12]

    ``file`` is the name that messages give the text. Raises ``PartitaError``: E140 to E149 with line and column.
    """
    module = CompiledModule(mlir, file)
    if not module:
        raise refuse("E140", "a text without a public function", at=file, expected="func.func @name(..) {..}", found="none")
    return module

