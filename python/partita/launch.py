"""``python -m partita.launch -n N script.py ..``: runs a script once per rank, for programs that are written so.

Each process gets the variables of ``torchrun`` (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``,
``MASTER_ADDR``, ``MASTER_PORT``). The ranks of a mesh are shared among the processes, which exchange their tensors in
mapped files; every process must plan and run the same steps on the same global tensors. Lines of output begin with the
rank. When a process fails, the others are ended, and one message says which one it was. Weights of models that differ among
processes are refused (E395); with ``PARTITA_CHECK=1`` inputs too.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

from partita import _partita
from partita._error import refuse
from partita._launched import report_of

# How long the others have to end by themselves when one has failed.
_GRACE_S = 2.0
# The folder of a launch is called by this and the id of its process.
_FOLDER = "partita-launch-"
# Seconds between two checks for a rank that has failed.
_LOOK_S = 0.1


def variables(rank: int, count: int, port: int, folder: str) -> dict[str, str]:
    """What a process is told of its place."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PARTITA_LAUNCH": f"{rank}/{count}:{folder}",
        "PYTHONUNBUFFERED": "1",
    }


def launch(command: Sequence[str], count: int, port: int | None = None) -> int:
    """Runs a command in ``count`` processes; returns 0, or the exit code of the first that failed (130 for Ctrl-C)."""
    # Mapped files are fastest in memory, where the system has a place for them.
    memory = "/dev/shm" if os.path.isdir("/dev/shm") and "TMPDIR" not in os.environ else None
    _partita.remove_leftovers(memory or tempfile.gettempdir(), _FOLDER)
    folder = tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-", dir=memory)
    ended: queue.Queue[int] = queue.Queue()
    processes: list[subprocess.Popen[bytes]] = []
    readers: list[threading.Thread] = []
    printing = threading.Lock()
    try:
        for rank in range(count):
            environment = os.environ | variables(rank, count, port or _free_port(), folder)
            process = subprocess.Popen(
                command,
                env=environment,
                # Nothing is written: a process ends when this pipe does, however its launcher ended.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            port = int(environment["MASTER_PORT"])
            processes.append(process)
            readers.append(threading.Thread(target=_print_lines, args=(rank, process, printing), daemon=True))
            threading.Thread(target=_report, args=(rank, process, ended), daemon=True).start()
            readers[-1].start()
        return _wait(processes, readers, ended, folder)
    finally:
        for process in processes:
            _signal(process, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def _wait(
    processes: list[subprocess.Popen[bytes]],
    readers: list[threading.Thread],
    ended: queue.Queue[int],
    folder: str,
) -> int:
    """Waits for all processes; for the others only so long, when one has failed."""
    failed, code, deadline = None, 0, None
    # What processes said that could not go on without another one.
    left: dict[int, str] = {}
    remaining = len(processes)
    while remaining and (deadline is None or time.monotonic() < deadline):
        rank = None
        try:
            # Python's own wait is not ended by a signal without a limit.
            rank = ended.get(timeout=_LOOK_S)
            remaining -= 1
        except queue.Empty:
            pass
        except KeyboardInterrupt:
            code, deadline = 130, time.monotonic() + _GRACE_S
            _signal_all(processes, signal.SIGINT)
            continue
        if failed is not None or code:
            continue
        own = _read_reports(folder, len(processes), left)
        if own is None and rank is not None and processes[rank].returncode and rank not in left:
            own = rank
        if own is not None:
            # It may end by itself; what it has to say it has said.
            failed, deadline = own, time.monotonic() + _GRACE_S
            _signal_all([process for place, process in enumerate(processes) if place != own], signal.SIGTERM)
        elif left and deadline is None:
            deadline = time.monotonic() + _GRACE_S
    running = [rank for rank, process in enumerate(processes) if process.poll() is None]
    if left and failed is None and not code:
        # The one that the others miss is still ending; or all others are done.
        failed = next((rank for rank in running if rank not in left), min(left))
    statuses = [process.poll() for process in processes]
    _signal_all(processes, signal.SIGKILL)
    for reader in readers:
        reader.join(1.0)
    if failed is not None:
        # A process that is stopped here, after it has failed, has no code of its own.
        status = statuses[failed] or 1
        code = status if status > 0 else 128 - status
        how = f"exit code {status}" if status > 0 else f"ended by {signal.Signals(-status).name}"
        for line in left.get(failed, "").splitlines():
            print(f"[rank {failed}] {line}", flush=True)
        others = "its output is above" if len(processes) == 1 else "its output is above; the other ranks were ended"
        error = refuse("E449", f"rank {failed} of {len(processes)} failed: {how}", help=others)
        print(error, file=sys.stderr, flush=True)
    return code


def _read_reports(folder: str, count: int, left: dict[int, str]) -> int | None:
    """A process that says that it has failed by itself; adds those that miss another one to ``left``."""
    for rank in range(count):
        report = report_of(folder, rank)
        if rank not in left and report.exists():
            text = report.read_text()
            if not text:
                return rank
            left[rank] = text
    return None


def _print_lines(rank: int, process: subprocess.Popen[bytes], printing: threading.Lock) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        with printing:
            sys.stdout.buffer.write(b"[rank %d] " % rank + line.rstrip(b"\r\n") + b"\n")
            sys.stdout.buffer.flush()


def _report(rank: int, process: subprocess.Popen[bytes], ended: queue.Queue[int]) -> None:
    process.wait()
    ended.put(rank)


def _signal_all(processes: list[subprocess.Popen[bytes]], what: signal.Signals) -> None:
    for process in processes:
        if process.poll() is None:
            _signal(process, what)


def _signal(process: subprocess.Popen[bytes], what: signal.Signals) -> None:
    """To the process and what it has started."""
    try:
        os.killpg(process.pid, what)
    except (ProcessLookupError, PermissionError):
        pass


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m partita.launch", description="Runs a script once per rank, in processes of this machine."
    )
    parser.add_argument("-n", "--nproc-per-node", "--nproc_per_node", type=int, required=True, metavar="N", help="the number of processes")
    parser.add_argument("--master-port", type=int, help="the port for torch.distributed; by default a free one")
    parser.add_argument("-m", "--module", action="store_true", help="the script is a module, as for python -m")
    parser.add_argument("script", help="the script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    given = parser.parse_args(arguments)
    if given.nproc_per_node < 1:
        parser.error("-n needs at least one process")
    if not given.module and not os.path.isfile(given.script):
        parser.error(f"there is no script {given.script}")
    command = [sys.executable, *(["-m"] if given.module else []), given.script, *given.arguments]
    return launch(command, given.nproc_per_node, given.master_port)


if __name__ == "__main__":
    sys.exit(main())
