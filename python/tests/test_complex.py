"""Complex numbers on ranks: rotary embeddings, Fourier layers and spectral weights of PyTorch, and programs of JAX, against
PyTorch, NumPy and JAX."""

import numpy as np
import pytest

import partita

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

CLOSE = {"rtol": 2e-4, "atol": 2e-5}


def close(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    torch.testing.assert_close(found.resolve_conj(), expected.resolve_conj(), **CLOSE)


class Rotary(nn.Module):
    """The attention of the first Llama: a complex buffer, and pairs of numbers turned by it."""

    def __init__(self, dim=16, heads=2, length=6):
        super().__init__()
        self.heads, self.head = heads, dim // heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        inverse = 1.0 / (10000.0 ** (torch.arange(0, self.head, 2)[: self.head // 2].float() / self.head))
        angles = torch.outer(torch.arange(length), inverse).float()
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles))

    def turned(self, x):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        freqs = self.freqs_cis.view(1, x.shape[1], 1, -1)
        return torch.view_as_real(pairs * freqs).flatten(3).type_as(x)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = (w(x).view(rows, length, self.heads, self.head) for w in (self.wq, self.wk, self.wv))
        q, k, v = (part.transpose(1, 2) for part in (self.turned(q), self.turned(k), v))
        scores = q @ k.transpose(2, 3) / self.head**0.5
        mask = torch.full((length, length), float("-inf"), device=x.device).triu(1)
        y = F.softmax(scores.float() + mask, dim=-1).type_as(q) @ v
        return self.wo(y.transpose(1, 2).reshape(rows, length, -1))


class Mixing(nn.Module):
    """A layer of FNet: a transform over positions and features in the place of attention."""

    def __init__(self, dim=12):
        super().__init__()
        self.first, self.second = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        x = self.first(x + torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real)
        return self.second(x + self.down(F.gelu(self.up(x))))


class Spectral(nn.Module):
    """A layer of a Fourier neural operator: complex weights for the lowest frequencies."""

    def __init__(self, channels=3, modes=4):
        super().__init__()
        scale = 1 / channels**2
        self.weights = nn.Parameter(scale * torch.rand(channels, channels, modes, dtype=torch.cfloat))
        self.modes, self.local = modes, nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        low = torch.zeros(x.shape[0], x.shape[1], x.shape[-1] // 2 + 1, device=x.device, dtype=torch.cfloat)
        low[:, :, : self.modes] = torch.einsum("bix,iox->box", spectrum[:, :, : self.modes], self.weights)
        return F.gelu(torch.fft.irfft(low, n=x.size(-1)) + self.local(x))


class Planes(nn.Module):
    """Complex parameters, inputs and outputs."""

    def __init__(self, dim=6):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim, dim, dtype=torch.cfloat) / dim)
        self.bias = nn.Parameter(torch.randn(dim, dtype=torch.cfloat))
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.cfloat))

    def forward(self, z):
        y = z @ self.weight.mT.conj() + self.bias
        self.mean.copy_(0.9 * self.mean + 0.1 * y.detach().mean(0))
        return y * torch.sigmoid(y.abs()) / (2 + 1j), torch.angle(y) + y.real * y.imag


class Functions(nn.Module):
    """What else complex tensors do, and all transforms with their scales."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([2j, 1.5, 1 - 1j, -2j, 1j]))

    def forward(self, x):
        z = torch.complex(x, x.flip(-1)) * self.factor * 2j + 1
        found = [z.exp() / z, z.sin(), z.tanh(), (z * z + 3).sqrt().log(), z.conj() * z, z.abs() + z.imag, torch.sgn(z)]
        found += [z.sum(-1), z.mean(), torch.stack([z, -z]).reshape(2, -1), z**3, 1 / z, torch.where(x > 0, z, 0), z - x]
        found += [(z @ z.mT).real, torch.outer(z[0, 0], z[0, 1]), torch.vdot(z[0, 0], z[1, 0]), torch.view_as_real(z)]
        found += [z.to(torch.complex128).abs(), torch.linalg.vector_norm(z, dim=-1), z.index_select(0, torch.tensor([1, 0]))]
        f = torch.fft
        for norm in ("backward", "ortho", "forward"):
            found += [f.fft(x, norm=norm), f.ifft(z, dim=1, norm=norm), f.rfft(x, n=7, norm=norm), f.irfft(z, norm=norm)]
            found += [f.fft2(x, norm=norm), f.ifft2(z, norm=norm), f.rfft2(x, norm=norm), f.irfft2(z, s=(4, 9), norm=norm)]
            found += [f.fftn(z, norm=norm), f.rfftn(x, dim=(1, 2), norm=norm), f.irfftn(f.rfftn(x, norm=norm), norm=norm)]
        found += [f.fftshift(f.fft(x)), f.ifft(z, n=12), f.irfft(z, n=5, dim=1)]
        return [torch.view_as_real(part) if part.is_complex() else part for part in map(torch.resolve_conj, found)]


def gradients(outputs):
    """Weights for every output, and the loss that they make."""
    draws = torch.Generator().manual_seed(1)
    loss = 0.0
    for value in outputs:
        value = torch.view_as_real(value) if value.is_complex() else value
        loss = loss + (value * torch.randn(value.shape, generator=draws)).sum()
    return loss


CASES = {
    "rotary": (Rotary, lambda: torch.randn(4, 6, 16), {}, "dp=2"),
    "rotary, heads sharded": (
        Rotary, lambda: torch.randn(4, 6, 16), {"wq": "colwise", "wk": "colwise", "wv": "colwise", "wo": "rowwise"}, "tp=2",
    ),
    "mixing": (Mixing, lambda: torch.randn(4, 5, 12), {}, "dp=2"),
    "mixing, features sharded": (Mixing, lambda: torch.randn(4, 5, 12), {"up": "colwise", "down": "rowwise"}, "dp=2,tp=2"),
    "mixing of 130 positions": (Mixing, lambda: torch.randn(2, 130, 12), {}, "dp=2"),
    "spectral": (Spectral, lambda: torch.randn(4, 3, 16), {}, "dp=2"),
    "spectral, weights in shards": (Spectral, lambda: torch.randn(4, 3, 16), {}, "fsdp=2"),
    "planes": (Planes, lambda: torch.randn(4, 6, dtype=torch.cfloat), {}, "dp=2"),
    "functions": (Functions, lambda: torch.randn(2, 4, 5), {}, "dp=2"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_planned_module_computes_what_the_module_does(name):
    kind, draw, plan, mesh = CASES[name]
    torch.manual_seed(0)
    module = kind()
    x = draw().requires_grad_()
    model = partita.load(module, (x.detach(),))
    planned = partita.Schedule(model, mesh, plan).build() if plan else partita.Schedule(model, mesh).build()
    y = x.detach().clone().requires_grad_()
    for _ in range(2):
        outputs, found = module(x), planned(y)
        outputs, found = ([v] if isinstance(v, torch.Tensor) else list(v) for v in (outputs, found))
        for mine, theirs in zip(found, outputs):
            close(mine.detach(), theirs.detach())
        gradients(outputs).backward()
        gradients(found).backward()
        close(y.grad, x.grad)
        for (path, mine), theirs in zip(planned.named_parameters(), module.parameters()):
            assert mine.dtype == theirs.dtype, path
            close(mine.grad, theirs.grad)
        for mine, theirs in zip(planned.buffers(), module.buffers()):
            close(mine, theirs)


@pytest.mark.parametrize("kind, shape, mesh", [(Rotary, (4, 6, 16), "dp=2"), (Mixing, (4, 5, 12), "dp=2"), (Spectral, (4, 3, 16), "dp=2")])
def test_a_trainer_takes_the_steps_of_pytorch(kind, shape, mesh):
    torch.manual_seed(0)
    module = kind()
    x, target = torch.randn(shape), torch.randn(shape)
    model = partita.load(module, (x, target), loss=F.mse_loss)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    trainer = partita.Trainer(model, None, mesh, optimizer, microbatches=2)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    losses = [trainer.step((x, target)) for _ in range(3)]
    twin = kind()
    twin.load_state_dict(before)
    theirs = torch.optim.AdamW(twin.parameters(), lr=0.01)
    for found in losses:
        theirs.zero_grad()
        loss = F.mse_loss(twin(x), target)
        loss.backward()
        theirs.step()
        assert found == pytest.approx(loss.item(), rel=2e-4)
    state = trainer.state_dict()
    for name, value in twin.state_dict().items():
        close(state[name], value)
    # Its own names and types: the module takes them.
    module.load_state_dict(state)


def test_an_optimizer_of_pytorch_trains_complex_parameters_of_a_planned_module():
    torch.manual_seed(0)
    module = Spectral()
    planned = partita.Schedule(partita.load(module, (torch.randn(4, 3, 16),)), "dp=2").build()
    sides = [(side, torch.optim.Adam(side.parameters(), lr=0.01)) for side in (module, planned)]
    x = torch.randn(4, 3, 16)
    for _ in range(3):
        for side, optimizer in sides:
            optimizer.zero_grad()
            side(x).square().sum().backward()
            optimizer.step()
    close(planned.weights.detach(), module.weights.detach())


def test_a_model_is_verified():
    model = partita.load(Spectral(), (torch.randn(4, 3, 16), torch.randn(4, 3, 16)), loss=F.mse_loss)
    assert partita.Schedule(model, "dp=2").verify()


def test_writes_through_views_of_parts():
    class Writes(nn.Module):
        def forward(self, x):
            z = torch.complex(x, x) + 0
            z.real.mul_(2)
            torch.view_as_real(z)[..., 1] += 1
            pairs = torch.view_as_real(z).clone()
            torch.view_as_complex(pairs).mul_(1j)
            return z, pairs

    x = torch.randn(4, 3)
    planned = partita.Schedule(partita.load(Writes(), (x,)), "dp=2").build()
    for mine, theirs in zip(planned(x), Writes()(x)):
        close(mine, theirs)


def test_a_file_of_a_model_is_read(tmp_path):
    module = Planes().requires_grad_(False)
    z = torch.randn(4, 6, dtype=torch.cfloat)
    torch.export.save(torch.export.export(module, (z,)), tmp_path / "planes.pt2")
    model = partita.load(tmp_path / "planes.pt2")
    assert model.inputs["z"] == ("f32", (4, 6, 2))
    found = partita.Schedule(model, "dp=2").build()(z)
    np.testing.assert_allclose(next(iter(found.values()))[..., 0], module(z)[0].real, rtol=1e-4, atol=1e-5)


def test_an_op_without_a_counterpart_is_named():
    class Powers(nn.Module):
        def forward(self, x):
            return (torch.complex(x, x) ** torch.complex(x, x)).abs()

    with pytest.raises(partita.PartitaError) as refused:
        partita.load(Powers(), (torch.randn(2, 3),))
    assert refused.value.code == "E170" and "power" in refused.value.message


def test_a_step_of_jax_trains_complex_weights():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    jnp = jax.numpy

    def loss(p, x):
        spectrum = jnp.fft.rfft(x, axis=-1)
        y = jnp.fft.irfft(spectrum * p["w"], n=x.shape[-1])
        return jnp.mean(jnp.abs(jnp.fft.fft2(y) * jnp.exp(1j * p["b"])) ** 2) + jnp.mean((y - x) ** 2)

    def step(p, x):
        value, gradient = jax.value_and_grad(loss)(p, x)
        return jax.tree.map(lambda a, g: a - 0.01 * jnp.conj(g), p, gradient), value

    draws = np.random.default_rng(0)
    w = (draws.standard_normal(5) + 1j * draws.standard_normal(5)).astype(np.complex64)
    p = {"w": jnp.asarray(w), "b": jnp.asarray(draws.standard_normal(8), jnp.float32)}
    x = jnp.asarray(draws.standard_normal((4, 6, 8)), jnp.float32)
    program = partita.load(jax.jit(step, donate_argnums=0), (p, x))
    planned = program.on("dp=2")
    planned.set_state({"p['w']": p["w"], "p['b']": p["b"]})
    for _ in range(3):
        p, value = jax.jit(step)(p, x)
        (found,) = planned(x).values()
        np.testing.assert_allclose(found, value, rtol=1e-4)
    state = planned.state()
    assert state["p['w']"].dtype == np.complex64
    np.testing.assert_allclose(state["p['w']"], p["w"], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(state["p['b']"], p["b"], rtol=1e-3, atol=1e-5)


def test_a_function_of_jax_returns_complex_numbers():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    jnp = jax.numpy
    function = jax.jit(lambda z, x: (jnp.fft.ifft2(z) * x, jnp.abs(z), jnp.sum(z, axis=0)))
    draws = np.random.default_rng(0)
    z = (draws.standard_normal((4, 6, 5)) + 1j * draws.standard_normal((4, 6, 5))).astype(np.complex64)
    x = draws.standard_normal((4, 6, 5)).astype(np.float32)
    found = partita.load(function, (z, x)).on("dp=2")(z, x).values()
    for mine, theirs in zip(found, function(z, x)):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
