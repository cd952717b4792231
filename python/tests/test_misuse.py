"""What a person does wrong, and what he is told."""

import functools
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest

import partita

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn as nn  # noqa: E402

from partita import ms, slapo  # noqa: E402


class MLP(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


X = torch.randn(4, 8)


def refusal(wrong):
    with pytest.raises(partita.PartitaError) as refused:
        wrong()
    assert str(refused.value).startswith(f"error[{refused.value.code}]: ")
    return refused.value


def test_a_wrong_axis():
    sch = partita.Schedule(partita.load(MLP(), X), "tp=2")
    assert refusal(lambda: sch["up"].shard("weight", 2)).code == "E224"
    assert refusal(lambda: sch["up"].shard("weight", 0, "pp")).code == "E223"
    assert refusal(lambda: slapo.create_schedule(MLP())["up"].shard("weight", 2)).code == "E224"
    assert refusal(lambda: ms.create_schedule(MLP())["up"].partition(2, "weight")).code == "E224"


def test_a_module_that_does_not_exist_is_told_with_its_nearest_names():
    for sch in (
        partita.Schedule(partita.load(MLP(), X), "tp=2"),
        slapo.create_schedule(MLP(), mesh="tp=2"),
        ms.create_schedule(MLP(), mesh="tp=2"),
    ):
        error = refusal(lambda: sch["dwn"])
        assert error.code == "E221" and "`down`" in error.help


def test_inputs_of_another_shape():
    model = partita.load(MLP(), (X, X), loss=nn.functional.mse_loss)
    trainer = partita.Trainer(model, None, "dp=2")
    error = refusal(lambda: trainer.step((X[:2], X[:2])))
    assert error.code == "E415" and "[4, 8]" in error.expected and "[2, 8]" in error.found
    planned = partita.Schedule(partita.load(MLP(), X), "dp=2").build()
    error = refusal(lambda: planned(torch.randn(4, 7)))
    assert error.code == "E415" and "float32[4, 7]" in error.found
    # Another number of rows is another program.
    assert planned(torch.randn(6, 8)).shape == (6, 8)


def test_a_module_that_cannot_be_captured_is_told_with_the_line():
    class Branch(nn.Module):
        def forward(self, x):
            if x.sum() > 0:
                return x
            return -x

    error = refusal(lambda: partita.load(Branch(), X))
    assert error.code == "E390" and "test_misuse.py" in error.found and "x.sum() > 0" in error.found
    built, _ = slapo.build(slapo.create_schedule(Branch()))
    assert refusal(lambda: built(X)).code == "E390"


@pytest.mark.parametrize("surface", [slapo, ms])
def test_a_model_changed_after_its_schedule(surface):
    model = MLP()
    sch = surface.create_schedule(model, mesh="tp=2")
    model.act = nn.ReLU()
    assert refusal(lambda: surface.build(sch)).code == "E393"


@pytest.mark.parametrize("surface", [slapo, ms])
def test_building_twice_and_two_schedules_of_one_model(surface):
    model = MLP()
    first, second = (surface.create_schedule(model, mesh=mesh) for mesh in ("tp=2", "dp=2"))
    first["up"].shard("weight", axis=0) if surface is slapo else first["up"].partition(axis=0, param="weight")
    built = [surface.build(sch)[0] for sch in (first, first, second)]
    assert len(first.plan) == 1 and len(second.plan) == 0
    expected = model(X)
    for module in built:
        torch.testing.assert_close(module(X), expected)
    # Each has parameters of its own.
    with torch.no_grad():
        built[0].up.weight.zero_()
    torch.testing.assert_close(built[1](X), expected)
    torch.testing.assert_close(model(X), expected)


def test_threads_call_a_planned_module():
    planned = partita.Schedule(partita.load(MLP(), X), "dp=2").build()
    expected, found = [planned(X * scale) for scale in range(8)], [None] * 8
    threads = [
        threading.Thread(target=lambda scale=scale: found.__setitem__(scale, planned(X * scale))) for scale in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ours, theirs in zip(found, expected):
        torch.testing.assert_close(ours, theirs)


def test_what_holds_ranks_is_not_pickled():
    model = partita.load(MLP(), (X, X), loss=nn.functional.mse_loss)
    for what in (model, partita.Schedule(model, "tp=2"), partita.Trainer(model, None, "tp=1")):
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(what)


def test_more_memory_than_there_is():
    class Huge(nn.Module):
        def forward(self, x):
            wide = x[:, :1, None].expand(4, 1 << 23, 127)
            return [wide + place for place in range(64)]

    model = partita.load(Huge(), X)
    error = refusal(lambda: partita.Planned(model, partita.Plan(), partita.Mesh("tp=1")))
    assert error.code == "E040" and "needed" in str(error) and "--" not in str(error)


LONG = """
import sys, time
import torch
import partita

class Deep(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(1024, 1024) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x

rows = int(sys.argv[2])
x = torch.randn(rows, 1024)
model = partita.load(Deep(), (x, x), loss=torch.nn.functional.mse_loss)
trainer = partita.Trainer(model, None, "dp=2", "sgd")
trainer.save(sys.argv[1])
try:
    print("ready", flush=True)
    while True:
        trainer.step((x, x), lr=1e-3)
except KeyboardInterrupt:
    print("stopped", flush=True)
try:
    trainer.step((x, x), lr=1e-3)
except partita.PartitaError as error:
    print(error.code, flush=True)
again = partita.Trainer(model, None, "dp=2", "sgd")
del trainer
again.load(sys.argv[1])
print(again.steps, flush=True)
"""


def test_ctrl_c_ends_a_step_and_leaves_the_checkpoint(tmp_path):
    script = tmp_path / "long.py"
    script.write_text(LONG)
    command = [sys.executable, script, tmp_path / "run", "8192"]
    # A shell that starts the tests in the background leaves SIGINT ignored.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, preexec_fn=heed, **pipes)
    assert process.stdout.readline().strip() == "ready", process.stderr.read()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert out.split() == ["stopped", "E427", "0"]


def test_a_planned_module_goes_on_after_a_signal_ended_its_step():
    class Late(Exception):
        pass

    def late(*_):
        raise Late

    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6)))
    x = torch.randn(2048, 512)
    planned = partita.Schedule(partita.load(module, x), "dp=2").build()
    planned(x)
    before = signal.signal(signal.SIGALRM, late)
    try:
        with pytest.raises(Late):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            while True:
                planned(x)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    torch.testing.assert_close(planned(x), module(x), rtol=1e-4, atol=1e-4)


def _of_no_such_method(result, target):
    return result.no_such_method(target)


def _of_other_shapes(result, target):
    product = result @ target
    return product.sum()


def _of_a_branch(result, target):
    if result.sum() > 0:
        return result.sum()
    return target.sum()


class _Raising:
    def __call__(self, result, target):
        raise ValueError("mine")


@pytest.mark.parametrize(
    "loss, code, name, line",
    [
        (_of_no_such_method, "E415", "_of_no_such_method", 1),
        (_of_other_shapes, "E415", "_of_other_shapes", 1),
        (_of_a_branch, "E390", "_of_a_branch", 1),
        (functools.partial(_of_no_such_method), "E415", "_of_no_such_method", 1),
        (lambda result: result.sum(), "E415", "<lambda>", 0),
        (_Raising(), "E415", "_Raising", 1),
        (torch.nn.NLLLoss(), "E415", "NLLLoss", None),
    ],
)
def test_an_error_in_a_loss_names_it_and_its_line(loss, code, name, line):
    x, y = torch.randn(4, 3), torch.randn(4, 2)
    with pytest.raises(partita.PartitaError) as refused:
        partita.load(torch.nn.Linear(3, 2), (x, y), loss=loss)
    assert refused.value.code == code and f"the loss {name}" in refused.value.message
    own = getattr(loss, "func", loss if hasattr(loss, "__code__") else type(loss).__call__)
    assert refused.value.at == (None if line is None else f"{__file__}:{own.__code__.co_firstlineno + line}")


def test_an_error_in_a_module_names_its_line():
    class Wrong(torch.nn.Module):
        def forward(self, x):
            return x.no_such_method()

    with pytest.raises(partita.PartitaError) as refused:
        partita.load(Wrong(), torch.randn(4, 3))
    assert refused.value.code == "E415" and "Wrong does not take" in refused.value.message
    assert refused.value.at == f"{__file__}:{Wrong.forward.__code__.co_firstlineno + 1}"


def test_an_argument_that_forward_does_not_have_is_told_with_near_ones():
    class Named(torch.nn.Module):
        def forward(self, tokens, mask=None):
            return tokens.sum()

    with pytest.raises(partita.PartitaError) as refused:
        partita.load(Named(), {"tokens": torch.randn(4, 3), "masks": torch.ones(4)})
    assert (refused.value.code, refused.value.help) == ("E414", "did you mean `mask`?")


def test_messages_advise_arguments_of_python_and_no_flags(tmp_path):
    x = torch.randn(4, 4)
    model = partita.load(torch.nn.Linear(4, 4), (x, x), loss=torch.nn.functional.mse_loss)
    first, second = (partita.Trainer(model, None, "dp=2") for _ in range(2))
    first.step((x, x)), first.save(tmp_path)
    refused = []
    for wrong in (
        lambda: second.save(tmp_path),
        lambda: partita.Trainer(model, None, "dp=2", "sgd").load(tmp_path),
        lambda: partita.Trainer(partita.load(torch.nn.Linear(4, 4), (x,)), None, "dp=2"),
        lambda: partita.Schedule(model, "dp=2,pp=9").verify(),
        lambda: partita.simulate("gpt", "dpp=2"),
    ):
        with pytest.raises(partita.PartitaError) as error:
            wrong()
        refused.append(error.value)
        parts = [str(error.value), error.value.help or "", error.value.at or "", *error.value.notes]
        assert not any("--" in part for part in parts), parts
    assert refused[0].help == f'continue that run with trainer.load("{tmp_path}"), or save to another folder'
    assert refused[0].help in str(refused[0]) and "`changed=True`" in refused[1].help and refused[-1].at == "mesh"
    (note,) = partita.Trainer(model, None, "dp=2", sequence_parallel=True).notes
    assert note.startswith("`sequence_parallel=True` changes nothing")


@pytest.mark.parametrize(
    "flags, arguments",
    [
        ("use a smaller batch or model, or fewer ranks; --memory-limit BYTES or PERCENT sets another limit",
         "use a smaller batch or model, or fewer ranks"),
        ("use `--microbatches 4`", "use `microbatches=4`"),
        ("for a trace of 2 ranks: `--set model.ranks=2`", "for a trace of 2 ranks: `partita.load(.., ranks=2)`"),
        ("name it if there are several: --set model.loss=NAME", 'name it if there are several: partita.load(.., loss="NAME")'),
        ("name another one (`--checkpoint-dir`), or check the permissions", "save to another one, or check the permissions"),
        ("error[E009]: x\n        at: --mesh\n  expected: y", "error[E009]: x\n        at: mesh\n  expected: y"),
        ("a -- b", "a -- b"),
    ],
)  # fmt: skip
def test_flags_are_spelled_as_arguments(flags, arguments):
    from partita._spelled import in_python

    assert in_python(flags) == arguments
