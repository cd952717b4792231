"""``parallelize``: a step of JAX, traced, lowered, planned, and run with its state on the ranks."""

from __future__ import annotations

import functools
import inspect
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from partita import _partita
from partita._devices import tell_of
from partita._error import refuse
from partita._partita import Mesh, Plan, Report
from partita._program import own_name
from partita._spelled import spelled
from partita._tensors import Packed, long_dtype, pack
from partita._told import Told
from partita.alpa._cluster import make_step
from partita.alpa._layers import layer_option
from partita.alpa._marks import border, evaluate, holds, mark, register_array, where
from partita.alpa._methods import Method, ShardParallel

__all__ = ["DistributedArray", "Executable", "ParallelizedFunction", "fetch", "parallelize"]


def parallelize(
    fun: Callable[..., Any] | None = None,
    *,
    static_argnums: Sequence[int] | str = "auto",
    donate_argnums: Sequence[int] | str = "auto",
    batch_argnums: Sequence[int] = (1,),
    method: Method | None = None,
) -> Any:
    """Runs a function of JAX on many ranks; a decorator, with or without arguments.

    ``batch_argnums`` are the arguments whose leaves have the batch as dimension 0. An argument whose leaves all come back
    with the same names, shapes and types is the state: it stays on the ranks, and what was passed before is gone, as with
    JAX's donated arguments; with ``donate_argnums=()`` it is copied out first. Arguments that are texts, functions, flags
    or None are static. ``method`` is ``ShardParallel()`` by default.

    Raises ``TypeError`` for what is no method; ``PartitaError`` at a call: E386 for a function that cannot be split, E225 for fewer rows than microbatches, and
    what the mesh and the plan refuse.
    """
    if method is not None and not isinstance(method, Method):
        raise TypeError(f"method is a method such as alpa.ShardParallel(), found {method!r}")
    if fun is None:
        return functools.partial(
            parallelize,
            static_argnums=static_argnums,
            donate_argnums=donate_argnums,
            batch_argnums=batch_argnums,
            method=method,
        )
    return ParallelizedFunction(fun, static_argnums, donate_argnums, batch_argnums, method or ShardParallel())


class ParallelizedFunction:
    """A function on many ranks: what ``parallelize`` returns. Each new shape of arguments is planned when it first comes."""

    def __init__(
        self,
        fun: Callable[..., Any],
        static_argnums: Sequence[int] | str,
        donate_argnums: Sequence[int] | str,
        batch_argnums: Sequence[int],
        method: Method,
    ) -> None:
        _partita.check_alone()
        functools.update_wrapper(self, fun)
        self._fun, self._method, self._batch = fun, method, tuple(batch_argnums)
        self._static, self._donated = static_argnums, donate_argnums
        self._executables: dict[Any, Executable] = {}
        self._last: Executable | None = None
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What the function returns. Leaves of the state are ``DistributedArray``, others arrays of JAX."""
        with self._lock:
            executable, leaves = self._of(arguments, named)
            return executable._launch(leaves)

    def get_executable(self, *arguments: Any, **named: Any) -> Executable:
        """The planned step for these arguments, which are not used otherwise."""
        with self._lock:
            return self._of(arguments, named)[0]

    def get_last_executable(self) -> Executable | None:
        """The planned step of the last call."""
        return self._last

    def _of(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Executable, list[Any]]:
        bound = inspect.signature(self._fun).bind(*arguments, **named)
        if bound.kwargs:
            raise TypeError(f"parallelize takes positional arguments: {', '.join(bound.kwargs)} is keyword-only")
        chosen = self._static
        static = {
            place: value
            for place, value in enumerate(bound.args)
            if (_is_static(value) if isinstance(chosen, str) else place in chosen)
        }
        dynamic = [value for place, value in enumerate(bound.args) if place not in static]
        leaves, tree = jax.tree.flatten(dynamic)
        types = tuple(_type_of(leaf) for leaf in leaves)
        key = (tree, types, tuple(static.items()))
        found = self._executables.get(key)
        if found is None:
            names = list(bound.arguments)
            traced = _Traced(self._fun, bound.args, static, names, types, self._batch, self._method)
            donates = self._donated == "auto" or bool(self._donated)
            found = self._executables[key] = Executable(traced, self._method, donates)
        self._last = found
        return found, leaves


class DistributedArray:
    """A leaf of the state, on the ranks. It is read like an array, which copies it from there; as an argument of the same
    function it costs nothing.

    Reading it after a later step has replaced it raises ``PartitaError`` E387, unless it was read before.
    """

    def __init__(self, executable: Executable, place: int, version: int) -> None:
        self._executable, self._place, self._version = executable, place, version
        self._array: Any = None
        self.shape, self.dtype = executable._traced.types[place]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def is_current(self) -> bool:
        """Whether the ranks still have this value."""
        return self._version == self._executable._version

    def fetch(self) -> Any:
        """The value as an array of JAX."""
        if self._array is None:
            if not self.is_current():
                raise refuse(
                    "E387",
                    f"`{self._executable._traced.names[self._place]}` belongs to a state that a later step has replaced",
                    expected="the state that the last call returned",
                    found=f"that of call {self._version}; the last one is call {self._executable._version}",
                    help="read it before the next call, or give `donate_argnums=()` to `alpa.parallelize`",
                )
            self._array = self._executable._get(self._place)
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.fetch(), dtype=dtype)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.fetch(), name)

    def __repr__(self) -> str:
        return f"DistributedArray({self.dtype}{list(self.shape)} on {self._executable.mesh})"


def _forwarded(name: str) -> Callable[..., Any]:
    def operator(self: DistributedArray, *others: Any) -> Any:
        return getattr(self.fetch(), name)(*map(fetch, others))

    operator.__name__ = name
    return operator


for _operator in (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul neg pos abs invert and "
    "or xor lt le gt ge eq ne getitem len iter bool int float index format"
).split():
    setattr(DistributedArray, f"__{_operator}__", _forwarded(f"__{_operator}__"))
DistributedArray.__hash__ = object.__hash__  # type: ignore[method-assign]
register_array(DistributedArray, DistributedArray.fetch)


def fetch(tree: Any) -> Any:
    """The tree with arrays of JAX in place of those on the ranks: for `jax.jit`, checkpoints, and later use."""
    return jax.tree.map(lambda leaf: leaf.fetch() if isinstance(leaf, DistributedArray) else leaf, tree)


class Tried(NamedTuple):
    """A mesh and a plan with their predicted cost: ``source`` is ``given`` or ``planner``."""

    mesh: Mesh
    plan: Plan
    source: str
    seconds: float
    bytes: int


class Result(NamedTuple):
    """What a search chose; it prints as Alpa's report does. A mesh is (nodes, devices), a logical one (batch, others)."""

    mesh: Mesh
    plan: Plan
    forward_stage_layer_ids: list[list[int]]
    tried: list[Tried]

    def __str__(self) -> str:
        stages = len(self.forward_stage_layer_ids)
        ranks, dp = self.mesh.size // stages, _axis(self.mesh, "dp")
        lines = ["-------------------- Automatic stage clustering --------------------"]
        for mesh, _, source, seconds, size in self.tried:
            cost = f"cost={seconds * 1e3:.3f} ms, peak={size / 1e9:.3f} GB"
            lines.append(f"{mesh}: {cost}, layouts of the {'planner' if source == 'planner' else 'plan'}")
        lines += [
            f"Result forward_stage_layer_ids: {self.forward_stage_layer_ids}",
            f"Result meshes: {[(1, ranks)] * stages}",
            f"Result logical_mesh_shapes: {[(dp, ranks // dp)] * stages}",
            f"Result autosharding_option_dicts: {[{}] * stages}",
        ]
        return "\n".join(lines)


class Executable:
    """A planned step with its state on the ranks. ``result`` is what a search chose, None where there was none."""

    @spelled
    def __init__(self, traced: _Traced, method: Method, donates: bool) -> None:
        self._traced, self._donates = traced, donates
        known = {
            "inputs": traced.names,
            "outputs": traced.output_names,
            "loss": traced.loss,
            "gradients": traced.gradients,
            "batched": traced.batched,
            "carried": list(traced.carried.items()),
            "kept": [place for place in range(len(traced.names)) if place not in traced.batched],
            "returned": list(range(traced.result_count)),
            "microbatches": method.num_micro_batches,
            "timetable": method.pipeline_schedule,
        }
        program = _partita.Program(traced.text, traced.name)
        self.mesh: Mesh
        self.plan: Plan
        self.result: Result | None = None
        meshes = method.meshes(traced.layers, traced.rows // method.num_micro_batches)
        if method.auto_sharding_option is None:
            (self.mesh,), self.plan = meshes, method.plan()
        else:
            tried = _partita.Step.tried(program, known, method.plan(), meshes)
            self.mesh, self.plan = tried[0][:2]
            stages = _axis(self.mesh, "pp")
            layers = method.stage_layers
            if layers is None:
                one = traced.layers == 1
                layers = [[0]] if one else _partita.Step.layers_of_stages(program, known, traced.layers, stages)
            self.result = Result(self.mesh, self.plan, layers, [Tried(*row) for row in tried])
            print(self.result)
        self._native = make_step(traced.text, traced.name, known, self.plan, self.mesh)
        self._kept, self._fed = set(self._native.kept()), set(self._native.fed())
        # The call after which the state on the ranks is what it is, and the last value of arguments that do not change.
        self._version = 0
        self._on_ranks: dict[int, Any] = {}
        self._handed_out: list[DistributedArray] = []
        self._device: Any = None
        self._told = Told()
        for place, value in enumerate(traced.constants, start=len(traced.types) - len(traced.constants)):
            self._set(place, value)

    def _set(self, place: int, value: Any) -> None:
        name, dtype = self._traced.names[place], self._traced.types[place][1]
        if name in self._kept:
            self._native.set(name, _packed(value, dtype))

    def _get(self, place: int) -> Any:
        return self._brought(self._native.get(self._traced.names[place]))

    def _look(self, leaves: list[Any]) -> None:
        """Where results go: as with functions of JAX, to the device of an argument that was put on one."""
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array) and len(leaf.devices()) == 1]
        committed = next((array.device for array in arrays if array.committed), None)
        self._device = committed or self._device
        away = next((device for array in arrays for device in array.devices() if device.platform != "cpu"), None)
        if away is not None:
            tell_of(self._told, self._traced.name, away)

    def _brought(self, value: Any) -> Any:
        found = _to_jax(value)
        return found if self._device is None else jax.device_put(found, self._device)

    def _launch(self, leaves: list[Any]) -> Any:
        traced, fed = self._traced, []
        self._look(leaves)
        for place, leaf in enumerate(leaves):
            name = traced.names[place]
            if name in self._fed:
                fed.append((name, _packed(leaf, traced.types[place][1])))
            elif isinstance(leaf, DistributedArray) and leaf._executable is self and leaf._place == place:
                if not leaf.is_current():
                    self._set(place, leaf.fetch())
            elif self._on_ranks.get(place) is not leaf or not isinstance(leaf, jax.Array):
                self._set(place, leaf)
                if place not in traced.carried:
                    self._on_ranks[place] = leaf
        if not self._donates:
            for array in self._handed_out:
                array.fetch()
        replaces = {output: place for place, output in traced.carried.items()}
        others = [output for output in range(traced.result_count) if output not in replaces]
        found = self._native.run(fed, [traced.output_names[output] for output in others])
        self._version += 1
        results: list[Any] = [None] * traced.result_count
        for output, value in zip(others, found):
            results[output] = self._brought(value)
        for output, place in replaces.items():
            results[output] = DistributedArray(self, place, self._version)
        self._handed_out = [] if self._donates else [results[output] for output in replaces]
        return jax.tree.unflatten(traced.result_tree, results)

    def verify(self, *arguments: Any) -> Report:
        """Runs the planned step and the step of one device on these arguments, and compares loss and gradients, or all
        results of a step without them. The state on the ranks is not changed."""
        static = self._traced.static
        leaves = jax.tree.leaves([value for place, value in enumerate(arguments) if place not in static])
        values = [*leaves, *self._traced.constants]
        types = self._traced.types
        tensors = [_packed(value, ty[1]) for value, ty in zip(values, types)]
        return self._native.verify(list(zip(self._traced.names, tensors)))

    def explain(self, name: str | None = None) -> str:
        """Why the step is as it is: on one screen, or for one tensor or collective. ``state['w']`` is ``state.w``."""
        known = [*self._traced.names, *self._traced.output_names]
        return self._native.explain(None if name is None else own_name(name, known))

    def collectives(self, rank: int = 0) -> list[tuple[str, str, int, int]]:
        """The collectives of a rank in a step: (phase, collective, count, bytes)."""
        return self._native.collectives(rank)

    def stages(self) -> dict[int, dict[str, int]]:
        """The number of ops of each phase (``forward``, ``input_grad``, ``weight_grad``, ``update``) in each stage."""
        found: dict[int, dict[str, int]] = {}
        for stage, phase, count in self._native.stages():
            found.setdefault(stage, {})[phase] = count
        return found

    def program(self, rank: int = 0) -> str:
        """What a rank executes, as text."""
        return self._native.program(rank)

    def get_hlo_text(self) -> str:
        """The step of one device as StableHLO, as JAX lowered it."""
        return self._traced.text

    @property
    def notes(self) -> list[str]:
        """Facts about the planned step, such as idle ranks."""
        return self._native.notes()

    @property
    def bytes_on_ranks(self) -> list[int]:
        """The memory of each rank: state and everything that a step computes."""
        return self._native.bytes()

    def __repr__(self) -> str:
        return f"Executable({self._traced.name} on {self.mesh})"


class _Traced:
    """A function as StableHLO text, with what the text does not say.

    Arguments of the text are the leaves of the dynamic arguments, then constants that the function refers to. Its results
    are those of the function, then the loss and the gradients that crossed the border, if there is one.
    """

    text: str
    layers: int

    def __init__(
        self,
        fun: Callable[..., Any],
        arguments: tuple[Any, ...],
        static: dict[int, Any],
        argument_names: list[str],
        types: tuple[tuple[tuple[int, ...], np.dtype], ...],
        batch: tuple[int, ...],
        method: Method,
    ) -> None:
        self.name, self.static = getattr(fun, "__name__", "step"), static
        shaped = [value if place in static else _shaped(value) for place, value in enumerate(arguments)]

        def of_dynamic(*dynamic: Any) -> Any:
            rest = iter(dynamic)
            return fun(*(value if place in static else next(rest) for place, value in enumerate(shaped)))

        token = layer_option.set(method.layer_option)
        try:
            dynamic = [value for place, value in enumerate(shaped) if place not in static]
            closed, results = jax.make_jaxpr(of_dynamic, return_shape=True)(*dynamic)
        finally:
            layer_option.reset(token)
        self.constants = list(closed.consts)
        constant_types = tuple((tuple(np.shape(value)), _dtype_of(value)) for value in self.constants)
        self.types = (*types, *constant_types)
        paths: list[tuple[int, Any]] = []
        self.batched: list[int] = []
        for place, value in enumerate(arguments):
            if place in static:
                continue
            for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
                if place in batch and np.ndim(leaf) > 0:
                    self.batched.append(len(paths))
                paths.append((place, path))
        self.names = [_name(argument_names[min(place, len(argument_names) - 1)], path) for place, path in paths]
        self.names += [f"constant.{number}" for number in range(len(self.constants))]
        result_paths, self.result_tree = jax.tree_util.tree_flatten_with_path(results)
        self.result_count = len(result_paths)
        self.output_names = [_name("result", path) for path, _ in result_paths]
        self.carried = self._carried(paths, [path for path, _ in result_paths], [leaf for _, leaf in result_paths])
        self.rows = min((self.types[place][0][0] for place in self.batched), default=1)
        self._lower(closed, method)
        self.layers = _layers(self.text)
        if method.stage_layers is not None:
            self._join(method.stage_layers)

    def _join(self, stages: list[list[int]]) -> None:
        """Makes one layer of the layers of each stage. E386 for another number of layers, or for layers that Partita cuts."""
        found = sum(map(len, stages))
        is_marked = re.search(r"\bpp_layers_\d", self.text) is None
        if found != self.layers or not (is_marked or len(stages) == found):
            raise refuse(
                "E386",
                "the stages that were written are not of these layers",
                expected=f"{found} layers" + ("" if is_marked else ", each a stage of its own where layers are automatic"),
                found=f"{self.layers} layers in {self.name}",
                help="mark where layers end with `alpa.mark_pipeline_boundary()`",
            )
        if is_marked:
            stage_of = [number for number, layers in enumerate(stages) for _ in layers]
            self.text = re.sub(r"\bpp_stage_(\d+)", lambda layer: f"pp_stage_{stage_of[int(layer[1])]}", self.text)
        self.layers = len(stages)

    def _carried(self, paths: list[Any], result_paths: list[Any], results: list[Any]) -> dict[int, int]:
        """The argument that each result replaces: arguments whose leaves all come back with their types."""
        names = {jax.tree_util.keystr(path): place for place, path in enumerate(result_paths)}
        types = [(tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in results]
        prefixes = dict.fromkeys(jax.tree_util.keystr(path[:count]) for path in result_paths for count in range(len(path) + 1))
        carried: dict[int, int] = {}
        for argument in dict.fromkeys(argument for argument, _ in paths):
            own = [place for place, (of, _) in enumerate(paths) if of == argument]
            if any(place in self.batched for place in own):
                continue
            for prefix in prefixes:
                found = [names.get(prefix + jax.tree_util.keystr(paths[place][1])) for place in own]
                free = [place for place in found if place is not None and place not in carried.values()]
                if len(free) == len(own) and all(types[b] == self.types[a] for a, b in zip(own, free)):
                    carried.update(zip(own, free))
                    break
        return carried

    def _lower(self, closed: Any, method: Method) -> None:
        marked = next((equation for equation in closed.jaxpr.eqns if holds(equation, [mark])), None)
        if marked is not None:
            raise refuse(
                "E386",
                "a pipeline boundary is marked in a function without layer construction",
                expected="`alpa.manual_layer_construction` around the loss that calls `mark_pipeline_boundary()`",
                at=where(marked),
                help="decorate the loss, or give `layer_option=alpa.ManualLayerOption()` to the method",
            )
        crossed: list[tuple[tuple[str, ...], str]] = []

        def with_gradients(*values: Any) -> list[Any]:
            count = len(values) - len(closed.consts)
            arguments, constants = values[:count], values[count:]
            handed_over: list[Any] = []
            crossed.clear()

            def cross(equation: Any, operands: list[Any]) -> list[Any]:
                crossed.append((equation.params["names"], where(equation)))
                handed_over.extend(operands)
                return operands

            return evaluate(closed.jaxpr, constants, arguments, {border: cross}) + handed_over

        with_gradients.__name__ = self.name
        shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in self.types]
        lowered = jax.jit(with_gradients, keep_unused=True).lower(*shapes)
        self.text = lowered.as_text(debug_info=True)
        splits = method.num_micro_batches > 1 or method.layer_option is not None or _layers(self.text) > 1
        if len(crossed) > 1 or (splits and not crossed):
            raise refuse(
                "E386",
                f"the function computes gradients with `alpa.grad` {len(crossed)} times",
                expected="one call of `alpa.grad` or `alpa.value_and_grad`, which tells what each microbatch does from what "
                "is done once",
                found="no call: `jax.grad`?" if not crossed else ", ".join(place for _, place in crossed),
                help="write `alpa.grad` in place of `jax.grad`"
                if not crossed
                else "add the losses, and differentiate their sum by a tuple of arguments",
            )
        self.loss: int | None = None
        self.gradients: list[int] = []
        if crossed:
            self.loss = self.result_count
            names = [f"gradient.{name}" if name else "gradient" for name in crossed[0][0]]
            self.gradients = list(range(self.result_count + 1, self.result_count + 1 + len(names)))
            self.output_names = [*self.output_names, "loss", *names]


def _axis(mesh: Mesh, name: str) -> int:
    return dict(zip(mesh.axis_names, mesh.shape)).get(name, 1)


def _layers(text: str) -> int:
    """The number of layers in a text with the scopes of layers."""
    asked = [int(number) for number in re.findall(r"\bpp_layers_(\d+)", text)]
    marked = [int(number) + 1 for number in re.findall(r"\bpp_stage_(\d+)", text)]
    return max(asked or marked or [1])


def _name(root: str, path: Any) -> str:
    inner = jax.tree_util.keystr(path, simple=True, separator=".")
    # Some names have a meaning in a step, as those of the scalars that a training loop sets itself.
    return _partita.name_of_user(f"{root}.{inner}" if inner else root)


def _is_static(value: Any) -> bool:
    is_function = callable(value) and not hasattr(value, "dtype") and jax.tree_util.all_leaves([value])
    return is_function or value is None or isinstance(value, (bool, str, bytes))


def _dtype_of(leaf: Any) -> np.dtype:
    return np.dtype(leaf.dtype) if hasattr(leaf, "dtype") else np.dtype(jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype))


def _type_of(leaf: Any) -> tuple[tuple[int, ...], np.dtype]:
    dtype: Any = getattr(leaf, "dtype", None)
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        raise TypeError(f"typed keys cannot be passed: pass jax.random.key_data(key) ({leaf.dtype})")
    return tuple(np.shape(leaf)), _dtype_of(leaf)


def _shaped(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(*_type_of(leaf)), tree)


def _packed(value: Any, dtype: np.dtype) -> Packed:
    return pack(np.asarray(fetch(value)).astype(dtype, copy=False))


def _to_jax(packed: Packed) -> Any:
    name, shape, data = packed
    return jnp.asarray(data.view(jnp.dtype(long_dtype(name))).reshape(shape))
