"""Runs a training step that `partita export --for xla` wrote.

It compiles the module with XLA through jaxlib (CPU, GPU or TPU devices, one for each rank), gives every device its shard
of the initial state, and then feeds, steps and donates: a step's new state takes the memory of the old one. All that is
known of the step is in `manifest.json`. Tried with jax and jaxlib 0.10.2; the calls of jaxlib are in `Program`.

    python run.py [--steps N] [--json] [--save state.safetensors] [--save-every N] [--save-in DIR] [--collectives]
"""

import argparse
import json
import os
import re
import struct
import sys
import time
from pathlib import Path

FORMAT = "partita-xla-1"
TRIED = "0.10.2"
SAFETENSORS = {
    "BOOL": "bool", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "I8": "int8", "I16": "int16",
    "I32": "int32", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}
MLIR = {
    "i1": "bool", "ui8": "uint8", "ui16": "uint16", "ui32": "uint32", "ui64": "uint64", "i8": "int8", "i16": "int16",
    "i32": "int32", "i64": "int64", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
}


class Refused(Exception):
    """A message for the user: what was expected and found."""


def element_type(name):
    import ml_dtypes
    import numpy as np

    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def read_safetensors(path):
    """Tensors by name, as views of the file."""
    import numpy as np

    data = np.memmap(path, dtype=np.uint8, mode="r")
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    header = json.loads(data[8 : 8 + length].tobytes())
    header.pop("__metadata__", None)
    body = data[8 + length :]
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = body[begin:end].view(element_type(SAFETENSORS[entry["dtype"]])).reshape(entry["shape"])
    return tensors


def write_safetensors(path, tensors):
    names = {element_type(numpy): name for name, numpy in SAFETENSORS.items()}
    header, offset = {}, 0
    for name, value in tensors.items():
        end = offset + value.nbytes
        header[name] = {"dtype": names[value.dtype], "shape": list(value.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in tensors.values():
            file.write(value.tobytes())


class Program:
    """A module of the manifest, compiled for a device per rank. Everything that is not a stable interface of JAX is here."""

    def __init__(self, manifest, module, folder):
        import jax
        import numpy as np
        from jax.extend import backend
        from jaxlib import xla_client

        self.jax, self.np, self.module = jax, np, module
        count = len(module["ranks"])
        devices = jax.devices()
        if len(devices) < count:
            raise Refused(f"the step runs on {count} devices, and {jax.default_backend()} has {len(devices)}")
        self.devices = devices[:count]
        self.mesh = jax.sharding.Mesh(np.array(self.devices), ("rank",))
        replicas, partitions = (count, 1) if manifest["form"] == "uniform" else (1, count)
        options = xla_client.CompileOptions()
        build = options.executable_build_options
        for target in (options, build):
            target.num_replicas, target.num_partitions = replicas, partitions
        ids = np.array([device.id for device in self.devices]).reshape(replicas, partitions)
        build.device_assignment = xla_client.DeviceAssignment.create(ids)
        build.use_spmd_partitioning = build.use_shardy_partitioner = manifest["form"] == "global"
        self.text = (folder / module["file"]).read_text()
        devices = xla_client.DeviceList(tuple(self.devices))
        self.executable = backend.get_backend().compile_and_load(self.text, devices, options)

    def place(self, tensor, value):
        """A global value as an array with this tensor's shard, padded, on each device."""
        np = self.np
        dtype = element_type(MLIR[tensor["dtype"]])
        shards = []
        for device, windows in zip(self.devices, tensor["shards"]):
            shard = np.zeros(tensor["held"], dtype)
            if value is not None:
                part = tuple(slice(start, limit) for start, limit in windows)
                shard[tuple(slice(0, limit - start) for start, limit in windows)] = np.asarray(value)[part]
            shards.append(self.jax.device_put(shard, device))
        return self.join(tensor, shards)

    def join(self, tensor, shards):
        """One array of the shards on the devices; XLA only looks at these."""
        axes = ("rank",) if tensor["held"] else ()
        sharding = self.jax.sharding.NamedSharding(self.mesh, self.jax.sharding.PartitionSpec(*axes))
        shape = tuple(tensor["held"])
        if shape:
            shape = (shape[0] * len(shards),) + shape[1:]
        return self.jax.make_array_from_single_device_arrays(shape, sharding, shards)

    def call(self, arguments):
        """The results: for each, the shard on each device."""
        return self.executable.execute_sharded(arguments).disassemble_into_single_device_arrays()

    def collectives(self):
        """For each kind of collective: how many the module has, how many XLA runs, and how many tensors these carry."""
        compiled = "".join(module.to_string() for module in self.executable.hlo_modules())
        counts = {}
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"):
            calls = re.findall(rf" {kind.replace('_', '-')}(?:-start)?\(([^)]*)\)", compiled)
            counts[kind] = {
                "module": self.text.count(f'"stablehlo.{kind}"('),
                "compiled": len(calls),
                "tensors": sum(call.count(",") + 1 for call in calls),
            }
        return {kind: count for kind, count in counts.items() if any(count.values())}

    def collect(self, tensor, shards):
        """The global value of shards, without their pads."""
        np = self.np
        value = np.zeros(tensor["shape"], element_type(MLIR[tensor["dtype"]]))
        for shard, windows in zip(shards, tensor["shards"]):
            part = tuple(slice(start, limit) for start, limit in windows)
            value[part] = np.asarray(shard)[tuple(slice(0, limit - start) for start, limit in windows)]
        return value


class Run:
    """An exported step with its state on the devices."""

    def __init__(self, folder):
        import numpy as np

        folder = Path(folder)
        self.manifest = json.loads((folder / "manifest.json").read_text())
        if self.manifest["format"] != FORMAT:
            raise Refused(f"this runner reads {FORMAT}, and the manifest is {self.manifest['format']}")
        (self.module,) = self.manifest["modules"]
        self.program = Program(self.manifest, self.module, folder)
        self.feeds = read_safetensors(folder / "feeds.safetensors")
        initial = read_safetensors(folder / "state.safetensors")
        self.kept = {
            tensor["name"]: self.program.place(tensor, initial.get(tensor["name"]))
            for tensor in self.module["inputs"]
            if tensor["kind"] in ("parameter", "state")
        }
        self.steps, self.scalar = self.manifest["first"], lambda tensor, value: np.array(value).astype(element_type(MLIR[tensor["dtype"]]))

    def argument(self, tensor):
        kind = tensor["kind"]
        if kind in ("parameter", "state"):
            return self.kept[tensor["name"]]
        if kind == "batch":
            name, (start, limit) = tensor["rows"]
            value = self.feeds[f"{self.steps + 1}/{name}"]
            return self.program.place(tensor, value[start:limit] if tensor["shape"] else value)
        scalars = {
            "learning_rate": self.manifest["learning_rates"][self.steps],
            "step": self.steps + 1,
            "seed": self.manifest["seed"],
        }
        return self.program.place(tensor, self.scalar(tensor, scalars[kind]))

    def step(self):
        """Runs one step; its results that replace nothing, by name."""
        if self.steps == len(self.manifest["learning_rates"]):
            raise Refused(f"there are batches for {self.steps} steps; export more with --set train.steps=N")
        inputs, outputs = self.module["inputs"], self.module["outputs"]
        results = self.program.call([self.argument(tensor) for tensor in inputs])
        replaced = {tensor["replaced_by"]: tensor["name"] for tensor in inputs if "replaced_by" in tensor}
        values = {}
        for number, (tensor, shards) in enumerate(zip(outputs, results)):
            if number in replaced:
                self.kept[replaced[number]] = self.program.join(tensor, shards)
            else:
                values[tensor["name"]] = self.program.collect(tensor, shards)
        self.steps += 1
        return values

    def state(self):
        """The global parameters and states, those in parts joined."""
        import numpy as np

        values = {}
        for tensor in self.module["inputs"]:
            if tensor["name"] in self.kept:
                shards = [shard.data for shard in self.kept[tensor["name"]].addressable_shards]
                values[tensor["name"]] = self.program.collect(tensor, shards)
        parts = {}
        for part in self.manifest["pieces"]:
            parts.setdefault((part["whole"], part["dim"]), []).append((part["window"], values.pop(part["part"])))
        for (whole, dim), pieces in parts.items():
            pieces.sort(key=lambda piece: piece[0])
            values[whole] = np.concatenate([value for _, value in pieces], dim)
        return values


def main():
    folder = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=folder, help="where the manifest is")
    parser.add_argument("--steps", type=int, help="how many steps; all that there are batches for by default")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each step")
    parser.add_argument("--save", type=Path, help="a new safetensors file for the state after the last step")
    parser.add_argument("--save-every", type=int, metavar="N", help="also save the state after every N-th step and the last")
    parser.add_argument("--save-in", type=Path, metavar="DIR", default=folder, help="the folder for these files")
    parser.add_argument("--collectives", action="store_true", help="count the collectives of the module and of XLA's program")
    options = parser.parse_args()
    manifest = json.loads((options.folder / "manifest.json").read_text())
    ranks = sum(len(module["ranks"]) for module in manifest["modules"])
    # Read when jax is imported: so many devices if they are CPUs.
    count = "--xla_force_host_platform_device_count"
    if count not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {count}={ranks}".strip()
    try:
        import jax
    except ImportError as error:
        raise Refused(f"jax and jaxlib are needed (tried with {TRIED}): pip install jax; {error}") from error
    jax.config.update("jax_enable_x64", True)
    try:
        run = Run(options.folder)
    except (AttributeError, TypeError) as error:
        raise Refused(f"jax {jax.__version__} has other calls than {TRIED}, with which this was tried: {error}") from error
    if options.collectives:
        counts = run.program.collectives()
        for kind, count in counts.items():
            line = f"{kind}: {count['module']} in the module, {count['compiled']} as compiled, of {count['tensors']} tensors"
            print(json.dumps({"kind": kind, **count}) if options.json else line, flush=True)
    left = len(manifest["learning_rates"]) - manifest["first"]
    steps = left if options.steps is None else options.steps
    for number in range(1, steps + 1):
        began = time.perf_counter()
        values = run.step()
        seconds = time.perf_counter() - began
        scalars = {name: float(value) for name, value in values.items() if value.ndim == 0}
        if options.json:
            print(json.dumps({"step": run.steps, **scalars, "seconds": seconds}), flush=True)
        else:
            print(f"step {run.steps}  " + "  ".join(f"{name} {value:.6f}" for name, value in scalars.items()), flush=True)
        every = options.save_every
        if every is not None and (number == steps or every and run.steps % every == 0):
            path = options.save_in / f"state-{run.steps}.safetensors"
            write_safetensors(path, run.state())
            print(json.dumps({"step": run.steps, "saved": str(path)}) if options.json else f"saved {path}", flush=True)
    if options.save:
        write_safetensors(options.save, run.state())


if __name__ == "__main__":
    try:
        main()
    except (Refused, OSError) as error:
        sys.exit(f"error: {error}")
