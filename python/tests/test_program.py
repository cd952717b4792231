"""Programs in text: `compile_str`, IREE's names, and `load` of StableHLO."""

import numpy as np
import pytest

import partita
from partita import PartitaError
from partita.iree import compiler, runtime

ADD = """
func.func @simple_add(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %arg0, %arg1 : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""

# One step of gradient descent on a sum of squares, with its gradient as a result and its parameter given back.
DESCENT = """
module @jit_step {
  func.func public @main(%w: tensor<3x2xf32> {tf.aliasing_output = 0 : i32} loc("w"),
                         %x: tensor<8x3xf32> loc("x")) -> (tensor<3x2xf32> {jax.result_info = "new"},
                         tensor<f32> {jax.result_info = "loss"}, tensor<3x2xf32> {jax.result_info = "gradient"}) {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x3xf32>, tensor<3x2xf32>) -> tensor<8x2xf32>
    %squares = stablehlo.multiply %y, %y : tensor<8x2xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %loss = stablehlo.reduce(%squares init: %zero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<8x2xf32>, tensor<f32>) -> tensor<f32>
    %twice = stablehlo.add %y, %y : tensor<8x2xf32>
    %gradient = stablehlo.dot_general %x, %twice, contracting_dims = [0] x [0]
      : (tensor<8x3xf32>, tensor<8x2xf32>) -> tensor<3x2xf32>
    %rate = stablehlo.constant dense<1.0e-2> : tensor<3x2xf32>
    %change = stablehlo.multiply %rate, %gradient : tensor<3x2xf32>
    %new = stablehlo.subtract %w, %change : tensor<3x2xf32>
    return %new, %loss, %gradient : tensor<3x2xf32>, tensor<f32>, tensor<3x2xf32>
  }
}
"""


def code_of(function, *arguments, **named):
    with pytest.raises(PartitaError) as refused:
        function(*arguments, **named)
    return refused.value.code, str(refused.value)


def test_functions_of_a_text_are_attributes():
    module = partita.compile_str(ADD + ADD.replace("simple_add", "sum").replace("func @", "func public @"))
    assert list(module) == ["simple_add", "sum"] and "sum" in dir(module)
    result = module.simple_add([1, 2, 3, 4], np.array([5, 6, 7, 8], np.float32))
    assert result.to_host().tolist() == [6, 8, 10, 12] and result.shape == (4,) and result.dtype == np.float32
    # A result is an argument, and a function is called again.
    assert module["sum"](result, result).to_host().tolist() == [12, 16, 20, 24]
    with pytest.raises(AttributeError, match="it has simple_add, sum"):
        module.other
    with pytest.raises(TypeError, match="takes 2 arguments, found 1"):
        module.sum(result)
    assert code_of(module.sum, result, [1.0])[0] == "E415"
    assert code_of(module.sum, result, np.arange(4))[0] == "E415"


def test_other_dialects_on_tensors_are_read():
    module = partita.compile_str(ADD.replace("stablehlo.add", "arith.addf"))
    assert str(module.simple_add([1, 2, 3, 4], [5, 6, 7, 8]).to_host()) == "[ 6.  8. 10. 12.]"
    on_memory = "func.func @f(%a: memref<4xf32>) { %0 = memref.load %a[] : memref<4xf32>\n return }"
    assert code_of(partita.compile_str, on_memory)[0] == "E144"


def test_private_functions_are_called_and_not_offered():
    text = ADD.replace("func @", "func private @") + ADD.replace("simple_add", "twice").replace(
        "stablehlo.add %arg0, %arg1 : tensor<4xf32>",
        "call @simple_add(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>",
    )
    module = partita.compile_str(text)
    assert list(module) == ["twice"]
    assert module.twice([1, 1, 1, 1], [2, 2, 2, 2]).to_host().tolist() == [3] * 4


def test_a_function_may_return_several_results_or_take_no_arguments():
    module = partita.compile_str("""
      func.func @both(%a: tensor<2xi32>) -> (tensor<2xi32>, tensor<2xi32>) {
        %0 = stablehlo.negate %a : tensor<2xi32>
        return %a, %0 : tensor<2xi32>, tensor<2xi32>
      }
      func.func @ones() -> tensor<2xf32> {
        %0 = stablehlo.constant dense<1.0> : tensor<2xf32>
        return %0 : tensor<2xf32>
      }""")
    first, second = module.both([3, 4])
    assert first.to_host().tolist() == [3, 4] and second.to_host().tolist() == [-3, -4]
    assert module.ones().to_host().tolist() == [1, 1]


def test_a_text_that_cannot_be_read_is_refused_with_its_place():
    code, text = code_of(partita.compile_str, ADD.replace("stablehlo.add", "stablehlo.ad"), file="add.mlir")
    assert code == "E141" and "add.mlir:3:" in text
    for text in ("func.func @f(", "hello", ""):
        assert code_of(partita.compile_str, text)[0] == "E140"


def test_the_steps_of_iree_lead_to_the_same_function():
    compiled = compiler.compile_str(ADD, target_backends=["llvm-cpu"])
    context = runtime.SystemContext(config=runtime.Config("local-task"))
    instance = runtime.VmInstance()
    context.add_vm_module(runtime.VmModule.from_flatbuffer(instance, compiled, warn_if_copy=False))
    device = runtime.get_driver("local-task").create_default_device()
    assert "local-task" in str(device)
    function = context.modules.module.simple_add
    one = runtime.asdevicearray(device, np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32))
    two = runtime.asdevicearray(device, np.array([5.0, 6.0, 7.0, 8.0], dtype=np.float32))
    assert str(function(one, two).to_host()) == "[ 6.  8. 10. 12.]"
    named = runtime.VmModule.from_flatbuffer(instance, compiler.compile_str("module @adder {" + ADD + "}"))
    assert named.name == "adder" and named.function_names == ["simple_add"]


def test_targets_that_are_no_cpu_are_refused():
    assert code_of(compiler.compile_str, ADD, target_backends=["cuda"])[0] == "E388"
    assert code_of(runtime.get_driver, "vulkan")[0] == "E388"
    assert code_of(runtime.VmModule.from_flatbuffer, None, b"IREE")[0] == "E388"


def descended(w, x):
    gradient = 2 * x.T @ (x @ w)
    return w - 0.01 * gradient, np.sum((x @ w) ** 2), gradient


@pytest.mark.parametrize("mesh, microbatches", [("dp=1", 1), ("dp=2", 1), ("dp=2", 3)])
def test_a_step_in_text_keeps_its_state_on_the_ranks(mesh, microbatches):
    program = partita.load(DESCENT)
    assert program.carried == {"w": "new"} and program.inputs["x"] == ("f32", (8, 3))
    known = {"loss": "loss", "gradients": ["gradient"]} if microbatches > 1 else {}
    step = program.on(mesh, microbatches=microbatches, **known)
    draws = np.random.default_rng(1)
    w, x = draws.normal(size=(3, 2)).astype(np.float32), draws.normal(size=(8, 3)).astype(np.float32)
    step.set_state({"w": w})
    for _ in range(2):
        results = step(x)
        w, loss, gradient = descended(w, x)
        np.testing.assert_allclose(results["loss"], loss, rtol=1e-5)
        np.testing.assert_allclose(results["gradient"], gradient, rtol=1e-4, atol=1e-4)
    assert list(results) == ["loss", "gradient"]
    np.testing.assert_allclose(step.state()["w"], w, rtol=1e-4, atol=1e-5)
    report = step.verify({"w": w, "x": x})
    assert report.ok and len(report.tensors) == (2 if microbatches > 1 else 3)
    meets = any(kind == "all_reduce" for _, kind, _, _ in step.collectives())
    assert meets == (mesh == "dp=2")


def test_names_that_a_program_does_not_have_are_refused():
    program = partita.load(DESCENT)
    with pytest.raises(KeyError, match="no argument is called z"):
        program.on("dp=2", batch=["z"])
    with pytest.raises(KeyError, match="no result is called z"):
        program.on("dp=2", loss="z")
    assert code_of(program.on, "dp=2", microbatches=2)[0] == "E265"
    step = program.on("dp=2")
    with pytest.raises(TypeError, match="expected 1 arguments"):
        step(1, 2)
    assert code_of(step, np.ones((8, 4), np.float32))[0] == "E415"
    assert code_of(step.set_state, {"z": 1.0})[0] == "E414"


def test_a_file_of_text_is_loaded_by_its_ending(tmp_path):
    path = tmp_path / "step.mlir"
    path.write_text(DESCENT)
    assert partita.load(path).carried == {"w": "new"}


def test_functions_of_jax_are_loaded():
    jax = pytest.importorskip("jax", reason="JAX is not installed")

    def step(w, x):
        loss, gradient = jax.value_and_grad(lambda w: ((x @ w) ** 2).sum())(w)
        return w - 0.01 * gradient, loss, gradient

    w, x = np.ones((3, 2), np.float32), np.arange(24, dtype=np.float32).reshape(8, 3) / 24
    expected = step(w, x)
    forward = partita.load(jax.jit(step), (w, x))
    assert forward.carried == {} and list(forward.inputs) == ["w", "x"]
    found = forward.on("dp=2", batch=["x"])(w, x)
    for a, b in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    donating = jax.jit(step, donate_argnums=0).lower(w, x)
    loaded = partita.load(donating)
    assert list(loaded.carried) == ["w"]
    planned = loaded.on("dp=2")
    planned.set_state({"w": w})
    assert len(planned(x)) == 2
    np.testing.assert_allclose(planned.state()["w"], expected[0], rtol=1e-5)
    with pytest.raises(TypeError, match="is lowered for arguments"):
        partita.load(jax.jit(step))


# As JAX names the leaves of a dictionary.
NAMED = DESCENT.replace('loc("w")', """loc("p['w']")""").replace('"loss"', """"result[1]['loss']\"""")


def test_names_with_brackets_and_with_dots_are_one():
    program = partita.load(NAMED)
    assert list(program.inputs) == ["p['w']", "x"] and "result[1]['loss']" in program.outputs
    weight, x = np.ones((3, 2), np.float32), np.ones((8, 3), np.float32)
    found = []
    for name, loss in (("p['w']", "result[1]['loss']"), ("p.w", "result.1.loss"), ('p["w"]', "result[1].loss")):
        step = program.on("dp=2", loss=loss, gradients=["gradient"], batch=["x"])
        step.set_state({name: weight})
        found.append(step(x=x)["result[1]['loss']"])
        assert step.verify({name: weight, "x": x}).ok and step.explain(name).startswith("p['w']: ")
    assert found[0] == found[1] == found[2] != 0
    for wrong, near in (("p.v", "p.w"), ("p['v']", "p['w']")):
        with pytest.raises(PartitaError) as refused:
            step.set_state({wrong: weight})
        assert (refused.value.code, refused.value.help) == ("E414", f"did you mean `{near}`?")
    with pytest.raises(PartitaError) as refused:
        step({"xx": x})
    assert (refused.value.code, refused.value.help) == ("E414", "did you mean `x`?")


def test_a_name_with_two_meanings_is_taken_as_it_is_spelled():
    from partita._program import own_name

    known = ["p['a']", "p.a", "q['a'].b[0]", "r[0]", "r['0']"]
    assert [own_name(name, known) for name in known] == known
    assert own_name("q.a.b.0", known) == own_name("q['a']['b'][0]", known) == "q['a'].b[0]"
    # Neither of the two.
    assert own_name("r.0", known) == "r.0" and own_name("p[\"a\"]", known) == 'p["a"]'
