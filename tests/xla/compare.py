"""Compares training under XLA with training by `partita train`: losses of every step, and the state after the last.

For each model and mesh it exports the step in both forms, runs it through jaxlib on as many CPU devices as the mesh has
ranks, and trains the same config natively. After one step the states of the optimizer show every gradient (the first
average of Adam is a multiple of it), so equal states after one and after many steps mean equal gradients.

    python tests/xla/compare.py [--partita COMMAND] [--steps N] [--only MODEL:MESH]

Without --partita the command is that of the Python package, `python -m partita`. Pipelines run as their pieces; some meshes
also run in two processes of half the devices each, which jax.distributed connects, and, where root may make network
namespaces, in two such namespaces, as on two hosts. Where jax is missing it says
so and ends well.
"""

import argparse
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES = [
    ("mlp", "tp=2"), ("mlp", "dp=2"), ("mlp", "dp=2,tp=2"), ("mlp", "fsdp=4"), ("mlp", "dp=3"),
    ("gpt", "tp=2"), ("gpt", "dp=2"), ("gpt", "dp=2,tp=2"), ("gpt", "fsdp=4"), ("gpt", "dp=3"), ("gpt", "fsdp=3"),
    ("gpt", "fsdp=2,tp=2"),
]
SMALL = ["model.layers=2", "model.dim=64", "model.heads=4", "model.sequence=32", "train.batch=8", "model.dropout=0.0"]
SETTINGS = {"mlp": [], "gpt": SMALL}
PIPELINES = [
    ("mlp", "pp=2", "train.microbatches=4"),
    ("gpt", "pp=2", "train.microbatches=2", "model.dropout=0.1"),
    ("gpt", "dp=2,pp=2", "train.microbatches=4"),
    ("gpt", "tp=2,pp=2", "train.microbatches=2", "train.timetable=zb-h1"),
    ("gpt", "fsdp=2,pp=2", "train.microbatches=4", "train.timetable=gpipe"),
]
PROCESSES = [
    ("mlp", "dp=4"), ("gpt", "dp=2,tp=2"), ("gpt", "fsdp=4"),
    # A stage in each process, stages over both, and stages whose values change their layout on the way.
    ("gpt", "pp=2,tp=2", "train.microbatches=4", "model.dropout=0.1"),
    ("gpt", "dp=2,pp=2", "train.microbatches=2"),
    ("gpt", "pp=2,fsdp=2", "train.microbatches=2", "train.timetable=zb-h1"),
    ("mlp", "pp=2", "train.microbatches=4"),
]
TOLERANCE = 1e-4


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def imported(folder):
    """The runner of an exported step as a module."""
    spec = importlib.util.spec_from_file_location("run", folder / "run.py")
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    return runner


def tensors(runner, path):
    import numpy as np

    return {name: np.asarray(value, np.float64) for name, value in runner.read_safetensors(path).items()}


def largest_difference(expected, found):
    """The largest difference of optimizer states, relative to the largest state of their slot, and of parameters, relative to
    the largest parameter.

    Adam divides a gradient by its own size. Of a gradient that is zero but for rounding, such as that of the bias of the
    keys of attention, it makes an update of full size and random sign: such elements of parameters are not compared.
    """
    import numpy as np

    slots = {}
    for name in expected:
        slot = name.split(".")[1] if name.startswith("optimizer.") else ""
        slots.setdefault(slot, []).append(name)
    largest = {slot: max(abs(expected[name]).max(initial=0.0) for name in names) for slot, names in slots.items()}
    worst = 0.0
    for slot, names in slots.items():
        for name in names:
            difference = abs(found[name] - expected[name]) / largest[slot]
            if not slot:
                average = abs(expected[f"optimizer.exp_avg.{name}"])
                difference = np.where(average > 1e-5 * largest["exp_avg"], difference, 0.0)
            worst = max(worst, difference.max(initial=0.0))
    return worst


def compare(partita: list, model, mesh, steps, form, folder):
    """The largest relative difference of losses, that of states after the last step, and the counts of collectives."""
    settings = [f"train.steps={steps}", f"mesh.shape={mesh}", *SETTINGS[model]]
    flags = [part for setting in settings for part in ("--set", setting)]
    exported = folder / f"{form}-{steps}"
    run(*partita, "export", model, "--for", "xla", "--form", form, "--out", exported, *flags)
    runner = imported(exported)
    state = exported / "after.safetensors"
    printed = lines(run(sys.executable, exported / "run.py", "--json", "--collectives", "--save", state))
    theirs = [line["loss"] for line in printed if "loss" in line]
    counts = {line.pop("kind"): line for line in printed if "kind" in line}
    native = folder / f"native-{form}-{steps}"
    trained = lines(run(*partita, "train", model, "--json", "--no-verify", "--checkpoint-dir", native, *flags))
    ours = [line["loss"] for line in trained if line.get("event") == "step"]
    assert len(ours) == len(theirs) == steps, (len(ours), len(theirs))
    losses = max(abs(a - b) / abs(a) for a, b in zip(ours, theirs))
    files = sorted(native.glob(f"step-*{steps}/*.safetensors"))
    assert len(files) == 2, "parameters and states of the optimizer"
    expected = {name: value for file in files for name, value in tensors(runner, file).items()}
    found = tensors(runner, state)
    missing = set(expected) ^ set(found)
    assert not missing, missing
    return losses, largest_difference(expected, found), counts


def compare_engine(partita: list, model, mesh, steps, folder, more=(), launcher=()):
    """The largest relative difference of losses between the native engine and XLA: of a run from the beginning, and
    of one that continues it there, and one natively, from its checkpoint in the middle."""
    half = steps // 2
    settings = [f"train.steps={steps}", f"mesh.shape={mesh}", f"checkpoint.every={half}", *SETTINGS[model], *more]
    flags = [part for setting in settings for part in ("--set", setting)]

    def train(name, *more, launcher=()):
        command = [*launcher, *partita, "train", model, "--json", "--no-verify", "--checkpoint-dir", folder / name]
        events = lines(run(*command, *flags, *more))
        assert [event for event in events if event["event"] == "summary"], name
        return [event["loss"] for event in events if event.get("event") == "step"]

    expected = train("native")
    (folder / "other").mkdir()
    whole = train("other/whole", "--engine", "xla", launcher=launcher)
    middle = folder / "other" / "whole" / f"step-{half:08}"
    resumed = train("other/resumed", "--engine", "xla", "--resume", middle, launcher=launcher)
    back = train("other/back", "--resume", middle)
    assert (len(whole), len(resumed), len(back)) == (steps, steps - half, steps - half)
    pairs = [*zip(expected, whole), *zip(expected[half:], resumed), *zip(expected[half:], back)]
    return max(abs(a - b) / abs(a) for a, b in pairs)


class Hosts:
    """Two network namespaces with a cable between them: two hosts, as far as processes can see. None where they cannot be
    made: `why` says the reason."""

    def __init__(self):
        self.names, self.why = [f"partita-{os.getpid()}-{number}" for number in range(2)], None
        first, second = (f"p{os.getpid()}{end}" for end in "ab")
        commands = [["ip", "netns", "add", name] for name in self.names]
        commands += [["ip", "link", "add", first, "type", "veth", "peer", "name", second]]
        for number, (name, link) in enumerate(zip(self.names, (first, second))):
            commands += [["ip", "link", "set", link, "netns", name]]
            inside = ["ip", "-n", name]
            commands += [[*inside, "addr", "add", f"10.77.0.{number + 1}/24", "dev", link]]
            commands += [[*inside, "link", "set", each, "up"] for each in (link, "lo")]
        for command in commands:
            try:
                done = subprocess.run(command, capture_output=True, text=True)
            except OSError as error:
                self.why = str(error)
                return
            if done.returncode != 0:
                self.why = f"{' '.join(command)}: {done.stderr.strip()}"
                return

    def on(self, number):
        return ["ip", "netns", "exec", self.names[number]]

    def close(self):
        for name in self.names:
            if shutil.which("ip"):
                subprocess.run(["ip", "netns", "del", name], capture_output=True)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def listening(process):
    """The addresses at which a process listens, as the system writes them."""
    own = set()
    try:
        for fd in Path(f"/proc/{process}/fd").iterdir():
            own.add(os.readlink(fd).removeprefix("socket:[").removesuffix("]"))
    except OSError:
        return set()
    tables = [Path(f"/proc/{process}/net/{table}") for table in ("tcp", "tcp6")]
    lines = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    return {fields[1].split(":")[0] for fields in lines if fields[3] == "0A" and fields[9] in own}


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def compare_processes(partita: list, model, mesh, steps, folder, hosts=None, more=()):
    """The largest relative difference of losses between the exported step in one process and in two of half the devices each,
    on this machine or on two hosts, and that of their states after the last step."""
    settings = [f"train.steps={steps}", f"mesh.shape={mesh}", *SETTINGS[model], *more]
    flags = [part for setting in settings for part in ("--set", setting)]
    exported = folder / "exported"
    run(*partita, "export", model, "--for", "xla", "--out", exported, *flags)
    runner = imported(exported)
    command = [sys.executable, exported / "run.py", "--json"]
    alone = [line["loss"] for line in lines(run(*command, "--save", folder / "alone.safetensors"))]
    address = "127.0.0.1" if hosts is None else "10.77.0.1"
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [*(hosts.on(number) if hosts else []), *map(str, command), "--save", str(folder / "together.safetensors")],
            env=os.environ | place | {"RANK": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    opened = set()
    while any(process.poll() is None for process in processes):
        opened |= {address for process in processes for address in listening(process.pid)}
        time.sleep(0.1)
    if hosts is None and Path("/proc/net/tcp").exists():
        assert opened and opened <= LOOPBACK, f"open to other hosts: {opened - LOOPBACK}"
    said = [process.communicate(timeout=600) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert not lines(said[1][0]), "the second process printed"
    together = [line["loss"] for line in lines(said[0][0])]
    assert len(alone) == len(together) == steps, (alone, together)
    expected, found = (tensors(runner, folder / f"{name}.safetensors") for name in ("alone", "together"))
    assert expected.keys() == found.keys()
    losses = max(abs(a - b) / abs(a) for a, b in zip(alone, together))
    return losses, largest_difference(expected, found)


def report(name, worst, *more):
    print(f"{name}: {', '.join(more)}{'' if worst <= TOLERANCE else '  DIFFERS'}", flush=True)
    return worst > TOLERANCE

def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partita", type=Path, help="the command; python -m partita by default")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", help="one case, such as gpt:fsdp=4")
    options = parser.parse_args()
    if importlib.util.find_spec("jax") is None:
        print("skipped: this Python has no jax")
        return
    os.environ.setdefault("PARTITA_PYTHON", sys.executable)
    partita = [options.partita] if options.partita else [sys.executable, "-m", "partita"]
    failed = 0

    def cases(all):
        return [case for case in all if options.only in (None, f"{case[0]}:{case[1]}")]

    for model, mesh, *more in cases(PIPELINES):
        with tempfile.TemporaryDirectory() as folder:
            worst = compare_engine(partita, model, mesh, options.steps, Path(folder), more)
        name = f"{model} {' '.join([mesh, *more])}"
        failed += report(name, worst, f"losses of {options.steps} steps within {worst:.1e}")
    hosts = Hosts()
    if hosts.why is not None:
        print(f"skipped: two network namespaces: {hosts.why}")
    try:
        for model, mesh, *more in cases(PROCESSES):
            for where, on in [("on this machine", None), ("in two network namespaces", hosts)][: 1 + (hosts.why is None)]:
                with tempfile.TemporaryDirectory() as folder:
                    losses, states = compare_processes(partita, model, mesh, options.steps, Path(folder), on, more)
                worst = max(losses, states)
                text = f"losses of {options.steps} steps within {losses:.1e}, states within {states:.1e}"
                failed += report(f"{' '.join([model, mesh, *more])} in two processes {where}", worst, text)
    finally:
        hosts.close()
    for model, mesh in cases(CASES):
        for form in ("uniform", "global"):
            with tempfile.TemporaryDirectory() as folder:
                first = compare(partita, model, mesh, 1, form, Path(folder))
                all_steps = compare(partita, model, mesh, options.steps, form, Path(folder))
                engine = compare_engine(partita, model, mesh, options.steps, Path(folder)) if form == "uniform" else 0.0
            is_equal = max(*first[:2], all_steps[0], engine) <= TOLERANCE
            kinds = [f"{kind} {c['module']} -> {c['compiled']} of {c['tensors']} tensors" for kind, c in first[2].items()]
            failed += not is_equal
            print(
                f"{model} {mesh} {form}: losses of {options.steps} steps within {all_steps[0]:.1e}; state after 1 step "
                f"within {first[1]:.1e}, after {options.steps} within {all_steps[1]:.1e}; "
                f"train --engine xla within {engine:.1e}; collectives of the module -> as compiled: {', '.join(kinds)}{'' if is_equal else '  DIFFERS'}",
                flush=True,
            )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
