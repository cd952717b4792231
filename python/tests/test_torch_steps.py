"""Steps after the first on PyTorch's own runtime, from two processes over gloo: what changes between steps, and what one rank
alone is refused, is as PyTorch computes it on one device, or is refused on both ranks.

Run as a script, in each process of a launcher, this file runs every case and writes what it found.
"""

import argparse
import copy
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.distributed as dist  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import partita  # noqa: E402
from partita import PartitaError  # noqa: E402

# A rank that waits for the other one fails the test.
LIMIT = datetime.timedelta(seconds=60)


class Scaled(nn.Module):
    """Has a parameter that is a scalar, and a temperature that a user may set."""

    def __init__(self):
        super().__init__()
        self.linear, self.scale, self.temperature = nn.Linear(4, 3), nn.Parameter(torch.tensor(0.5)), 1.0

    def forward(self, x):
        return self.linear(x) * self.scale / self.temperature


class Named(nn.Sequential):
    def forward(self, x):
        return {"values": super().forward(x)}


class Masked(nn.Linear):
    def forward(self, x):
        return super().forward(x).masked_fill(torch.arange(3) == 2, float("-inf"))


class Averaged(nn.Linear):
    """Computes its loss, over the rows of a mask."""

    def forward(self, x, mask):
        return (super().forward(x).square().mean(-1) * mask).sum() / mask.sum()


class Configured(nn.Linear):
    """Reads an object, and class weights in a buffer."""

    def __init__(self):
        super().__init__(4, 3)
        self.config = argparse.Namespace(reduction="mean")
        self.register_buffer("weights", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x, labels):
        return F.cross_entropy(super().forward(x), labels, weight=self.weights, reduction=self.config.reduction)


class Global(nn.Linear):
    def forward(self, x):
        return super().forward(x) * KIND["scale"]


def layers():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))


def numbers(*shape):
    return torch.randn(*shape)


def labels(*values):
    return torch.tensor(values)


KIND = {"reduction": "mean", "scale": 1.0}


def chosen(output, target):
    return F.mse_loss(output, target, reduction=KIND["reduction"])


def summed(output, target):
    return F.mse_loss(output["values"], target["y"])


def in_training(module):
    module.train()


def cooler(module):
    module.temperature = 0.5


def other_kind(_):
    KIND["reduction"] = "sum"


def other_config(module):
    module.config.reduction = "sum"


def other_weights(module):
    module.weights.copy_(torch.tensor([3.0, 1.0, 1.0]))


def other_scale(_):
    KIND["scale"] = 3.0


def other_on_one_rank(module):
    if hasattr(module, "temperature") and dist.get_rank() == 0:
        module.temperature = 0.25


def nothing(_):
    pass


def one_of(*values):
    """Another value on each rank."""
    return values[dist.get_rank()]


HALVES = {"0": "pipeline_split"}
# Name: the mesh, the plan, the module, the loss, two batches, what is done before the second, and what refuses it.
CASES = {
    "a scalar parameter": ("dp", None, Scaled, F.mse_loss, lambda: [(numbers(4, 4), numbers(4, 3))] * 2, nothing, ""),
    "a setting": ("dp", None, Scaled, F.mse_loss, lambda: [(numbers(4, 4), numbers(4, 3))] * 2, cooler, ""),
    "another loss": ("dp", None, layers, chosen, lambda: [(numbers(4, 4), numbers(4, 3))] * 2, other_kind, ""),
    "training mode": (
        "dp",
        None,
        lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval(),
        F.mse_loss,
        lambda: [(numbers(4, 4), numbers(4, 4))] * 2,
        in_training,
        "1.running_mean",
    ),
    "a setting of one rank": (
        "dp", None, Scaled, F.mse_loss, lambda: [(numbers(4, 4), numbers(4, 3))] * 2, other_on_one_rank, "on some ranks",
    ),
    "a setting of an object": (
        "dp", None, Configured, None, lambda: [(numbers(4, 4), labels(0, 1, 2, 0))] * 2, other_config, "`config`",
    ),
    "weights of classes": ("dp", None, Configured, None, lambda: [(numbers(4, 4), labels(0, 1, 2, 0))] * 2, other_weights, ""),
    "a global in stages": (
        "pp", {"0": "pipeline_split"}, lambda: nn.Sequential(nn.Linear(4, 4), Global(4, 3)), F.mse_loss,
        lambda: [(numbers(4, 4), numbers(4, 3))] * 2, other_scale, "was changed after apply()",
    ),
    "other batches": (
        "dp", None, layers, F.mse_loss, lambda: [(numbers(4, 4), one_of(z, z + (step > 0))) for step, z in enumerate([numbers(4, 3)] * 2)],
        nothing, "ranks are given different batches",
    ),
    "other rows": (
        "dp", None, layers, F.mse_loss,
        lambda: [(numbers(4, 4), numbers(4, 3)), (numbers(one_of(4, 3), 4), numbers(one_of(4, 3), 3))],
        nothing, "cannot be split evenly",
    ),
    "an argument on one rank": (
        "dp", None, layers, F.mse_loss, lambda: [(numbers(4, 4), numbers(4, 3)), one_of((numbers(4, 4), numbers(4, 3)), (numbers(4, 4),))],
        nothing, "called with other arguments",
    ),
    "no labels in a part": (
        "dp", None, lambda: Masked(4, 3), F.cross_entropy,
        lambda: [(numbers(4, 4), labels(0, 1, 1, 0)), (numbers(4, 4), labels(-100, -100, 1, 0))], nothing, "",
    ),
    "no rows in the mask of a part": (
        "dp", None, lambda: Averaged(4, 3), None,
        lambda: [(numbers(4, 4), labels(1.0, 1, 1, 1)), (numbers(4, 4), labels(0.0, 0, 1, 1))], nothing, "nothing counts",
    ),
    "named outputs and targets in stages": (
        "pp", HALVES, lambda: Named(nn.Linear(4, 4), nn.Linear(4, 3)), summed,
        lambda: [(numbers(4, 4), {"y": numbers(4, 3)}) for _ in range(2)], nothing, "",
    ),
    "another number of rows in stages": (
        "pp", HALVES, layers, F.mse_loss, lambda: [(numbers(4, 4), numbers(4, 3)), (numbers(8, 4), numbers(8, 3))],
        nothing, "were cut for other arguments",
    ),
    "a setting in stages": (
        "pp", HALVES, layers, F.mse_loss, lambda: [(numbers(4, 4), numbers(4, 3))] * 2, lambda module: module.eval(),
        "from which the stages were cut",
    ),
}  # fmt: skip


def steps(name, meshes):
    """The largest difference from PyTorch on one device, of each step; or what was refused."""
    import partita.torch

    axis, plan, make, loss, batches, change, _ = CASES[name]
    torch.manual_seed(0)
    KIND.update(reduction="mean", scale=1.0)
    module = make()
    plain, given = copy.deepcopy(module), batches()
    options = {"microbatches": 2, "example_inputs": given[0][:-1]} if axis == "pp" else {}
    if make is Configured:
        # The native engine has no weights of classes.
        options["check"] = False
    parallel = partita.torch.apply(plan, module, meshes[axis], loss=loss, **options)
    found = []
    for number, batch in enumerate(given):
        if number > 0:
            for side in (module, plain):
                change(side)
        try:
            value = parallel.backward(*batch)
        except PartitaError as error:
            return [*found, str(error)]
        right = plain(*batch) if loss is None else loss(plain(*batch[:-1]), batch[-1])
        right.backward()
        gradients = parallel.whole({key: each.grad for key, each in parallel.named_parameters()})
        differences = [(gradients[key] - each.grad).abs().max().item() for key, each in plain.named_parameters()]
        found.append(max(abs(value.item() - right.item()), *differences))
        for side in (parallel, plain):
            for each in side.parameters():
                each.grad = None
    return found


def main(path):
    from torch.distributed.device_mesh import init_device_mesh

    import partita.torch

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=LIMIT)
    meshes = {axis: init_device_mesh("cpu", (2,), mesh_dim_names=(axis,)) for axis in ("dp", "pp", "fsdp")}
    found = {}
    for name in CASES:
        everywhere = [None] * 2
        dist.all_gather_object(everywhere, steps(name, meshes))
        found[name] = everywhere
    refused = {}
    linear = layers()
    shared = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    shared[1].weight = shared[0].weight

    def penalty(output, target):
        return F.mse_loss(output, target) + sum(value.square().sum() for value in linear.parameters())

    for name, misuse in {
        "a penalty": lambda: partita.torch.apply(None, linear, meshes["dp"], loss=penalty).backward(
            torch.ones(4, 4), torch.ones(4, 3)
        ),
        "a shared parameter": lambda: partita.torch.apply(
            {"0": "fsdp", "1": "fsdp"}, shared, meshes["fsdp"], loss=F.mse_loss
        ),
        "one rank alone": lambda: partita.torch.apply(
            {one_of("none", "**"): "fsdp"}, layers(), meshes["fsdp"], loss=F.mse_loss
        ),
        "a loss that learns": lambda: partita.torch.apply(None, layers(), meshes["dp"], loss=nn.Linear(3, 1)),
    }.items():
        try:
            misuse()
        except PartitaError as error:
            refused[name] = str(error)
    # One rank fails inside of a pass: the other one waits for it.
    parallel = partita.torch.apply(None, layers(), meshes["dp"], loss=F.cross_entropy)
    x = torch.ones(4, 4)
    parallel.backward(x, labels(0, 1, 2, 0))
    begun, rank = time.monotonic(), dist.get_rank()
    try:
        parallel.backward(x, labels(0, 1, 2, 99))
    except (PartitaError, IndexError) as error:
        refused["a pass"] = str(error)
    refused["seconds"] = time.monotonic() - begun
    Path(f"{path}.{rank}").write_text(json.dumps({"steps": found, "refused": refused}))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    path = tmp_path_factory.mktemp("torch") / "found.json"
    environment = os.environ | {"PYTHONPATH": str(Path(partita.__file__).resolve().parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "partita.launch", "-n", "2", __file__, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return [json.loads(Path(f"{path}.{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_a_later_step_is_that_of_one_device_or_is_refused_on_both_ranks(found, name):
    reason = CASES[name][-1]
    for first, second in found[0]["steps"][name]:
        assert first < 1e-5
        if reason:
            assert isinstance(second, str) and reason in second
        else:
            assert second < 1e-5


def test_what_cannot_be_applied_has_a_code(found):
    for rank in found:
        assert "E394" in rank["refused"]["a penalty"] and "the loss reads parameters" in rank["refused"]["a penalty"]
        assert "0.weight = 1.weight" in rank["refused"]["a shared parameter"]
        assert "E221" in rank["refused"]["one rank alone"]
        assert "the loss has parameters" in rank["refused"]["a loss that learns"]


def test_a_rank_that_fails_in_a_pass_ends_the_other_one(found):
    assert found[1]["refused"]["a pass"] == "Target 99 is out of bounds."
    assert "E443" in found[0]["refused"]["a pass"] and "rank 1: IndexError: Target 99" in found[0]["refused"]["a pass"]
    assert all(rank["refused"]["seconds"] < 20 for rank in found)


if __name__ == "__main__":
    main(sys.argv[1])
