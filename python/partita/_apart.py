"""Tensors that share memory: what is one tensor for a program, and what is two."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from partita._kinds import part
from partita._watched import Tree, has_memory


def separate(value: Any) -> Any:
    """A copy of a tensor that shares no memory with another one, and is laid out as it is; other values as they are.

    Two arguments are two inputs of a program, also where they are one tensor.
    """
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return value
    with torch.no_grad():
        source = value.detach()
        # Of dimensions that repeat one element, that element.
        repeats = [stride == 0 and size > 1 for size, stride in zip(source.shape, source.stride())]
        core = source[tuple(slice(0, 1) if repeat else slice(None) for repeat in repeats)]
        span = 1 + sum((size - 1) * stride for size, stride in zip(core.shape, core.stride()))
        if core.numel() == 0 or core.numel() > span or _overlaps(core):
            made = source.clone()
        else:
            made = torch.empty_strided(core.shape, core.stride(), dtype=core.dtype, device=core.device).copy_(core)
            made = made.expand(source.shape)
    return made.requires_grad_(value.requires_grad)


def _overlaps(value: torch.Tensor) -> bool:
    """Whether elements of a tensor may be one."""
    reach = 0
    for stride, size in sorted(zip(value.stride(), value.shape)):
        if size > 1 and stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


@contextmanager
def apart(tensors: list[Any]) -> Iterator[None]:
    """Inside, no two of the tensors share memory: a saved program takes tensors in one memory for one tensor."""
    seen: dict[int, Any] = {}
    moved: list[tuple[Any, Any]] = []
    try:
        for value in tensors:
            if not isinstance(value, torch.Tensor) or not has_memory(value):
                continue
            first = seen.setdefault(value.untyped_storage().data_ptr(), value)
            if first is not value:
                moved.append((value, value.data))
                value.data = value.detach().clone()
        yield
    finally:
        for value, memory in moved:
            value.data = memory


def copied(module: torch.nn.Module, memo: dict[int, Any] | None = None) -> torch.nn.Module:
    """A deep copy of a module. Tensors that share memory do so in the copy, and those that autograd made are the same."""
    memo = {} if memo is None else memo
    groups: dict[int, list[torch.Tensor]] = {}
    for value in Tree(module).tensors:
        if not value.is_leaf:
            memo.setdefault(id(value), value)
        elif has_memory(value):
            groups.setdefault(value.untyped_storage().data_ptr(), []).append(value)
    for group in groups.values():
        if len(group) > 1:
            memory = group[0].untyped_storage().clone()
            for value in group:
                data = torch.empty(0, dtype=value.dtype, device=value.device)
                data.set_(memory, value.storage_offset(), value.shape, value.stride())
                is_parameter = isinstance(value, torch.nn.Parameter)
                made = torch.nn.Parameter(data, value.requires_grad) if is_parameter else data.requires_grad_(value.requires_grad)
                memo.setdefault(id(value), made)
    made_module: torch.nn.Module = copy.deepcopy(module, memo)
    part(made_module)
    return made_module


def sharing(module: torch.nn.Module) -> list[tuple[str, str]]:
    """Pairs of a parameter and another parameter or a buffer, by name, that have an element in common and are two tensors."""
    spans: list[tuple[int, int, str, torch.Tensor]] = []
    seen: set[int] = set()
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        if has_memory(value) and id(value) not in seen:
            seen.add(id(value))
            reach = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride()))
            spans.append((value.data_ptr(), value.data_ptr() + (1 + reach) * value.element_size(), name, value))
    found, end, last = [], 0, ("", torch.empty(0))
    for start, stop, name, value in sorted(spans, key=lambda span: span[:2]):
        if start < end and any(isinstance(one, torch.nn.Parameter) for one in (value, last[1])):
            found.append((last[0], name))
        if stop > end:
            end, last = stop, (name, value)
    return found
