"""Trains a module three times and compares all that can be seen of it: under a plan, in PyTorch, and in PyTorch in f64.

The module in f64 says what is right. The one in f32 says how far rounding alone goes, so that a gradient that is nothing
but rounding, as that of a key's bias, is no error.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field
from typing import Any

import partita
import torch
from case import Arguments, Case, plan_of
from torch import nn
from torch.utils import _pytree as pytree

STEPS = 3
TOLERANCE = 1e-4
"""Of the largest number in a tensor, if that is not small beside the others of its kind."""

FLOOR = 1e-2
"""The least size of a tensor, as a part of the largest number in its step."""

FLOOR_OF_GRADIENTS = 64 * 2.0**-23 / TOLERANCE
"""The same for gradients, where terms cancel: 64 units in the last place of the largest one, as `verify` allows. Below it
a gradient that is zero in exact arithmetic, such as that of a bias before a norm, is rounding."""

FLOOR_OF_ALL = 1e-3
"""The same, as a part of the largest number in all steps: a loss may be so small that its gradients are rounding."""

ROUNDING = 50.0
"""How many times the error of PyTorch in f32 is allowed beside, up to ten times the tolerance."""

# Faults of a run: a program that was accepted, and then ended in another way than with its numbers.
_FAULTS = {*(f"E{code}" for code in range(401, 412)), "E413", "E416", "E417", "E418", "E443", "E445", "E464"}


@dataclass
class Entry:
    """A tensor that a user can see, or None where there is no gradient."""

    kind: str
    value: torch.Tensor | None


Trace = dict[str, Entry]


@dataclass
class Verdict:
    """What came of a module on a mesh: ``right``, ``refused``, ``wrong``, ``crashed`` or ``hung``."""

    mesh: str
    verdict: str
    error: float = 0.0
    code: str = ""
    where: str = ""
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_wrong(self) -> bool:
        return self.verdict not in ("right", "refused")


class Recorder:
    """One training of a module. ``differentiable`` are the outputs that PyTorch gives gradients, by forward pass."""

    def __init__(self, case: Case, module: nn.Module, dtype: torch.dtype, follows: Recorder | None = None) -> None:
        self.case, self.module, self.dtype, self.follows = case, module, dtype, follows
        self.trace: Trace = {}
        self.types: dict[str, str] = {}
        self.flags: dict[str, bool] = {}
        self.differentiable: dict[str, list[int]] = {}

    def train(self) -> Recorder:
        case, module = self.case, self.module
        parameters = list(module.parameters())
        trained = [value for value in parameters if value.requires_grad]
        optimizer: torch.optim.Optimizer
        if case.optimizer == "adamw":
            # A large constant below the root: rounding alone moves nothing.
            optimizer = torch.optim.AdamW(trained, lr=case.rate / 5, eps=1e-2)
        else:
            optimizer = torch.optim.SGD(trained, lr=case.rate, momentum=0.9)
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=step != 1)
            self._passes(step)
            for name, parameter in module.named_parameters():
                self._keep(f"step {step}, gradient of {name}", "gradient", parameter.grad)
            optimizer.step()
            for name, parameter in module.named_parameters():
                self._keep(f"step {step}, parameter {name}", "parameter", parameter)
            for name, buffer in module.named_buffers():
                self._keep(f"step {step}, buffer {name}", "buffer", buffer)
        return self

    def _passes(self, step: int) -> None:
        pattern, first, second = self.case.pattern, f"{step}a", f"{step}b"
        if pattern == "evaluated":
            was = self.module.training
            self.module.eval()
            with torch.no_grad():
                self._forward(second, step)
            self.module.train(was)
        done = [self._forward(first, step)]
        if pattern in ("joint", "reversed", "first"):
            done.append(self._forward(second, step))
        if pattern == "joint":
            self._backward(step, done)
        elif pattern == "reversed":
            self._backward(step, done[1:])
            self._backward(step, done[:1])
        elif pattern == "retained":
            self._backward(step, done, retain=True)
            self._backward(step, done)
        elif not (pattern == "dropped" and step == 1):
            self._backward(step, done[:1])
        if pattern == "accumulate":
            self._backward(step, [self._forward(second, step)])
        for label, arguments, _ in done:
            for number, value in enumerate(arguments.floats()):
                self._keep(f"step {step}, gradient of input {number} of pass {label}", "gradient", value.grad)

    def _forward(self, label: str, step: int) -> tuple[str, Arguments, Any]:
        drawn = self.case.batch(2 * step + (label[-1] == "b"))
        arguments = drawn.of(self.dtype, self.case.needs_input_gradients)
        outputs = self.module(*arguments.args, **arguments.kwargs)
        leaves, spec = pytree.tree_flatten(outputs)
        self.types[f"pass {label}"] = str(spec)
        tensors = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        for index, leaf in enumerate(leaves):
            key = f"pass {label}, output {index}"
            if index in tensors:
                self.types[key] = f"{leaf.dtype} {tuple(leaf.shape)}"
                self.flags[key] = leaf.requires_grad
                self._keep(key, "output" if leaf.is_floating_point() else "exact", leaf)
            else:
                self.types[key] = f"{type(leaf).__name__} {leaf}"
        self.differentiable[label] = [index for index in tensors if leaves[index].requires_grad]
        return label, arguments, outputs

    def _backward(self, step: int, done: list[tuple[str, Arguments, Any]], retain: bool = False) -> None:
        if self.case.objective is not None:
            factor = {"zero": 0.0, "large": 10.0, "other": -0.5}.get(self.case.cotangents[step], 1.0 + 0.25 * step)
            losses = [factor * self.case.objective(outputs, arguments) for _, arguments, outputs in done]
            if losses[0].requires_grad:
                torch.stack(losses).sum().backward(retain_graph=retain)
            return
        given, cotangents = [], []
        for label, _, outputs in done:
            leaves = pytree.tree_leaves(outputs)
            for index, cotangent in self._cotangents(step, label, leaves):
                given.append(leaves[index])
                cotangents.append(cotangent)
        if given:
            torch.autograd.backward(given, cotangents, retain_graph=retain)

    def _cotangents(self, step: int, label: str, leaves: list[Any]) -> list[tuple[int, torch.Tensor]]:
        """Outputs that are differentiated, each with its cotangent: drawn in f32, the same for all trainings."""
        places = (self.follows or self).differentiable[label]
        kind, draw = self.case.cotangents[step], self.case.draw("cotangents", label)
        if not places:
            return []
        if kind in ("all", "zero", "large"):
            chosen = places
        elif kind == "other":
            chosen = places[-1:]
        elif kind == "one":
            chosen = places[:1]
        else:
            chosen = sorted(draw.sample(places, draw.randint(1, len(places))))
        generator = torch.Generator().manual_seed(draw.randrange(2**31))
        found = []
        for index in chosen:
            shape = leaves[index].shape
            value = torch.randn(shape, generator=generator) * {"zero": 0.0, "large": 10.0}.get(kind, 1.0)
            if kind == "one":
                value = torch.ones(()).expand(shape)
            found.append((index, value.to(self.dtype)))
        return found

    def _keep(self, key: str, kind: str, value: torch.Tensor | None) -> None:
        if value is None:
            self.trace[key] = Entry(kind, None)
            return
        dense = value.detach()
        if dense.is_floating_point():
            self.trace[key] = Entry(kind, dense.to(torch.float64, copy=True))
        else:
            self.trace[key] = Entry("exact", dense.clone())


@dataclass
class Reference:
    """A module trained in PyTorch: in f64, and in f32."""

    exact: Recorder
    rounded: Recorder


def reference(case: Case) -> Reference:
    """Trains copies of a module in PyTorch."""
    exact = Recorder(case, copy.deepcopy(case.module).double(), torch.float64).train()
    rounded = Recorder(case, copy.deepcopy(case.module), torch.float32, exact).train()
    return Reference(exact, rounded)


def judged(case: Case, mesh: str, beside: Reference) -> Verdict:
    """Trains a module on a mesh and compares it."""
    began = time.monotonic()
    try:
        verdict = _judged(case, mesh, beside)
    except partita.PartitaError as error:
        code = str(getattr(error, "code", ""))
        text = " ".join(str(error).split())
        verdict = Verdict(mesh, "wrong" if code in _FAULTS else "refused", float("inf"), code, text[:400])
    except Exception as error:
        verdict = Verdict(mesh, "crashed", float("inf"), type(error).__name__, " ".join(str(error).split())[:400])
    verdict.seconds = time.monotonic() - began
    return verdict


def _judged(case: Case, mesh: str, beside: Reference) -> Verdict:
    """Where a model has fewer blocks than there are stages, its layers are found by the plan, as the refusal says."""
    try:
        return _trained(case, mesh, beside, {})
    except partita.PartitaError as error:
        if error.code != "E460":
            raise
        return _trained(case, mesh, beside, {"": "layers(2)"})


def _trained(case: Case, mesh: str, beside: Reference, more: dict[str, Any]) -> Verdict:
    module = copy.deepcopy(case.module)
    example = case.batch(0).of(torch.float32, False)
    model = _loaded(module, example.kwargs if example.kwargs and not example.args else example.args)
    draw = case.draw("plan", mesh)
    plan = plan_of(module, set(model.parameters), mesh, draw) if case.plan is None else case.plan(mesh)
    built = partita.Schedule(model, mesh, {**more, **(plan or {})} or None).build()
    found = Recorder(case, built, torch.float32, beside.exact).train()
    for key, expected in beside.rounded.types.items():
        if found.types.get(key) != expected:
            return Verdict(mesh, "wrong", float("inf"), "type", f"{key}: expected {expected}, found {found.types.get(key)}")
    error, where = compared(found.trace, beside)
    changed = [key for key, flag in beside.rounded.flags.items() if found.flags[key] != flag]
    notes = [f"{key}: requires_grad is {found.flags[key]}" for key in changed[:1]]
    if error > TOLERANCE:
        return Verdict(mesh, "wrong", error, "", where, notes)
    return Verdict(mesh, "right", error, "", where, notes)


def _loaded(module: nn.Module, example: Any) -> Any:
    """The model. Of several outputs that could be the loss, the first is named: a built module does not depend on it."""
    try:
        return partita.load(module, example)
    except partita.PartitaError as error:
        if error.code != "E360" or not error.found:
            raise
        return partita.load(module, example, loss=str(error.found).split(",")[0].strip())


def compared(found: Trace, beside: Reference) -> tuple[float, str]:
    """The largest error of a tensor, as a part of what it is measured with, and where it is. The first wrong tensor counts
    before those that follow from it."""
    exact, rounded = beside.exact.trace, beside.rounded.trace
    if list(found) != list(exact):
        missing = set(exact).symmetric_difference(found)
        return float("inf"), f"other tensors: {sorted(missing)[:4]}"
    largest: dict[tuple[str, str], float] = {}
    for key, entry in exact.items():
        place = (key.split(",")[0], entry.kind)
        for each in (place, ("", entry.kind)):
            largest[each] = max(largest.get(each, 0.0), _size(entry.value))
    worst, where = 0.0, ""
    # An optimizer that divides by the size of a gradient moves a parameter as far for rounding as for anything else.
    by_rounding: set[str] = set()
    for key, entry in exact.items():
        step, _, name = key.partition(", ")
        if entry.kind == "gradient" and entry.value is not None:
            if _size(entry.value) <= FLOOR_OF_GRADIENTS * TOLERANCE * largest[(step, entry.kind)]:
                by_rounding.add(name.replace("gradient of ", "parameter "))
        if name in by_rounding:
            continue
        mine, value, alike = found[key].value, entry.value, rounded[key].value
        if mine is None or value is None or alike is None:
            if (mine is None) != (value is None):
                return float("inf"), f"{key}: expected {_told(value)}, found {_told(mine)}"
            continue
        if mine.shape != value.shape:
            return float("inf"), f"{key}: expected {tuple(value.shape)}, found {tuple(mine.shape)}"
        if entry.kind == "exact":
            if not (torch.equal(mine, value) or torch.equal(mine, alike)):
                return float("inf"), f"{key}: expected {_told(value)}, found {_told(mine)}"
            continue
        floor = FLOOR_OF_GRADIENTS if entry.kind == "gradient" else FLOOR
        least = max(floor * largest[(key.split(",")[0], entry.kind)], FLOOR_OF_ALL * largest[("", entry.kind)])
        error = _error(mine, value, alike, least)
        if error > TOLERANCE:
            return error, f"{key}: expected {_told(value)}, found {_told(mine)}"
        if error > worst:
            worst, where = error, key
    return worst, where


def _error(mine: torch.Tensor, value: torch.Tensor, alike: torch.Tensor, least: float) -> float:
    """The error as a part of the size of the tensor, without what rounding explains."""
    same = (mine == value) | (mine.isnan() & value.isnan())
    if bool(same.all()):
        return 0.0
    difference = (mine - value).masked_fill(same, 0.0).abs().max().item()
    if difference != difference:
        return float("inf")
    size = max(_size(value), least, 1e-12)
    explained = min(ROUNDING * _size(alike - value), 10 * TOLERANCE * size)
    return difference / size if difference > TOLERANCE * size + explained else min(difference / size, TOLERANCE)


def _size(value: torch.Tensor | None) -> float:
    if value is None or value.numel() == 0 or not value.is_floating_point():
        return 0.0
    return torch.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0).abs().max().item()


def _told(value: torch.Tensor | None) -> str:
    if value is None:
        return "None"
    few = [f"{number:.6g}" for number in value.reshape(-1)[:4].tolist()]
    return f"[{', '.join(few)}{', ..' if value.numel() > 4 else ''}]"
