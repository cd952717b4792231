"""The examples run and print what they promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import partita  # noqa: E402

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.mark.parametrize(
    "name, promised",
    [
        ("train_mlp", ["verified: ", "forward   2 all_reduce", "[{tp}, {}]", "step 20: PyTorch "]),
        (
            "slapo_mlp",
            [
                "rank 0 of 2",
                "verified: True",
                "sync_fn=partial(reduce_forward_output, group=None)",
                "[[('', add), ('', activation)]]",
                "as PyTorch: True",
            ],
        ),
        (
            "ms_demos",
            [
                "[dense_1, layer_norm, activation, dense_2]",
                "as PyTorch: True\nPyTorch: ",
                "call_module[target=FusedBlock_0](args = (%x,), kwargs = {})",
                'sch["dense_2"].shard("output", 0)',
                "step 4: PyTorch ",
            ],
        ),
        ("profiled", ["partita::backward", "dot_general", "Self Device time total: ", "2 traces"]),
        (
            "sequence_parallel",
            [
                'sch["in_proj"].colwise(input_from=shard(0), axis="mesh_0")',
                "step 0: 4.6895 on 3 ranks, 4.6895 in PyTorch",
                "parameters as in PyTorch: True",
            ],
        ),
        ("fsdp_tp", ["[{tp, dp}, {}]", "0,1,2,3: [16, 16], 1024 bytes each", "parameters as in PyTorch: True"]),
        (
            "nvfuser_matmul",
            [
                "Scheduled: as PyTorch True; nothing moves",
                "Cached: as PyTorch True; 2 all_gather",
                "Manual: as PyTorch True; 2 all_gather",
                "Distributed: as PyTorch True; nothing moves",
                "start #0 all_gather over [0, 2]",
            ],
        ),
    ],
)
def test_an_example_prints_what_it_promises(name, promised):
    # The package that is tested, installed or not.
    environment = os.environ | {"PYTHONPATH": str(Path(partita.__file__).resolve().parents[1])}
    command = [sys.executable, EXAMPLES / f"{name}.py"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    for text in promised:
        assert text in done.stdout
