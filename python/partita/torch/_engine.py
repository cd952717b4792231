"""The engine ``torch`` of ``Trainer``: ranks that are processes of PyTorch, with the interface of the native ones."""

from __future__ import annotations

import copy
import inspect
import math
import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from partita import _partita, optim
from partita._error import refuse
from partita._load import Model
from partita._partita import Mesh, Plan
from partita._tensors import Packed, pack, to_torch
from partita.torch._apply import apply
from partita.torch._parallel import set_whole


class Ranks:
    """A model that trains on the processes of PyTorch, one for each rank of the mesh. The module is copied."""

    def __init__(
        self, model: Model, plan: Plan, mesh: Mesh, rule: optim.Optimizer, options: dict[str, Any], seed: int
    ) -> None:
        module, loss = model._module, model._loss
        names = list(model.inputs)
        if module is None:
            raise refuse(
                "E394",
                "the engine torch trains a module of PyTorch",
                expected="partita.load(module, example_inputs, loss=..)",
                found=repr(model),
                help="use the engine native for a file",
            )
        if options.get("precision") is not None:
            raise refuse(
                "E394",
                "the engine torch computes in the types of the module",
                expected="no precision",
                found=options["precision"],
                help="use torch.autocast in the module, or the engine native",
            )
        given = names if loss is None else names[:-1]
        # Without a function as loss, inputs go by name: that of the argument, which a step may call by another one.
        self._arguments = {_partita.name_of_user(name): name for name in inspect.signature(module.forward).parameters}
        if loss is not None and given != list(self._arguments)[: len(given)]:
            raise refuse(
                "E394",
                "the inputs of the module are not in the order of its signature",
                expected=str(inspect.signature(module.forward)),
                found=", ".join(given),
            )
        # What any engine refuses.
        _partita.Schedule(model._native, mesh, options).extend(plan)
        _begin(mesh)
        torch.manual_seed(seed)
        kind = "cuda" if dist.get_backend() == "nccl" else "cpu"
        devices = init_device_mesh(kind, tuple(mesh.shape), mesh_dim_names=tuple(mesh.axis_names))
        types = model.inputs
        examples = tuple(torch.zeros(types[name][1], dtype=_dtype(types[name][0])) for name in given)
        self._names = [name for name, _, _ in model._native.parameters() + model._native.states()]
        self._parameters = [name for name, _, _ in model._native.parameters()]
        self._inputs, self._is_named, self._clip = names, loss is None, options["clip_grad_norm"]
        self._parallel = apply(
            plan,
            copy.deepcopy(module),
            devices,
            loss=loss,
            microbatches=options["microbatches"],
            example_inputs=examples,
        )
        self._optimizer = _optimizer(rule, list(self._parallel.parameters()))
        self._device = torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device("cpu")
        self._steps = 0

    def step(self, batch: Sequence[tuple[str, Packed]], rates: list[float]) -> tuple[float, float | None]:
        """One step on a whole batch: the loss, and the norm of the gradients if they are clipped."""
        given = dict(batch)
        missing = [name for name in self._inputs if name not in given]
        if missing:
            raise refuse("E430", "a batch lacks inputs", expected=", ".join(self._inputs), found=", ".join(given))
        tensors = {name: to_torch(given[name]).to(self._device) for name in self._inputs}
        buffers = [(buffer, buffer.clone()) for root in self._parallel._roots for buffer in root.buffers()]
        draws = torch.get_rng_state(), torch.cuda.get_rng_state() if self._device.type == "cuda" else None
        if self._is_named:
            loss = float(self._parallel.backward(**{self._arguments.get(name, name): x for name, x in tensors.items()}))
        else:
            loss = float(self._parallel.backward(*tensors.values()))
        if not math.isfinite(loss):
            # The next step finds what this one found: buffers and random numbers too.
            self._optimizer.zero_grad()
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            torch.set_rng_state(draws[0])
            if draws[1] is not None:
                torch.cuda.set_rng_state(draws[1])
            raise refuse(
                "E412",
                f"the loss is {loss} in step {self._steps}",
                expected="a finite number",
                found=str(loss),
                help=_cause(tensors),
            )
        norm = None if self._clip is None else float(self._parallel.clip_grad_norm_(self._clip))
        for group in self._optimizer.param_groups:
            group["lr"] = rates[0]
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._steps += 1
        return loss, norm

    def steps_taken(self) -> int:
        """Steps taken."""
        return self._steps

    def names(self) -> list[str]:
        """Parameters and changing buffers, then the states of the optimizer."""
        states = [f"optimizer.{state}.{name}" for name in self._parameters for state in self._states()]
        return [*self._names, *states]

    def _states(self) -> list[str]:
        kinds = {"SGD": ["momentum_buffer"], "Adam": ["exp_avg", "exp_avg_sq"], "AdamW": ["exp_avg", "exp_avg_sq"]}
        found = kinds[type(self._optimizer).__name__]
        return found if self._optimizer.defaults.get("momentum", 1.0) else []

    def get(self, name: str) -> Packed:
        """A parameter, buffer or state, whole. Every process must call it."""
        own = {key: value for root in self._parallel._roots for key, value in root.state_dict().items()}
        if name.startswith("optimizer."):
            _, state, name = name.split(".", 2)
            states = {key: self._optimizer.state.get(value, {}) for key, value in self._parallel.named_parameters()}
            own = {
                key: states[key][state] if state in states[key] else torch.zeros_like(own[key])
                for key in own
                if key in states
            }
        return pack(self._parallel.whole({key: value for key, value in own.items() if key == name})[name])

    def set(self, name: str, value: Packed) -> None:
        """Sets a parameter or buffer from a whole tensor."""
        for root in self._parallel._roots:
            own = root.state_dict(keep_vars=True)
            if name in own:
                set_whole(own[name], to_torch(value).to(self._device))

    def notes(self) -> list[str]:
        """Nothing: the runtime is PyTorch's."""
        return []

    def bytes(self) -> list[int]:
        """Refused: PyTorch does not know what a step takes before it runs."""
        raise _lacks("memory of ranks", "torch.cuda.memory_stats, or the engine native")

    def save(self, path: str | os.PathLike[str], keep: int) -> str:
        """Refused: see ``Trainer.state_dict``."""
        raise _lacks("checkpoints of Partita", "state_dict() and optimizer_state(), or torch.distributed.checkpoint")

    def load(self, path: str | os.PathLike[str], keep: int) -> None:
        """Refused: see ``Trainer.load_state_dict``."""
        raise _lacks("checkpoints of Partita", "load_state_dict(), or torch.distributed.checkpoint")

    def record(self, is_on: bool) -> None:
        """Refused: its events are those of ``torch.profiler``."""
        raise _lacks("events of Partita", "torch.profiler")


def _lacks(what: str, instead: str) -> Exception:
    return refuse(
        "E394", f"the engine torch has no {what}", expected="the engine native", found="torch", help=f"use {instead}"
    )


def _cause(batch: dict[str, torch.Tensor]) -> str:
    """What to do about a loss that is not finite: which tensors of the batch are not finite, if any."""
    places = []
    for name, tensor in batch.items():
        wrong = ~torch.isfinite(tensor) if tensor.is_floating_point() else torch.zeros_like(tensor, dtype=torch.bool)
        if wrong.any():
            first = [int(place) for place in wrong.nonzero()[0]]
            places.append(f"`{name}` has {int(wrong.sum())} of {tensor.numel()} elements, the first at {first}")
    if places:
        return f"the batch is not finite: {'; '.join(places)}; mend the data or leave these rows out"
    return "lower the learning rate, clip gradients, lengthen the warm-up, or use a wider type"


def _begin(mesh: Mesh) -> None:
    """Joins the processes of the launcher. E394 where there is none, or another number of them."""
    if not dist.is_initialized():
        if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
            raise refuse(
                "E394",
                "the engine torch runs one process for each rank",
                expected=f"{mesh.size} processes of a launcher",
                found="one process",
                help=f"python -m partita.launch -n {mesh.size} script.py, or torchrun",
            )
        on_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= int(
            os.environ.get("LOCAL_WORLD_SIZE", "1")
        )
        if on_gpus:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl" if on_gpus else "gloo")
    if dist.get_world_size() != mesh.size:
        raise refuse(
            "E394",
            "the mesh has another number of ranks than there are processes",
            expected=f"{mesh.size} processes",
            found=f"{dist.get_world_size()} processes",
        )


def _dtype(name: str) -> torch.dtype:
    from partita._function import dtype_named

    return dtype_named(name)


def _optimizer(rule: optim.Optimizer, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of PyTorch with these constants. E394 for one that it does not have."""
    given: Any = parameters
    if not rule.decay_1d:
        given = [{"params": [value for value in parameters if value.dim() >= 2]}]
        given.append({"params": [value for value in parameters if value.dim() < 2], "weight_decay": 0.0})
    if isinstance(rule, optim.SGD):
        return torch.optim.SGD(
            given, rule.lr, momentum=rule.momentum, weight_decay=rule.weight_decay, nesterov=rule.nesterov
        )
    if isinstance(rule, optim.Adam):
        kind = torch.optim.AdamW if isinstance(rule, optim.AdamW) else torch.optim.Adam
        return kind(given, rule.lr, betas=rule.betas, eps=rule.eps, weight_decay=rule.weight_decay)
    raise refuse(
        "E394", f"PyTorch has no optimizer {type(rule).__name__}", expected="SGD, Adam or AdamW", found=repr(rule)
    )
