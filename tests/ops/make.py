#!/usr/bin/env python3
"""Calls each op of the import table at points where gradients go wrong, and records what PyTorch computes.

    OMP_NUM_THREADS=1 python3 make.py [FOLDER]      # writes cases.jsonl, beside this file unless FOLDER is given

README.md has the format of a line. The calls are in `cases.py` and `cases_of_*.py`.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch._export.serde.serialize as serde

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

NAMES = {
    torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64",
    torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8", torch.bool: "bool",
    torch.complex64: "c64", torch.complex128: "c128",
}

WITHOUT_DERIVATIVE = ("floor_divide", "copy")


def text(tensor):
    """The elements: the shortest decimals that are these numbers; of complex ones the parts."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.detach().resolve_conj())
    flat = tensor.detach().reshape(-1).clone()
    if not flat.is_floating_point():
        return " ".join(str(int(value)) for value in flat)
    kind = np.float16 if tensor.dtype == torch.float16 else np.float64 if tensor.dtype == torch.float64 else np.float32
    values = flat.to(torch.float32).numpy().astype(kind) if kind != np.float64 else flat.numpy()

    def one(value):
        if not np.isfinite(value):
            return str(value)
        word = np.format_float_scientific(value, trim="-", exp_digits=1)
        plain = np.format_float_positional(value, trim="-")
        return plain if len(plain) <= len(word) else word

    if tensor.dtype == torch.bfloat16:
        # Three digits tell bf16 numbers apart; the reader rounds to the nearest.
        values = [np.float32(value) for value in values]
        return " ".join(shortest_bf16(value) if np.isfinite(value) else str(value) for value in values)
    return " ".join(map(one, values))


def shortest_bf16(value):
    for digits in range(1, 9):
        word = f"{value:.{digits}g}"
        if torch.tensor(float(word)).to(torch.bfloat16).item() == float(value):
            return word.replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return repr(float(value))


def weights(tensor):
    """The cotangent of a result: four small numbers in turn, exact in every type; of complex numbers those of the parts."""
    if tensor.is_complex():
        return torch.view_as_complex(weights(torch.view_as_real(tensor.detach().resolve_conj())))
    count = torch.arange(tensor.numel(), dtype=torch.float64)
    return ((count * 3 % 4 + 1) / 2).reshape(tensor.shape).to(tensor.dtype)


class Program:
    """One call, as the JSON of an exported program states it."""

    def __init__(self):
        self.tensors = []

    def tensor(self, value):
        for at, known in enumerate(self.tensors):
            if known is value:
                return {"name": f"x{at}"}
        self.tensors.append(value)
        return {"name": f"x{len(self.tensors) - 1}"}

    def argument(self, value, kind):
        kind = str(kind)
        if value is None:
            return {"as_none": True}
        if isinstance(value, torch.Tensor):
            return {"as_tensor": self.tensor(value)}
        if isinstance(value, torch.dtype):
            return {"as_scalar_type": int(serde._TORCH_TO_SERIALIZE_DTYPE[value])}
        if isinstance(value, torch.device):
            return {"as_device": {"type": "cpu", "index": None}}
        if isinstance(value, bool):
            return {"as_bool": value}
        if isinstance(value, complex):
            return {"as_complex": {"real": number(value.real), "imag": number(value.imag)}}
        if isinstance(value, int):
            return {"as_float": float(value)} if kind.startswith(("float", "Optional[float]")) else {"as_int": value}
        if isinstance(value, float):
            return {"as_float": number(value)}
        if isinstance(value, str):
            return {"as_string": value}
        value = list(value)
        if any(isinstance(each, torch.Tensor) for each in value):
            if any(each is None for each in value) or "Optional[Tensor]" in kind:
                some = [{"as_none": True} if e is None else {"as_tensor": self.tensor(e)} for e in value]
                return {"as_optional_tensors": some}
            return {"as_tensors": [self.tensor(each) for each in value]}
        if all(isinstance(each, bool) for each in value) and value:
            return {"as_bools": value}
        if any(isinstance(each, float) for each in value):
            return {"as_floats": [number(float(each)) for each in value]}
        return {"as_ints": value}


def number(value):
    if value != value:
        return "NaN"
    return {float("inf"): "Infinity", float("-inf"): "-Infinity"}.get(value, value)


def find(name):
    namespace, op, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), op), overload)


def record(case):
    op = find(case.op)
    program = Program()
    arguments = []
    for position, spec in enumerate(op._schema.arguments):
        if position < len(case.args):
            value = case.args[position]
        elif spec.name in case.kwargs:
            value = case.kwargs[spec.name]
        else:
            continue
        arguments.append([spec.name, program.argument(value, spec.type)])
    inputs = [[NAMES[x.dtype], list(x.shape), text(x)] for x in program.tensors]
    trained = []
    for at, tensor in enumerate(program.tensors):
        if (tensor.is_floating_point() or tensor.is_complex()) and not any(tensor is other for other in case.fixed):
            tensor.requires_grad_(True)
            trained.append(at)
    # Of some ops PyTorch has no derivative: the values only.
    with torch.set_grad_enabled(case.op.split(".")[1] not in WITHOUT_DERIVATIVE):
        results = op(*case.args, **case.kwargs)
    is_list = isinstance(results, (list, tuple)) and str(op._schema.returns[0].type).startswith("List")
    results = list(results) if isinstance(results, (list, tuple)) else [results]
    kept = results if case.keep is None else results[: case.keep]
    followed = [result for result in kept if result.requires_grad]
    gradients = [None] * len(trained)
    if followed:
        leaves = [program.tensors[at] for at in trained]
        gradients = torch.autograd.grad(followed, leaves, [weights(r) for r in followed], allow_unused=True)
    line = {
        "op": case.op,
        "name": case.name,
        "inputs": inputs,
        "arguments": arguments,
        "results": [[NAMES[r.dtype], list(r.shape), text(r)] for r in kept],
        "unread": [[NAMES[r.dtype], list(r.shape)] for r in results[len(kept):]],
        "list": is_list,
        "followed": [at for at, result in enumerate(kept) if result.requires_grad],
        "gradients": {},
    }
    if followed:
        for at, gradient in zip(trained, gradients):
            leaf = program.tensors[at]
            line["gradients"][f"x{at}"] = text(torch.zeros_like(leaf) if gradient is None else gradient + 0)
    if case.tolerance is not None:
        line["tolerance"] = case.tolerance
    return line


def shared(lines):
    """The long texts that several cases have, and the cases with `@3` for the fourth of them."""
    counts = {}

    def each(value, change):
        if isinstance(value, dict):
            return {key: item if key in ("op", "name") else each(item, change) for key, item in value.items()}
        if isinstance(value, list):
            return [each(item, change) for item in value]
        return change(value) if isinstance(value, str) and len(value) > 40 else value

    def count(word):
        counts[word] = counts.get(word, 0) + 1
        return word

    for line in lines:
        each(line, count)
    texts = [word for word, times in counts.items() if times > 1]
    places = {word: f"@{at}" for at, word in enumerate(texts)}
    return [{"texts": texts}] + [each(line, lambda word: places.get(word, word)) for line in lines]


def main():
    import cases

    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    torch.set_num_threads(1)
    lines, seen, failed = [], set(), []
    for case in cases.all_cases():
        if (case.op, case.name) in seen:
            raise SystemExit(f"{case.op} `{case.name}` is there twice")
        seen.add((case.op, case.name))
        try:
            lines.append(record(case))
        except Exception as error:
            failed.append(f"{case.op} `{case.name}`: {type(error).__name__}: {error}")
    if failed:
        raise SystemExit("\n".join(failed))
    words = [json.dumps(line, separators=(",", ":")) + "\n" for line in shared(lines)]
    (folder / "cases.jsonl").write_text("".join(words))
    print(len(lines), "cases of", len({op for op, _ in seen}), "ops")


if __name__ == "__main__":
    main()
