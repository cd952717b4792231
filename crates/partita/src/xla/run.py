"""Runs a training step that `partita export --for xla` wrote.

It compiles the modules with XLA through jaxlib (CPU, GPU or TPU devices, one for each rank), gives every device its shard
of the initial state, and then feeds, steps and donates: a step's new state takes the memory of the old one. A step without
a pipeline is one module; the stages of a pipeline are several, which start in their order and run as soon as what they read
is there. All that is known of the step is in `manifest.json`. Tried with jax and jaxlib 0.10.2; the calls of jaxlib that
are no stable interface are in `Program`.

    python run.py [--steps N] [--json] [--save state.safetensors] [--save-every N] [--save-in DIR] [--collectives]
    torchrun --nproc-per-node 2 run.py ..

Several processes, started by anything that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, connect through
jax.distributed; each has an equal number of the devices, and the first one prints and saves. All go through the modules in
the same order: each runs those of which it has devices, and takes part where values go to another process.
"""

import argparse
import json
import math
import os
import re
import socket
import struct
import sys
import threading
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


class Devices:
    """The devices of some ranks, in the order of the ranks, and what moves between the host and them."""

    def __init__(self, ranks):
        import jax
        import numpy as np

        self.jax, self.np, self.ranks = jax, np, tuple(ranks)
        # Programs that bring values of a kind from other processes.
        self.transfers = {}
        devices = jax.devices()
        if len(devices) <= max(ranks):
            raise Refused(f"the step runs on {max(ranks) + 1} devices, and {jax.default_backend()} has {len(devices)}")
        self.all = [devices[rank] for rank in ranks]
        self.mesh = jax.sharding.Mesh(np.array(self.all), ("rank",))
        self.own = [place for place, device in enumerate(self.all) if device.process_index == jax.process_index()]
        # Whether every process has one of them.
        self.is_everywhere = len({device.process_index for device in self.all}) == jax.process_count()

    def place(self, tensor, value):
        """A global value as an array with this tensor's shard, padded, on each device. None without a device here."""
        np = self.np
        dtype = element_type(MLIR[tensor["dtype"]])
        shards = []
        for place in self.own:
            windows = tensor["shards"][place]
            shard = np.zeros(tensor["held"], dtype)
            if value is not None:
                part = tuple(slice(start, limit) for start, limit in windows)
                shard[tuple(slice(0, limit - start) for start, limit in windows)] = np.asarray(value)[part]
            shards.append(self.jax.device_put(shard, self.all[place]))
        return self.join(tensor, shards)

    def join(self, tensor, shards):
        """One array of the shards on this process's devices; XLA only looks at these. None without a device here."""
        if not self.own:
            return None
        axes = ("rank",) if tensor["held"] else ()
        sharding = self.jax.sharding.NamedSharding(self.mesh, self.jax.sharding.PartitionSpec(*axes))
        shape = tuple(tensor["held"])
        if shape:
            shape = (shape[0] * len(self.all),) + shape[1:]
        return self.jax.make_array_from_single_device_arrays(shape, sharding, shards)

    def shards(self, array):
        """The shards on this process's devices, in the order of the ranks."""
        found = {shard.device.id: shard.data for shard in array.addressable_shards}
        return [found[self.all[place].id] for place in self.own]

    def collect(self, tensor, array):
        """The global value of an array, without the pads of its shards. With several processes, all must ask for it."""
        np = self.np
        shards = self.shards(array) if self.own else []
        places = self.own
        if self.jax.process_count() > 1 and (tensor["held"] or not self.is_everywhere):
            holders = self if self.is_everywhere else Devices(range(len(self.jax.devices())))
            held = tuple(tensor["held"]) or (1,)
            found = dict(zip((self.all[place].id for place in self.own), shards))
            empty = np.zeros(held, element_type(MLIR[tensor["dtype"]]))
            given = [(found.get(holders.all[place].id, empty), holders.all[place]) for place in holders.own]
            given = [self.jax.device_put(shard.reshape(held), device) for shard, device in given]
            replicated = self.jax.sharding.NamedSharding(holders.mesh, self.jax.sharding.PartitionSpec())
            array = holders.join({"held": held}, given)
            everywhere = self.jax.jit(lambda value: value, out_shardings=replicated)(array)
            whole = np.split(np.asarray(everywhere.addressable_shards[0].data), len(holders.all))
            order = [device.id for device in holders.all]
            shards = [whole[order.index(device.id)].reshape(tensor["held"]) for device in self.all]
            places = range(len(self.all))
        value = np.zeros(tensor["shape"], element_type(MLIR[tensor["dtype"]]))
        for place, shard in zip(places, shards):
            windows = tensor["shards"][place]
            part = tuple(slice(start, limit) for start, limit in windows)
            value[part] = np.asarray(shard)[tuple(slice(0, limit - start) for start, limit in windows)]
        return value

    def receive(self, tensor, sent, sender, array):
        """An array of the devices `sender` with the layout of `sent` as one of this tensor's: from device to device where the
        ranks have equal shards, through the host elsewhere. With several processes, all must ask for it."""
        if sent["shards"] != tensor["shards"] or sent["held"] != tensor["held"]:
            return self.place(tensor, sender.collect(sent, array))
        pairs = list(zip(sender.all, self.all))
        if any(first.process_index != second.process_index for first, second in pairs):
            return self.receive_from_processes(tensor, sender, array)
        if not self.own:
            return None
        found = dict(zip(sender.own, sender.shards(array)))
        return self.join(tensor, [self.jax.device_put(found[place], self.all[place]) for place in self.own])

    def receive_from_processes(self, tensor, sender, array):
        """The same where ranks of a pair are in different processes: a collective permute over both sets of devices."""
        both = tuple(sender.ranks) + tuple(self.ranks)
        kind = (both, tuple(tensor["held"]), tensor["dtype"])
        if kind not in self.transfers:
            devices = Devices(both)
            empty = self.np.zeros(tensor["held"], element_type(MLIR[tensor["dtype"]]))
            empty = {place: self.jax.device_put(empty, self.all[place]) for place in self.own}
            text = transfer(len(self.all), tensor)
            program = Program("uniform", text, devices) if devices.own else None
            self.transfers[kind] = (devices, program, empty)
        devices, program, empty = self.transfers[kind]
        if program is None:
            return None
        shards = [*(sender.shards(array) if sender.own else []), *empty.values()]
        (moved,) = program.call([devices.join(tensor, shards)])
        found = {shard.device.id: shard for shard in moved}
        return self.join(tensor, [found[self.all[place].id] for place in self.own])


def transfer(count, tensor):
    """A module that moves a tensor from each of the first `count` of twice as many devices to one of the others."""
    of = f"tensor<{''.join(f'{size}x' for size in tensor['held'])}{tensor['dtype']}>"
    pairs = ", ".join(f"[{place}, {count + place}]" for place in range(count))
    return f"""module @transfer attributes {{mhlo.num_partitions = 1 : i32, mhlo.num_replicas = {2 * count} : i32}} {{
  func.func public @main(%0: {of}) -> {of} {{
    %1 = "stablehlo.collective_permute"(%0) <{{
      source_target_pairs = dense<[{pairs}]> : tensor<{count}x2xi64>
    }}> : ({of}) -> {of}
    return %1 : {of}
  }}
}}
"""


class Program:
    """A module, compiled for a device per rank. Everything that is not a stable interface of JAX is here."""

    def __init__(self, form, text, devices):
        from jax.extend import backend
        from jaxlib import xla_client

        self.text, self.executable = text, None
        if not devices.own:
            return
        count = len(devices.all)
        replicas, partitions = (count, 1) if form == "uniform" else (1, count)
        options = xla_client.CompileOptions()
        build = options.executable_build_options
        for target in (options, build):
            target.num_replicas, target.num_partitions = replicas, partitions
        ids = devices.np.array([device.id for device in devices.all]).reshape(replicas, partitions)
        build.device_assignment = xla_client.DeviceAssignment.create(ids)
        build.use_spmd_partitioning = build.use_shardy_partitioner = form == "global"
        self.executable = backend.get_backend().compile_and_load(
            text, xla_client.DeviceList(tuple(devices.all)), options
        )

    def call(self, arguments):
        """The results: for each, the shard on each device."""
        return self.executable.execute_sharded(arguments).disassemble_into_single_device_arrays()

    def collectives(self):
        """For each kind of collective: how many the module has, how many XLA runs, how many tensors these carry, and the
        bytes of their results on one device."""
        if self.executable is None:
            raise Refused("collectives are counted where one process has devices of every stage, such as a single one")
        compiled = "".join(module.to_string() for module in self.executable.hlo_modules())
        counts = {}
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"):
            calls = re.findall(rf"= (.*?) {kind.replace('_', '-')}(?:-start)?\(([^)]*)\)", compiled)
            tensors = [shape for results, _ in calls for shape in re.findall(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]", results)]
            bits = [8 if dtype == "pred" else int(re.search(r"\d+", dtype)[0]) for dtype, _ in tensors]
            elements = [math.prod(int(size) for size in dims.split(",") if size) for _, dims in tensors]
            counts[kind] = [
                self.text.count(f'"stablehlo.{kind}"('),
                len(calls),
                sum(operands.count(",") + 1 for _, operands in calls),
                sum(size * count for size, count in zip(bits, elements)) // 8,
            ]
        return counts


class Run:
    """A step with its state on the devices.

    `text_of` gives the text of a module by its file, `initial` has values by name; what it lacks starts at zero.
    """

    def __init__(self, manifest, text_of, initial):
        self.manifest = manifest
        if self.manifest["format"] != FORMAT:
            raise Refused(f"this runner reads {FORMAT}, and the manifest is {self.manifest['format']}")
        self.modules = self.manifest["modules"]
        devices, programs = {}, {}
        self.programs, self.devices = [], []
        for module in self.modules:
            ranks = tuple(module["ranks"])
            if ranks not in devices:
                devices[ranks] = Devices(ranks)
            key = (module["file"], ranks)
            if key not in programs:
                programs[key] = Program(self.manifest["form"], text_of(module["file"]), devices[ranks])
            self.programs.append(programs[key])
            self.devices.append(devices[ranks])
        # After which module a value that modules hand on is read no more.
        self.last_read = {}
        for number, module in enumerate(self.modules):
            for tensor in module["inputs"]:
                self.last_read[tensor["name"]] = number
        # By name: what a value is, the devices that have it, and its array.
        self.kept = {}
        for module, devices in zip(self.modules, self.devices):
            for tensor in module["inputs"]:
                name = tensor["name"]
                if tensor["kind"] in ("parameter", "state") and name not in self.kept:
                    self.kept[name] = (tensor, devices, devices.place(tensor, initial.get(name)))
        self.steps = self.manifest["first"]

    def get(self, name):
        """The global value of a parameter or state. With several processes, all must ask for it."""
        tensor, devices, array = self.kept[name]
        return devices.collect(tensor, array)

    def set(self, name, value):
        """Gives a parameter or state another global value."""
        tensor, devices, _ = self.kept[name]
        self.kept[name] = (tensor, devices, devices.place(tensor, value))

    def argument(self, tensor, devices, carried, fed):
        kind, name = tensor["kind"], tensor["name"]
        if kind in ("parameter", "state"):
            return self.kept[name][2]
        if kind == "carried":
            return carried[name][2]
        if kind == "received":
            sent, sender, array = carried[name] if name in carried else self.kept[name]
            return devices.receive(tensor, sent, sender, array)
        if kind == "batch":
            name, (start, limit) = tensor["rows"]
            return devices.place(tensor, fed[name][start:limit] if tensor["shape"] else fed[name])
        return devices.place(tensor, devices.np.array(fed[kind]).astype(element_type(MLIR[tensor["dtype"]])))

    def step(self, fed):
        """Runs one step on the tensors of a batch by name, and `learning_rate`, `step` and `seed` where it reads them; its
        results that replace nothing, by name."""
        carried, given = {}, {}
        for number, (module, program, devices) in enumerate(zip(self.modules, self.programs, self.devices)):
            inputs, outputs = module["inputs"], module["outputs"]
            arguments = [self.argument(tensor, devices, carried, fed) for tensor in inputs]
            results = program.call(arguments) if devices.own else [None] * len(outputs)
            for tensor in inputs:
                if self.last_read[tensor["name"]] == number:
                    carried.pop(tensor["name"], None)
            for tensor, shards in zip(outputs, results):
                value = (tensor, devices, devices.join(tensor, shards))
                if tensor["kind"] == "carried":
                    carried[tensor["name"]] = value
                elif tensor["kind"] == "new_value":
                    self.kept[tensor["name"]] = (self.kept[tensor["name"]][0], devices, value[2])
                else:
                    given[tensor["name"]] = value
        self.steps += 1
        return {name: devices.collect(tensor, array) for name, (tensor, devices, array) in given.items()}

    def state(self):
        """The global parameters and states, those in parts joined."""
        import numpy as np

        values = {name: devices.collect(tensor, array) for name, (tensor, devices, array) in self.kept.items()}
        parts = {}
        for part in self.manifest["pieces"]:
            parts.setdefault((part["whole"], part["dim"]), []).append((part["window"], values.pop(part["part"])))
        for (whole, dim), pieces in parts.items():
            pieces.sort(key=lambda piece: piece[0])
            values[whole] = np.concatenate([value for _, value in pieces], dim)
        return values

    def collectives(self):
        """Over all modules, each as often as it runs."""
        counts = {}
        for program in self.programs:
            for kind, numbers in program.collectives().items():
                found = counts.setdefault(kind, {"module": 0, "compiled": 0, "tensors": 0, "bytes": 0})
                for name, number in zip(found, numbers):
                    found[name] += number
        return {kind: count for kind, count in counts.items() if any(count.values())}


def own_stdout():
    """The standard output for this script alone: what libraries print there goes to the standard error."""
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return own


def end_with_stdin():
    """Ends this process when its standard input does: the program that started it has ended."""

    def wait():
        # Not through sys.stdin, whose lock a thread may not hold when Python ends.
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def join_processes(host, port, count, index):
    """Makes this process one of `count` that jax.distributed connects; the first one listens at the port of the host. Ports
    are opened at the address alone by which this process reaches that host: at a loopback address if it is one."""
    import jax
    from jax._src.lib import _jax

    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as route:
        # Sends nothing; the system chooses the address.
        route.connect(address)
        own = route.getsockname()[0]
    # JAX would let gloo listen at the address of the name of this machine, which may be one of a network.
    make = _jax.make_gloo_tcp_collectives
    _jax.make_gloo_tcp_collectives = lambda distributed_client: make(distributed_client=distributed_client, hostname=own)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    bound = f"[{own}]:{port}" if ":" in own else f"{own}:{port}"
    jax.distributed.initialize(f"{host}:{port}", count, index, coordinator_bind_address=bound)


def connect(ranks):
    """Joins the processes of a launcher; the devices of this one, all without a launcher."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" not in os.environ or count == 1:
        return ranks, lambda: None
    if ranks % count != 0:
        raise Refused(f"{count} processes cannot share {ranks} devices equally")

    def join():
        join_processes(
            os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ["MASTER_PORT"]), count, int(os.environ["RANK"])
        )

    return ranks // count, join


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
    parser.add_argument("--end-with-stdin", action="store_true", help="end when the standard input does")
    options = parser.parse_args()
    own = own_stdout()
    if options.end_with_stdin:
        end_with_stdin()
    manifest = json.loads((options.folder / "manifest.json").read_text())
    ranks = max(max(module["ranks"]) for module in manifest["modules"]) + 1
    devices, join = connect(ranks)
    # Read when jax is imported: so many devices if they are CPUs.
    count = "--xla_force_host_platform_device_count"
    if count not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {count}={devices}".strip()
    try:
        import jax
    except ImportError as error:
        raise Refused(f"jax and jaxlib are needed (tried with {TRIED}): pip install jax; {error}") from error
    jax.config.update("jax_enable_x64", True)
    join()
    is_first = jax.process_index() == 0

    def say(text, **line):
        if is_first:
            print(json.dumps(line) if options.json else text, file=own, flush=True)

    feeds = read_safetensors(options.folder / "feeds.safetensors")
    initial = read_safetensors(options.folder / "state.safetensors")

    def fed(step):
        """What step `step`, the first one being 1, reads."""
        rates, batch = manifest["learning_rates"], f"{step}/"
        if step > len(rates):
            raise Refused(f"there are batches for {len(rates)} steps; export more with --set train.steps=N")
        tensors = {name.removeprefix(batch): value for name, value in feeds.items() if name.startswith(batch)}
        return tensors | {"learning_rate": rates[step - 1], "step": step, "seed": manifest["seed"]}

    try:
        run = Run(manifest, lambda file: (options.folder / file).read_text(), initial)
    except (AttributeError, TypeError) as error:
        raise Refused(f"jax {jax.__version__} has other calls than {TRIED}, with which this was tried: {error}") from error
    if options.collectives:
        for kind, count in run.collectives().items():
            text = f"{count['module']} in the module, {count['compiled']} as compiled"
            text += f", of {count['tensors']} tensors, {count['bytes']} bytes"
            say(f"{kind}: {text}", kind=kind, **count)
    left = len(manifest["learning_rates"]) - manifest["first"]
    steps = left if options.steps is None else options.steps
    for number in range(1, steps + 1):
        began = time.perf_counter()
        values = run.step(fed(run.steps + 1))
        seconds = time.perf_counter() - began
        scalars = {name: float(value) for name, value in values.items() if value.ndim == 0}
        text = "  ".join(f"{name} {value:.6f}" for name, value in scalars.items())
        say(f"step {run.steps}  {text}", step=run.steps, **scalars, seconds=seconds)
        every = options.save_every
        if every is not None and (number == steps or every and run.steps % every == 0):
            path, state = options.save_in / f"state-{run.steps}.safetensors", run.state()
            if is_first:
                write_safetensors(path, state)
            say(f"saved {path}", step=run.steps, saved=str(path))
    if options.save:
        state = run.state()
        if is_first:
            write_safetensors(options.save, state)


if __name__ == "__main__":
    try:
        main()
    except (Refused, OSError) as error:
        sys.exit(f"error: {error}")
