"""What the code of a module reads beside its arguments and attributes: a change of it counts in the next call."""

import argparse
import array
import collections
import contextvars
import datetime
import functools
import importlib
import os
import sys
import threading
import time
import types
import weakref

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import partita  # noqa: E402

S = 1.0
X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Plain:
    scale = 1.0


space = types.SimpleNamespace(scale=1.0)
variable = contextvars.ContextVar("variable", default=1.0)
local = threading.local()
local.scale = 1.0
reference = weakref.ref(Plain)


@functools.lru_cache
def cached():
    return S


# Functions whose caches have values of an older S than that of now.
@functools.lru_cache
def of_size(size):
    return S * size


@functools.cache
def in_a_list():
    return [S]


@functools.lru_cache(maxsize=1)
def as_tensor(size):
    return torch.full((size,), S)


@functools.lru_cache(maxsize=1)
def last(name):
    return S


class Caches(nn.Module):
    """Has a method under a cache, whose code does not run while the cache has its value."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)

    @functools.lru_cache
    def scale(self):
        return S

    @staticmethod
    @functools.cache
    def more():
        return S + 1

    def forward(self, x):
        return self.line(x) * self.scale() * self.more()


class Callable:
    def __call__(self):
        return S


called = Callable()


class Descriptor:
    value = 1.0

    def __get__(self, one, kind=None):
        return self.value


class Described:
    scale = Descriptor()


described = Described()


arguments = argparse.Namespace(scale=1.0)
entries = collections.UserDict(scale=1.0)
numbers = array.array("d", [1.0])
raw = bytearray([1])
steps = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)


def set_here(value):
    global S
    S = value
    cached.cache_clear()


def on(target, name="scale"):
    return lambda value: setattr(target, name, value)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of the user: a module of settings, and one of functions that read them."""
    folder = tmp_path / "scaling"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import settings, functions\n")
    (folder / "settings.py").write_text("SCALE = 1.0\n")
    (folder / "functions.py").write_text(
        "from . import settings\n"
        "OWN = 1.0\n"
        "class Holder:\n    scale = 1.0\n"
        "def scale():\n    return settings.SCALE * OWN\n"
        "def late():\n    from .settings import SCALE\n    return SCALE\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    made = importlib.import_module("scaling")
    yield made
    for name in [name for name in sys.modules if name.partition(".")[0] == "scaling"]:
        del sys.modules[name]


class Reads(nn.Module):
    """Multiplies by what a function says."""

    def __init__(self, read):
        super().__init__()
        self.line, self.read = nn.Linear(4, 4), read

    def forward(self, x):
        return self.line(x) * self.read()


class Chooses(nn.Module):
    """Calls a method by a name that it computes."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)

    def _one(self):
        return space.scale

    def forward(self, x):
        return self.line(x) * getattr(self, "_" + "one")()


def check(module, write):
    built = partita.Schedule(partita.load(module, (X,)), "dp=1").build()
    try:
        for value in (1.0, 3.0, 2.0):
            write(value)
            assert torch.allclose(built(X), module(X), rtol=1e-6, atol=1e-6)
    finally:
        write(1.0)


READS = {
    "globals()": (lambda: globals()["S"], set_here),
    "a computed name of a global": (lambda: globals()[chr(83)], set_here),
    "eval": (lambda: eval("S"), set_here),
    "an attribute by name": (lambda: getattr(Plain, "sca" + "le"), on(Plain)),
    "a namespace": (lambda: getattr(space, "sca" + "le"), on(space)),
    "a weak reference": (lambda: reference().scale, on(Plain)),
    "a cached function": (lambda: cached(), set_here),
    "an object that is called": (lambda: called(), set_here),
    "a descriptor": (lambda: described.scale, on(Described.__dict__["scale"], "value")),
    "a context variable": (lambda: variable.get(), variable.set),
    "a value of this thread": (lambda: local.scale, on(local)),
    "the environment": (lambda: float(os.environ.get("PARTITA_TEST", 1)), lambda v: os.environ.update(PARTITA_TEST=str(v))),
    "getenv": (lambda: float(os.getenv("PARTITA_TEST", "1")), lambda v: os.environ.update(PARTITA_TEST=str(v))),
    "arguments of a command": (lambda: arguments.scale, on(arguments)),
    "a dictionary of the user": (lambda: entries["scale"], lambda v: entries.update(scale=v)),
    "an array": (lambda: numbers[0], lambda v: numbers.__setitem__(0, v)),
    "bytes": (lambda: float(raw[0]), lambda v: raw.__setitem__(0, int(v))),
    "an optimizer": (lambda: steps.param_groups[0]["lr"], lambda v: steps.param_groups[0].update(lr=v)),
    "a setting of PyTorch": (lambda: float(torch.get_num_threads()), lambda v: torch.set_num_threads(int(v))),
}


@pytest.mark.parametrize("name", READS)
def test_a_change_of_what_the_code_reads_counts(name, monkeypatch):
    monkeypatch.setenv("PARTITA_TEST", "1.0")
    read, write = READS[name]
    check(Reads(read), write)


CACHED = {
    "a number": (lambda: of_size(2.0), of_size.cache_clear),
    "a list": (lambda: in_a_list()[0], in_a_list.cache_clear),
    "a tensor": (lambda: as_tensor(4), as_tensor.cache_clear),
    "the place of another value": (lambda: last("a"), lambda: last("b")),
}


def check_old_values(module, forget, monkeypatch):
    """A cache keeps what it has, as in PyTorch, and is asked again once it has forgotten it."""
    forget()
    monkeypatch.setattr(sys.modules[__name__], "S", 2.0)
    first = module(X)
    built = partita.Schedule(partita.load(module, (X,)), "dp=1").build()
    loaded = partita.load(module, (X, X), loss=nn.functional.mse_loss)
    trainer = partita.Trainer(loaded, None, "dp=1", partita.optim.SGD(lr=0.0))
    assert torch.allclose(built(X), first, rtol=1e-6, atol=1e-6)
    monkeypatch.setattr(sys.modules[__name__], "S", 3.0)
    assert torch.allclose(built(X), first, rtol=1e-6, atol=1e-6)
    assert trainer.step((X, X)) == pytest.approx(nn.functional.mse_loss(first, X).item())
    forget()
    assert torch.allclose(built(X), module(X), rtol=1e-6, atol=1e-6) and not torch.allclose(built(X), first)
    assert trainer.step((X, X)) == pytest.approx(nn.functional.mse_loss(module(X), X).item())
    # As many values, and as many calls that found them, as before.
    forget()
    monkeypatch.setattr(sys.modules[__name__], "S", 5.0)
    second = module(X)
    module(X)
    assert torch.allclose(built(X), second, rtol=1e-6, atol=1e-6)
    forget()


@pytest.mark.parametrize("name", CACHED)
def test_caches_that_a_module_reads_are_read_again(name, monkeypatch):
    read, forget = CACHED[name]
    check_old_values(Reads(read), forget, monkeypatch)


def test_caches_of_methods_are_read_again(monkeypatch):
    def forget():
        Caches.scale.cache_clear()
        Caches.more.cache_clear()

    check_old_values(Caches(), forget, monkeypatch)


def test_a_list_in_a_cache_may_change(monkeypatch):
    module = Reads(CACHED["a list"][0])
    built = partita.Schedule(partita.load(module, (X,)), "dp=1").build()
    first = built(X)
    in_a_list()[0] = 3.0
    assert torch.allclose(built(X), module(X), rtol=1e-6, atol=1e-6) and not torch.allclose(built(X), first)
    in_a_list.cache_clear()

    def counts():
        in_a_list()[0] += 1
        return in_a_list()[0]

    in_a_list()
    with pytest.raises(partita.PartitaError, match="E396.*a value that the cache of .*in_a_list has"):
        partita.load(Reads(counts), (X,))
    in_a_list.cache_clear()


def test_a_cache_has_no_tensors_of_an_export():
    as_tensor.cache_clear()
    module = Reads(CACHED["a tensor"][0])
    built = partita.Schedule(partita.load(module, (X,)), "dp=1").build()
    assert as_tensor.cache_info().currsize == 0
    assert torch.allclose(built(X), module(X), rtol=1e-6, atol=1e-6)
    assert type(as_tensor(4)) is torch.Tensor


def test_values_for_more_arguments_leave_the_others(monkeypatch):
    sizes = Reads(lambda: of_size(2.0))
    built = partita.Schedule(partita.load(sizes, (X,)), "dp=1").build()
    built(X)
    monkeypatch.setattr(partita._module, "traced", None)
    of_size(7.0)
    assert torch.allclose(built(X), sizes(X), rtol=1e-6, atol=1e-6)
    of_size.cache_clear()


matmul, mkldnn, nested = torch.backends.cuda.matmul, torch.backends.mkldnn, {"of": torch.backends.cudnn}


def switch(owner, name, *values):
    """Reads a switch as a number, and sets it to one of two values: by 3, or by 1 and 2."""
    return lambda: 1.0 + values.index(getattr(owner, name)), lambda v: setattr(owner, name, values[v == 3.0])


SETTINGS = {
    "cuda.matmul.allow_tf32": switch(matmul, "allow_tf32", False, True),
    "mkldnn.enabled": switch(mkldnn, "enabled", True, False),
    "mkldnn.fp32_precision": switch(mkldnn, "fp32_precision", "none", "ieee"),
    "cudnn in a dictionary": (lambda: 1.0 + nested["of"].deterministic, lambda v: setattr(nested["of"], "deterministic", v == 3.0)),
    "opt_einsum": (
        lambda: 1.0 + torch.backends.opt_einsum.enabled,
        lambda v: setattr(torch.backends.opt_einsum, "enabled", v == 3.0),
    ),
    "mha": (lambda: 1.0 + torch.backends.mha.get_fastpath_enabled(), lambda v: torch.backends.mha.set_fastpath_enabled(v != 3.0)),
    "deterministic algorithms": (
        lambda: 1.0 + getattr(torch, "are_deterministic" + "_algorithms_enabled")(),
        lambda v: torch.use_deterministic_algorithms(v == 3.0),
    ),
    "the default type": (
        lambda: 1.0 if getattr(torch, "get_default" + "_dtype")() is torch.float32 else 2.0,
        lambda v: torch.set_default_dtype(torch.float64 if v == 3.0 else torch.float32),
    ),
    "precision of matmuls": (
        lambda: 1.0 if torch.get_float32_matmul_precision() == "highest" else 2.0,
        lambda v: torch.set_float32_matmul_precision("high" if v == 3.0 else "highest"),
    ),
    "the linear algebra of a GPU": (
        lambda: 1.0 + ("Magma" in str(torch.backends.cuda.preferred_linalg_library())),
        lambda v: torch._C._set_linalg_preferred_backend(
            torch._C._LinalgBackend.Magma if v == 3.0 else torch._C._LinalgBackend.Default
        ),
    ),
    "the seed": (lambda: float(torch.initial_seed()), lambda v: torch.manual_seed(int(v))),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_pytorch_that_the_code_asks_for_counts(name):
    read, write = SETTINGS[name]
    check(Reads(read), write)
    # A trainer notices it too, at its next step.
    module = Reads(read)
    trainer = partita.Trainer(partita.load(module, (X, X), loss=nn.functional.mse_loss), None, "dp=1", partita.optim.SGD(lr=0.0))
    try:
        for value in (1.0, 3.0, 1.0):
            write(value)
            assert trainer.step((X, X)) == pytest.approx(nn.functional.mse_loss(module(X), X).item())
    finally:
        write(1.0)


@pytest.mark.parametrize("ask", [lambda: torch.is_inference_mode_enabled(), torch.is_inference_mode_enabled])
def test_inference_mode_counts(ask):
    module = Reads(lambda: 1.0 + ask())
    built = partita.Schedule(partita.load(module, (X,)), "dp=1").build()
    for mode in (False, True, False):
        with torch.inference_mode(mode):
            expected = module(X)
            if mode and ask is torch.is_inference_mode_enabled:
                with pytest.raises(partita.PartitaError, match="E396.*asks is_inference_mode_enabled"):
                    built(X)
            else:
                assert torch.allclose(built(X), expected, rtol=1e-6, atol=1e-6)
    assert torch.is_inference_mode_enabled is torch._C.is_inference_mode_enabled


def test_settings_that_the_code_does_not_ask_for_do_not_count(monkeypatch):
    module = Reads(lambda: 2.0)
    built = partita.Schedule(partita.load(module, (X,)), "dp=1").build()
    built(X)
    monkeypatch.setattr(partita._module, "traced", None)
    try:
        mkldnn.enabled = False
        assert torch.allclose(built(X), module(X), rtol=1e-6, atol=1e-6)
    finally:
        mkldnn.enabled = True


def test_a_trainer_casts_as_the_step_does():
    module, x = nn.Linear(4, 4), torch.full((2, 4), 1.003)
    with torch.no_grad():
        module.weight.fill_(1.0)
        module.bias.zero_()
    batch = (x, module(x).detach())
    trainer = partita.Trainer(partita.load(module, batch, loss=nn.functional.mse_loss), None, "dp=1", partita.optim.SGD(lr=0.0))
    for is_on in (False, True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_on):
            expected = nn.functional.mse_loss(module(x), batch[1]).item()
            assert (expected > 1e-5) is is_on and trainer.step(batch) == pytest.approx(expected, abs=1e-9)


def test_a_method_that_no_name_leads_to_is_followed():
    check(Chooses(), on(space))


def test_modules_of_the_user_are_followed(package):
    settings, functions = package.settings, package.functions
    check(Reads(lambda: package.settings.SCALE), on(settings, "SCALE"))
    check(Reads(lambda: functions.scale()), on(settings, "SCALE"))
    check(Reads(lambda: functions.scale()), on(functions, "OWN"))
    check(Reads(lambda: functions.Holder.scale), on(functions.Holder))
    check(Reads(functions.late), on(settings, "SCALE"))
    check(Reads(lambda: sys.modules["scaling.settings"].SCALE), on(settings, "SCALE"))
    check(Reads(lambda: getattr(settings, "SC" + "ALE")), on(settings, "SCALE"))
    check(Reads(lambda: importlib.import_module("scaling.settings").SCALE), on(settings, "SCALE"))


@pytest.mark.parametrize("read", [time.time, lambda: time.perf_counter_ns() % 1e6, lambda: datetime.datetime.now().timestamp()])
def test_the_clock_is_refused_where_it_counts(read):
    with pytest.raises(partita.PartitaError, match="E396.*another value in each call"):
        check(Reads(read), lambda _: None)


def test_a_pass_may_be_timed():
    def timed():
        began = time.perf_counter()
        return 2.0 if time.perf_counter() >= began else 0.0

    check(Reads(timed), lambda _: None)


def test_a_file_is_refused(tmp_path):
    path = tmp_path / "scale"
    path.write_text("2.0")
    for read in (lambda: float(path.read_text()), lambda: float(open(path).read()), lambda: float(path.exists())):
        with pytest.raises(partita.PartitaError, match="E396"):
            check(Reads(read), lambda _: None)


def test_an_import_in_forward_is_no_file(package):
    def read():
        import wave  # not imported before

        return float(wave.WAVE_FORMAT_PCM)

    sys.modules.pop("wave", None)
    check(Reads(read), lambda _: None)


def test_a_profile_function_of_the_user_stays():
    seen = []

    def profile(frame, event, argument):
        if frame.f_code.co_name == "forward" and event == "call":
            seen.append(frame.f_code)

    module = Reads(lambda: 1.0)
    sys.setprofile(profile)
    try:
        partita.load(module, (X,))
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert Reads.forward.__code__ in seen
