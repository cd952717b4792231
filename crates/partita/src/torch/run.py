"""Trains a step that `partita export --for torch` wrote, on the distributed runtime of PyTorch, one process for each rank.

    python run.py [--steps N] [--json] [--save state.safetensors] [--save-every N] [--save-in DIR]
    torchrun --nproc-per-node RANKS run.py ..

Started alone it starts the processes on this machine; started by torchrun, or by anything that sets its variables, it is one
of them. The model is in `models.py`; `parallel` applies the lines of the plan: styles of `parallelize_module`,
`fully_shard`, activation checkpointing, pipeline stages. All sizes are in `manifest.json`. Tried with PyTorch 2.15.
"""

import argparse
import json
import math
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

FORMAT = "partita-torch-1"
HERE = Path(__file__).resolve().parent


def start(ranks):
    """Runs this script in a process for each rank; the exit code of the first that failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads = max(1, (os.cpu_count() or 1) // ranks)
    processes = []
    for rank in range(ranks):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
        place["MASTER_ADDR"] = "127.0.0.1"
        if "OMP_NUM_THREADS" not in os.environ:
            place["OMP_NUM_THREADS"] = threads
        environment = os.environ | {name: str(value) for name, value in place.items()}
        command = [sys.executable, *sys.argv, "--end-with-stdin"]
        processes.append(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE))
    ended = [threading.Thread(target=process.wait) for process in processes]
    for thread in ended:
        thread.start()
    codes = [None]
    while None in codes and not any(codes):
        time.sleep(0.02)
        codes = [process.poll() for process in processes]
    if any(codes):
        # Those that have the same reason say so by themselves.
        deadline = time.monotonic() + 2.0
        while None in codes and time.monotonic() < deadline:
            time.sleep(0.02)
            codes = [process.poll() for process in processes]
        for process in processes:
            process.kill()
    return next((code for code in codes if code), 0)


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


def read_safetensors(path):
    """Tensors by name."""
    import torch

    types = {
        "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
        "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    }
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            dtype = types[entry["dtype"]]
            begin, end = entry["data_offsets"]
            body = bytearray(data[8 + length + begin : 8 + length + end])
            tensor = torch.frombuffer(body, dtype=dtype) if body else torch.empty(0, dtype=dtype)
            tensors[name] = tensor.reshape(entry["shape"])
    return tensors


def write_safetensors(path, tensors):
    import torch

    header, offset = {}, 0
    for name, value in tensors.items():
        end = offset + value.numel() * value.itemsize
        kind = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}[str(value.dtype).split(".")[1]]
        header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in tensors.values():
            file.write(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())


class Run:
    """An exported step with its model on the ranks."""

    def __init__(self, manifest):
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        import models
        from parallel import apply
        from parallel._batch import batch_axes
        from parallel._parallel import set_whole

        self.manifest, self.torch, self.dist = manifest, torch, dist
        on_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if on_gpus:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpus else torch.device("cpu")
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        names, sizes = zip(*manifest["mesh"])
        if dist.get_world_size() != math.prod(sizes):
            raise RuntimeError(f"the mesh has {math.prod(sizes)} ranks, and there are {dist.get_world_size()} processes")
        mesh = init_device_mesh(self.device.type, sizes, mesh_dim_names=names)
        # Ranks with other rows of the batch draw other random numbers for dropout.
        place = 0
        for axis in batch_axes(mesh):
            place = place * mesh[axis].size() + mesh.get_local_rank(axis)
        torch.manual_seed(manifest["seed"] + place)
        state = read_safetensors(HERE / "state.safetensors")
        self.feeds = read_safetensors(HERE / "feeds.safetensors")
        module = models.MODELS[manifest["model"]](**manifest["sizes"])
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(state.pop(name))
        self.names = [name for name, _ in module.named_parameters()]
        self.steps = manifest["first"]
        example = self.batch(self.steps + 1)[:-1] if self.feeds else ()
        timetable = manifest["timetable"]
        self.parallel = apply(
            manifest["plan"],
            module,
            mesh,
            loss=models.LOSSES[manifest["loss"]],
            microbatches=manifest["microbatches"],
            timetable=timetable["name"] if timetable else "1f1b",
            example_inputs=tuple(torch.zeros_like(tensor) for tensor in example),
        )
        self.optimizer = self.made(manifest["optimizer"])
        # States that are in the file; others start at zero.
        own = dict(self.parallel.named_parameters())
        for name, value in state.items():
            _, slot, parameter = name.split(".", 2)
            if parameter in own:
                kept = self.optimizer.state[own[parameter]]
                kept[slot] = torch.zeros_like(own[parameter].detach())
                with torch.no_grad():
                    set_whole(kept[slot], value)
                if slot != "momentum_buffer":
                    kept["step"] = torch.tensor(float(self.steps))

    def made(self, rule):
        """The optimizer; weight decay is for matrices alone, unless the step says otherwise."""
        optim = self.torch.optim
        constants = {name: value for name, value in rule.items() if name != "name"}
        decay = constants.pop("weight_decay")
        groups = [[], []]
        for parameter in self.parallel.parameters():
            groups[self.manifest["decay_1d"] or parameter.ndim >= 2].append(parameter)
        named = [{"params": group, "weight_decay": decay * is_decayed} for is_decayed, group in enumerate(groups) if group]
        self.slots = {"SGD": ["momentum_buffer"] if constants.get("momentum") else []}.get(rule["name"], ["exp_avg", "exp_avg_sq"])
        return getattr(optim, rule["name"])(named, lr=0.0, **constants)

    def batch(self, step):
        """The whole batch of a step: the inputs of the model, then the target."""
        tensors = [self.feeds[f"{step}/{name}"] for name in self.manifest["inputs"]]
        tensors = [value.long() if value.dtype == self.torch.int32 else value for value in tensors]
        return [value.to(self.device) for value in tensors]

    def step(self):
        """Runs one step: the loss, and the norm of the gradients."""
        rates = self.manifest["learning_rates"]
        if self.steps == len(rates):
            raise RuntimeError(f"there are batches for {self.steps} steps; export more with --set train.steps=N")
        loss = float(self.parallel.backward(*self.batch(self.steps + 1)))
        clip = self.manifest["clip_grad_norm"]
        norm = float(self.parallel.clip_grad_norm_(math.inf if clip is None else clip))
        for group in self.optimizer.param_groups:
            group["lr"] = rates[self.steps]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        return loss, norm

    def state(self):
        """The parameters and the states of the optimizer, whole. Every process must call it."""
        torch = self.torch
        own = dict(self.parallel.named_parameters())
        whole = {name: value for name, value in self.parallel.whole(own).items() if name in self.names}
        states = {}
        for slot in self.slots:
            mine = {name: self.optimizer.state[each].get(slot, torch.zeros_like(each)) for name, each in own.items()}
            for name, value in self.parallel.whole(mine).items():
                states[f"optimizer.{slot}.{name}"] = value
        return whole | states


def train(options, manifest, own):
    import torch.distributed as dist

    run = Run(manifest)
    is_first = dist.get_rank() == 0

    def say(text, **line):
        if is_first:
            print(json.dumps(line) if options.json else text, file=own, flush=True)

    left = len(manifest["learning_rates"]) - manifest["first"]
    steps = left if options.steps is None else options.steps
    for number in range(1, steps + 1):
        began = time.perf_counter()
        loss, norm = run.step()
        seconds = time.perf_counter() - began
        say(f"step {run.steps}  loss {loss:.6f}  grad_norm {norm:.6f}", step=run.steps, loss=loss, grad_norm=norm, seconds=seconds)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, help="how many steps; all that there are batches for by default")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each step")
    parser.add_argument("--save", type=Path, help="a new safetensors file for the state after the last step")
    parser.add_argument("--save-every", type=int, metavar="N", help="also save the state after every N-th step and the last")
    parser.add_argument("--save-in", type=Path, metavar="DIR", default=HERE, help="the folder for these files")
    parser.add_argument("--end-with-stdin", action="store_true", help="end when the standard input does")
    options = parser.parse_args()
    if options.end_with_stdin:
        end_with_stdin()
    own = own_stdout() if "RANK" in os.environ else sys.stdout
    manifest = json.loads((HERE / "manifest.json").read_text())
    if manifest["format"] != FORMAT:
        sys.exit(f"error: this runner reads {FORMAT}, and the manifest is {manifest['format']}")
    if "RANK" not in os.environ:
        sys.exit(start(math.prod(size for _, size in manifest["mesh"])))
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        sys.exit(f"error: PyTorch is needed: pip install torch; {error}")
    from parallel._needs import Refused

    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    dist.init_process_group("nccl" if torch.cuda.is_available() and torch.cuda.device_count() >= local else "gloo")
    is_first = dist.get_rank() == 0
    try:
        train(options, manifest, own)
    except Refused as refused:
        # All ranks have the same reason, and one tells it.
        if is_first:
            print(json.dumps({"refused": refused.parts}) if options.json else refused, file=own, flush=True)
        os._exit(1)
    dist.barrier()
    dist.destroy_process_group()
    # All is written. The threads of PyTorch, and the one that reads the standard input, may keep Python from ending.
    own.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
