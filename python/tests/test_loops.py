"""The traps of training loops that people write: each works as in PyTorch, or is refused by name."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import partita  # noqa: E402


@pytest.fixture
def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))


@pytest.fixture
def planned(module):
    return partita.Schedule(partita.load(module, X), "tp=2", {"0": "colwise", "2": "rowwise"}).build()


X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
Y = torch.randn(6, 8, generator=torch.Generator().manual_seed(2))


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def gradients(module):
    return [parameter.grad for parameter in module.parameters()]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(module, planned, set_to_none):
    for m in (module, planned):
        optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=set_to_none)
            assert all(grad is None or not grad.any() for grad in gradients(m))
            F.mse_loss(m(X), Y).backward()
            optimizer.step()
    close(gradients(planned), gradients(module))
    close(dict(planned.state_dict()), dict(module.state_dict()))


def test_a_gradient_that_is_kept_is_not_overwritten(planned):
    F.mse_loss(planned(X), Y).backward()
    kept = planned[0].weight.grad
    copied = kept.clone()
    planned.zero_grad()
    F.mse_loss(planned(Y), X).backward()
    close(kept, copied)
    assert not torch.equal(planned[0].weight.grad, kept)


def test_two_forwards_before_a_backward(module, planned):
    for m in (module, planned):
        m.zero_grad()
        first, second = m(X), m(Y)
        F.mse_loss(second, X).backward()
        F.mse_loss(first, Y).backward()
    close(gradients(planned), gradients(module))


def test_a_graph_that_is_retained_is_used_twice(module, planned):
    for m in (module, planned):
        m.zero_grad()
        loss = F.mse_loss(m(X), Y)
        loss.backward(retain_graph=True)
        loss.backward()
    close(gradients(planned), gradients(module))
    loss = F.mse_loss(planned(X), Y)
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_a_double_backward_is_refused(planned):
    x = X.clone().requires_grad_()
    (slope,) = torch.autograd.grad(planned(x).sum(), x, create_graph=True)
    assert slope.shape == X.shape
    with pytest.raises(partita.PartitaError) as refused:
        slope.pow(2).sum().backward()
    assert refused.value.code == "E392" and "gradients of its gradients" in refused.value.message


def test_a_forward_in_eval_has_gradients_too(module, planned):
    for m in (module, planned):
        m.eval()
        F.mse_loss(m(X), Y).backward()
    close(gradients(planned), gradients(module))
    planned.train()
    assert planned.training and planned(X).requires_grad


def test_no_grad_and_inference_mode_keep_nothing(module, planned):
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            out = planned(X)
            assert not out.requires_grad
            close(out, module(X))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_cotangent_of_another_type(module, planned, dtype):
    for m in (module, planned):
        m.zero_grad()
        (m(X).to(dtype) * 2).sum().backward()
    close(gradients(planned), gradients(module))


@pytest.mark.parametrize(
    "cotangent", [torch.ones(()).expand(6, 8), torch.randn(8, 6).t(), torch.randn(12, 16)[::2, ::2]]
)
def test_a_cotangent_that_is_not_contiguous(module, planned, cotangent):
    for m in (module, planned):
        m.zero_grad()
        m(X).backward(cotangent)
    close(gradients(planned), gradients(module))


def test_an_input_that_is_not_contiguous_or_needs_a_gradient(module, planned):
    found = []
    for m in (module, planned):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(4)).t().requires_grad_()
        m.zero_grad()
        m(x).pow(2).sum().backward()
        found.append([x.grad, *gradients(m)])
    close(found[1], found[0])


def test_gradients_are_accumulated_over_microbatches(module, planned):
    for m in (module, planned):
        m.zero_grad()
        for start in (0, 2, 4):
            (F.mse_loss(m(X[start : start + 2]), Y[start : start + 2]) / 3).backward()
    close(gradients(planned), gradients(module))


def test_hooks_clipping_and_a_scheduler(module, planned):
    seen = []
    for m in (module, planned):
        m[0].weight.register_hook(lambda grad: grad * 0.5)
        m.register_forward_hook(lambda _, inputs, out: seen.append(tuple(out.shape)))
        optimizer = torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-4)
        decay = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for _ in range(4):
            optimizer.zero_grad()
            F.mse_loss(m(X), Y).backward()
            nn.utils.clip_grad_norm_(m.parameters(), 0.1)
            optimizer.step()
            decay.step()
    # A hook of the module itself runs once in each call.
    assert seen == [(6, 8)] * 8
    close(dict(planned.state_dict()), dict(module.state_dict()))


def test_a_state_is_saved_and_loaded(module, planned, tmp_path):
    optimizer = torch.optim.Adam(planned.parameters(), lr=1e-2)
    F.mse_loss(planned(X), Y).backward()
    optimizer.step()
    torch.save({"model": planned.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt")
    module.load_state_dict(saved["model"])
    other = copy.deepcopy(planned)
    other.load_state_dict(saved["model"], assign=True)
    close(other(X), planned(X))
    close(module(X), planned(X))


def test_a_model_and_its_optimizer_are_copied_together(planned):
    optimizer = torch.optim.SGD(planned.parameters(), lr=0.1, momentum=0.9)
    F.mse_loss(planned(X), Y).backward()
    optimizer.step()
    other, moved = copy.deepcopy((planned, optimizer))
    assert {id(p) for p in moved.param_groups[0]["params"]} == {id(p) for p in other.parameters()}
    for m, rule in ((planned, optimizer), (other, moved)):
        rule.zero_grad()
        F.mse_loss(m(X), Y).backward()
        rule.step()
    close(dict(other.state_dict()), dict(planned.state_dict()))


def test_parameters_that_are_frozen_or_moved_to_another_type(module, planned):
    for m in (module, planned):
        m[0].requires_grad_(False)
        m.zero_grad()
        F.mse_loss(m(X), Y).backward()
    assert planned[0].weight.grad is None
    close(planned[2].weight.grad, module[2].weight.grad)
    module.double(), planned.double()
    close(planned(X.double()), module(X.double()), 1e-9)


def test_a_parameter_changed_before_the_backward_is_noticed(planned):
    loss = F.mse_loss(planned(X), Y)
    with torch.no_grad():
        planned[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_autocast_around_it_is_a_program_of_its_own(module, planned):
    for _ in range(2):
        for m in (module, planned):
            m.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = m(X)
            assert out.dtype == torch.bfloat16
            out.float().pow(2).sum().backward()
        close(gradients(planned), gradients(module), 3e-2)
        assert planned(X).dtype == torch.float32
        close(planned(X), module(X))


def test_numbers_that_are_not_finite_are_results(module, planned):
    bad = X.clone()
    bad[0, 0] = float("inf")
    for x in (bad, X):
        for m in (module, planned):
            m.zero_grad()
            (m(x) * 1e30).pow(2).sum().backward()
        torch.testing.assert_close(planned[0].weight.grad, module[0].weight.grad, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert not planned[0].weight.grad.isfinite().all()
    for m in (module, planned):
        m.zero_grad()
        F.mse_loss(m(X), Y).backward()
    close(gradients(planned), gradients(module))


def test_an_error_in_a_pass_does_not_end_the_module():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 10)

        def forward(self, x, labels):
            # Labels that come from outside as they are would be checked before the pass.
            return F.cross_entropy(self.linear(x), labels * 1)

    torch.manual_seed(0)
    module, labels = Classifier(), torch.tensor([0, 1, 2, 3, 4, 9])
    planned = partita.Schedule(partita.load(module, (X, labels)), "tp=1").build()
    with pytest.raises(partita.PartitaError) as refused:
        planned(X, labels + 1)
    assert refused.value.code == "E411" and "class" in str(refused.value)
    for m in (module, planned):
        m(X, labels).backward()
    close(gradients(planned), gradients(module))


class Packed(nn.Module):
    """Queries, keys and values from one linear layer, which is stored in three pieces; and an argument of a parameter's
    name."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(12, 8))
        self.qkv, self.o = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, tokens):
        q, k, v = self.qkv(self.tokens[tokens]).split(8, dim=-1)
        return self.o(torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v)


@pytest.mark.parametrize("mesh, plan", [("dp=1", {}), ("tp=2", {"qkv": "colwise", "o": "rowwise"})])
def test_packed_layers_and_an_argument_with_the_name_of_a_parameter(mesh, plan):
    torch.manual_seed(3)
    module, tokens = Packed(), torch.arange(10).reshape(2, 5)
    planned = partita.Schedule(partita.load(module, tokens), mesh, plan).build()
    reference = copy.deepcopy(module)
    for m in (reference, planned):
        optimizer = torch.optim.SGD(m.parameters(), lr=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            m(tokens).square().mean().backward()
            optimizer.step()
    close(gradients(planned), gradients(reference))
    close(dict(planned.state_dict()), dict(reference.state_dict()))
