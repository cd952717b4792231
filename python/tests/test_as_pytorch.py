"""Where PyTorch's own behaviour is what counts: gradients of functions and hooks, parameters without gradients, learning
rates of its schedulers, indices out of range, wrong arguments, threads. PyTorch is run beside, or its refusal stated."""

import copy
import threading

import pytest

import partita

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

X, Y = torch.randn(6, 8), torch.randn(6, 4)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 100 * gradient


doubled = Doubled.apply


class Custom(nn.Module):
    """A layer whose output goes through something that changes gradients."""

    def __init__(self, way):
        super().__init__()
        self.layer, self.way, self.bound = nn.Linear(8, 4), way, Doubled.apply

    def forward(self, x):
        y = self.layer(x)
        if self.way == "alias":
            return doubled(y)
        if self.way == "attribute":
            return self.bound(y)
        if y.requires_grad:
            y.register_hook(lambda gradient: -gradient)
        return 2 * y


def refusal(wrong):
    with pytest.raises(partita.PartitaError) as refused:
        wrong()
    return refused.value


@pytest.mark.parametrize("way, found", [("alias", "Doubled"), ("attribute", "Doubled"), ("hook", "test_as_pytorch.py")])
def test_gradients_that_export_would_lose_are_refused_by_name(way, found):
    error = refusal(lambda: partita.load(Custom(way), X))
    assert error.code == "E391" and found in error.found
    # Nothing of PyTorch stays changed.
    assert "__init__" not in torch.autograd.function.BackwardCFunction.__dict__
    assert torch.Tensor.register_hook.__module__.startswith("torch")


def test_hooks_that_a_planned_step_would_not_run_are_refused():
    inside = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
    inside[0].register_full_backward_hook(lambda *_: None)
    error = refusal(lambda: partita.load(inside, X))
    assert error.code == "E391" and "module 0" in error.found
    module = nn.Linear(8, 4)
    module.weight.register_hook(lambda gradient: -gradient)
    error = refusal(lambda: partita.Trainer(partita.load(module, (X, Y), loss=F.mse_loss), None, "dp=2"))
    assert error.code == "E391" and "weight" in error.message


class Partly(nn.Module):
    """Parameters that its outputs do not depend on, or without a gradient."""

    def __init__(self):
        super().__init__()
        self.layer, self.other = nn.Linear(8, 4), nn.Linear(8, 4)
        self.unused, self.cut, self.quiet = (nn.Parameter(torch.ones(4)) for _ in range(3))

    def forward(self, x):
        y = self.layer(x) + self.cut.detach()
        with torch.no_grad():
            shift = 2 * self.quiet
        return y + shift, self.other(x)


def test_a_parameter_without_a_gradient_keeps_none_and_stays():
    module = Partly()
    built = partita.Schedule(partita.load(module, X), "dp=2").build()
    for both in (False, True):
        for each in (module, built):
            optimizer = torch.optim.AdamW(each.parameters(), lr=0.1, weight_decay=0.5)
            for _ in range(3):
                optimizer.zero_grad()
                first, second = each(X)
                (first.pow(2).sum() + (second.sin().sum() if both else 0.0)).backward()
                optimizer.step()
        for (name, value), (_, planned) in zip(module.named_parameters(), built.named_parameters(), strict=True):
            assert (value.grad is None) == (planned.grad is None), name
            torch.testing.assert_close(planned, value, rtol=1e-4, atol=1e-4)
    assert built.unused.grad is None and torch.equal(built.unused, torch.ones(4))


def test_a_trainer_leaves_alone_what_the_loss_does_not_depend_on():
    module = Partly()
    model = partita.load(module, (X, Y), loss=lambda outputs, y: F.mse_loss(outputs[0], y))
    assert sorted(model.parameters) == ["layer.bias", "layer.weight"]
    trainer = partita.Trainer(model, None, "dp=2", partita.optim.AdamW(lr=0.1, weight_decay=0.5))
    beside = copy.deepcopy(module)
    optimizer = torch.optim.AdamW(beside.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(3):
        loss = F.mse_loss(beside(X)[0], Y)
        assert trainer.step((X, Y)) == pytest.approx(loss.item(), rel=1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, value in trainer.state_dict().items():
        torch.testing.assert_close(value, beside.state_dict()[name], rtol=1e-4, atol=1e-4)


def groups_of(module):
    return [
        {"params": [value for value in module.parameters() if value.dim() < 2], "weight_decay": 0.0},
        {"params": [value for value in module.parameters() if value.dim() >= 2], "weight_decay": 0.5},
    ]


def test_schedulers_and_groups_of_an_optimizer_of_pytorch_count():
    module = nn.Sequential(nn.Linear(8, 12), nn.LayerNorm(12), nn.Linear(12, 4))
    own = torch.optim.AdamW(groups_of(module), lr=0.1)
    trainer = partita.Trainer(partita.load(module, (X, Y), loss=F.mse_loss), None, "dp=2", own)
    beside = copy.deepcopy(module)
    optimizer = torch.optim.AdamW(groups_of(beside), lr=0.1)
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 1, 0.5) for each in (own, optimizer)]
    for _ in range(4):
        loss = F.mse_loss(beside(X), Y)
        assert trainer.step((X, Y)) == pytest.approx(loss.item(), rel=1e-4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    assert trainer.lr == own.param_groups[0]["lr"] == pytest.approx(0.1 / 16)
    trainer.lr = 0.5
    assert [group["lr"] for group in own.param_groups] == [0.5, 0.5]
    own.param_groups[0]["amsgrad"] = True
    assert refusal(lambda: trainer.step((X, Y))).code == "E057"


class Rows(nn.Module):
    def __init__(self, op):
        super().__init__()
        self.table, self.op = nn.Parameter(torch.randn(5, 4)), op

    def forward(self, ids):
        ids = ids.reshape(2, -1)
        if self.op == "embedding":
            return F.embedding(ids, self.table)
        if self.op == "gather":
            return self.table.gather(0, ids)
        return self.table.index_select(0, ids.flatten()) if self.op == "index_select" else self.table[ids]


@pytest.mark.parametrize("op", ["embedding", "gather", "index_select", "index"])
def test_indices_that_pytorch_refuses_are_refused(op):
    module = Rows(op)
    built = partita.Schedule(partita.load(module, torch.zeros(8, dtype=torch.long)), "dp=2").build()
    for last in (4, 5, 1000, -1, -6):
        ids = torch.tensor([0, 1, 2, 3, 4, 0, 1, last])
        try:
            expected = module(ids)
        except (IndexError, RuntimeError):
            error = refusal(lambda: built(ids))  # noqa: B023
            assert error.code == "E423" and str(last) in error.message and op in error.at
        else:
            torch.testing.assert_close(built(ids), expected)


@pytest.mark.parametrize(
    "arguments, named, code, found",
    [
        ((), {}, "E430", "missing"),
        ((X, X), {}, "E414", "float32[6, 8], float32[6, 8]"),
        ((X.numpy(),), {}, "E415", "ndarray float32[6, 8]"),
        ((Y,), {}, "E415", "float32[6, 4]"),
        ((X.double(),), {}, "E415", "float64[6, 8]"),
        ((), {"y": X}, "E430", "y=float32[6, 8]"),
    ],
    ids=["none", "two", "numpy", "width", "type", "name"],
)
def test_wrong_arguments_are_told_as_such(arguments, named, code, found):
    built = partita.Schedule(partita.load(nn.Linear(8, 4), X), "dp=2").build()
    error = refusal(lambda: built(*arguments, **named))
    assert error.code == code and found in error.found


def test_the_first_calls_come_from_several_threads():
    built = partita.Schedule(partita.load(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), X), "dp=2").build()
    expected = copy.deepcopy(built)(X)
    found = []

    def call():
        try:
            found.append(built(X))
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(isinstance(each, torch.Tensor) and torch.equal(each, expected) for each in found), found


def test_a_loss_that_is_no_scalar_and_constants_that_are_no_numbers_are_refused_at_once():
    error = refusal(lambda: partita.load(nn.Linear(8, 4), (X, Y), loss=lambda a, b: (a - b) ** 2))
    assert error.code == "E360" and "[6, 4]" in error.found
    assert refusal(lambda: partita.optim.AdamW(lr="x")).code == "E057"
    error = refusal(lambda: partita.optim.of(torch.optim.RMSprop([nn.Parameter(X)])))
    assert error.code == "E057" and "sch.build()" in error.help


def test_functions_of_distributed_tensors_are_refused_with_the_line_that_calls_them():
    from partita.distributed import init_device_mesh
    from partita.distributed.fsdp import fully_shard
    from partita.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    a = distribute_tensor(torch.randn(4, 6), mesh, [Shard(0)])
    assert refusal(lambda: torch.rand_like(a)).code == "E381"
    error = refusal(lambda: torch.add(a, a, out=a))
    assert error.code == "E355" and "test_as_pytorch.py" in error.at
    assert refusal(lambda: init_device_mesh("cpu", (2.5,))).code == "E380"
    module = fully_shard(nn.Linear(8, 4), mesh=mesh)
    assert refusal(lambda: fully_shard(module, mesh=mesh)).code == "E380"


def test_a_trainer_that_ctrl_c_has_stopped_gives_its_folder_back_and_loads(tmp_path, monkeypatch):
    def made():
        return partita.Trainer(partita.load(nn.Linear(8, 4), (X, Y), loss=F.mse_loss), None, "dp=2", "sgd")

    class Stopped:
        """The ranks of a trainer, with Ctrl-C in the next step."""

        def __init__(self, native):
            self.native = native

        def __getattr__(self, name):
            return getattr(self.native, name)

        def step(self, *_):
            raise KeyboardInterrupt

    trainer = made()
    trainer.step((X, Y))
    path = trainer.save(tmp_path / "run")
    expected = made()
    trainer._native = Stopped(trainer._native)
    with pytest.raises(KeyboardInterrupt):
        trainer.step((X, Y))
    for wrong in (lambda: trainer.step((X, Y)), trainer.state_dict, lambda: trainer.save(tmp_path / "run")):
        error = refusal(wrong)
        assert error.code == "E427" and "trainer.load(folder)" in error.help
    assert trainer.steps == 1
    # The folder is free: another trainer may go on with it; and so may this one afterwards.
    expected.load(path)
    expected.save(path.parent)
    following = expected.step((X, Y))
    del expected
    trainer.load(path)
    assert trainer.steps == 1 and trainer.step((X, Y)) == following


def test_names_and_numbers_of_the_surfaces_are_checked_at_once():
    from partita import nvfuser, slapo

    sch = slapo.create_schedule(nn.Sequential(nn.Linear(8, 4), nn.GELU()), mesh="tp=2")
    sch["0"].decompose()
    sch.trace(flatten=True)
    matches = sch.find(lambda x, bias: F.gelu(x + bias))
    assert refusal(lambda: sch.fuse(matches, compiler="TorchScript", name="not a name!")).code == "E222"
    with nvfuser.FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.from_pytorch(X)))
    assert repr(fd) == "FusionDefinition(1 inputs, 2 statements, 1 outputs)"


def refused_loss(found, expected):
    difference = found - expected
    return torch.linalg.svdvals(difference).sum()  # the line of this loss


def refused_part(x):
    return torch.linalg.svdvals(x)  # the line of this function


class Refuses(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        return refused_part(self.layer(x))  # the line of this module


def hooked():
    module = nn.Sequential(nn.Linear(8, 4))
    module[0].register_forward_hook(lambda *given: refused_part(given[2]))
    return module


@pytest.mark.parametrize(
    "make, loss, line",
    [
        (lambda: nn.Linear(8, 4), refused_loss, "the line of this loss"),
        (lambda: nn.Linear(8, 4), lambda a, _: refused_part(a).sum(), "the line of this function"),
        (Refuses, lambda a, _: a.sum(), "the line of this module"),
        (hooked, lambda a, _: a.sum(), "the line of this function"),
    ],
)
def test_an_op_that_is_refused_is_named_with_the_line_of_the_user(make, loss, line):
    error = refusal(lambda: partita.load(make(), (X, Y), loss=loss))
    with open(__file__, encoding="utf-8") as file:
        number = 1 + next(place for place, text in enumerate(file) if f"  # {line}" in text)
    assert error.code == "E355" and f"test_as_pytorch.py:{number}" in str(error), error


@pytest.mark.parametrize("kind, shape", [(nn.BatchNorm1d, (6, 4)), (nn.BatchNorm1d, (6, 4, 3)), (nn.BatchNorm2d, (6, 4, 3, 2))])
def test_a_batch_norm_that_averages_over_all_batches(kind, shape):
    torch.manual_seed(0)
    module = nn.Sequential(kind(4, momentum=None), nn.Tanh(), kind(4, momentum=None, affine=False))
    batches = [torch.randn(shape) * (1 + number) + number for number in range(3)]
    built = partita.Schedule(partita.load(module, (batches[0],)), "dp=2").build()
    trained = copy.deepcopy(module)
    loaded = partita.load(copy.deepcopy(module), (batches[0], batches[0]), loss=F.mse_loss)
    trainer, own = partita.Trainer(loaded, None, "dp=2", "sgd"), torch.optim.SGD(trained.parameters(), lr=partita.optim.SGD().lr)
    for x in batches:
        for each in (built, module):
            each.zero_grad()
            each(x).pow(2).sum().backward()
        torch.testing.assert_close(built(x), module(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(built.state_dict(), module.state_dict(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(built[0].weight.grad, module[0].weight.grad, rtol=1e-3, atol=1e-3)
        loss = F.mse_loss(trained(x), x)
        own.zero_grad()
        loss.backward()
        own.step()
        assert trainer.step((x, x)) == pytest.approx(loss.item(), rel=1e-4)
        torch.testing.assert_close(trainer.state_dict(), dict(trained.state_dict()), rtol=1e-4, atol=1e-4)
    built.eval(), module.eval()
    torch.testing.assert_close(built(batches[1]), module(batches[1]), rtol=1e-5, atol=1e-5)
    assert nn.modules.batchnorm._BatchNorm.forward.__module__ == "torch.nn.modules.batchnorm"


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return torch.tanh(self.inner(x)) * 2


@pytest.mark.parametrize("way", ["itself", "around it", "in place", "a part"])
def test_torch_compile_leaves_a_built_module_as_it_is(way, recwarn):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.0), nn.Linear(6, 4))
    built = partita.Schedule(partita.load(module, (X,)), "dp=2").build()
    compiled, expected = built, module
    if way == "itself":
        compiled = torch.compile(built, backend="eager")
    elif way == "around it":
        compiled, expected = torch.compile(Around(built), backend="eager"), Around(module)
    else:
        (built if way == "in place" else built[0]).compile(backend="eager")
    for scale in (0.0, 0.5):
        for each in (module, built):
            each.zero_grad()
            with torch.no_grad():
                each[0].weight.mul_(1 + scale)
        compiled(X).pow(2).sum().backward()
        expected(X).pow(2).sum().backward()
        torch.testing.assert_close(compiled(X), expected(X), rtol=1e-5, atol=1e-5)
        gradients = [[value.grad for value in each.parameters()] for each in (built, module)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    for each in (module, built):
        each[1].p = 1.0
    torch.testing.assert_close(compiled(X), expected(X), rtol=1e-5, atol=1e-5)
    assert not [str(warning.message) for warning in recwarn]


def test_a_compiled_module_is_loaded_as_it_is():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))
    module.compile(backend="eager")
    module[0].compile(backend="eager")
    trainer = partita.Trainer(partita.load(module, (X, Y), loss=F.mse_loss), None, "dp=2", partita.optim.SGD(lr=0.1))
    assert trainer.step((X, Y)) == pytest.approx(F.mse_loss(module(X), Y).item(), rel=1e-5)
    assert module._compiled_call_impl is not None and module[0]._compiled_call_impl is not None
