"""Programs in text on a mesh, without PyTorch: layouts, collectives, parts of ranks, refusals."""

import re

import numpy as np
import pytest

from partita import Mesh, PartitaError, _partita
from partita._tensors import pack, to_numpy

MATMUL = """
func.func public @main(%a: tensor<4x32xf32>, %b: tensor<32x5xf32>) -> tensor<4x5xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<4x32xf32>, tensor<32x5xf32>) -> tensor<4x5xf32>
  return %0 : tensor<4x5xf32>
}
"""
IDENTITY = "func.func public @main(%a: tensor<4x7xf32>) -> tensor<4x7xf32> { return %a : tensor<4x7xf32> }"


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def cut(value, parts):
    return [pack(value[tuple(slice(o, o + e) for o, e in zip(*part))]) for part in parts]


def run(program, *inputs):
    given = [cut(value, described[5]) for value, described in zip(inputs, program.inputs())]
    return [[to_numpy(local) for local in locals] for locals in program.run(given)]


def joined(locals, described):
    whole = np.zeros(described[2], locals[0].dtype)
    for local, part in zip(locals, described[5]):
        whole[tuple(slice(o, o + e) for o, e in zip(*part))] = local
    return whole


A, B = numbers(4, 32), numbers(32, 5)

# The layout that is asked for, what comes back, and the collectives: kind, how often, bytes.
RETURNED = [
    (None, ([[], []], [("tp", "sum")]), []),
    ([[], []], ([[], []], []), [("all_reduce", 1, 80)]),
    ([["tp"], []], ([["tp"], []], []), [("reduce_scatter", 1, 80)]),
]


@pytest.mark.parametrize("wanted, found, collectives", RETURNED)
def test_a_sum_over_ranks_is_combined_only_where_it_is_needed(wanted, found, collectives):
    program = _partita.Placed(MATMUL, Mesh("tp=3"), [[[], ["tp"]], [["tp"], []]], [wanted])
    (output,) = program.outputs()
    assert (output[1], output[2], (output[3], output[4])) == ("f32", [4, 5], found)
    assert program.collectives() == collectives
    (locals,) = run(program, A, B)
    value = sum(locals) if found[1] else joined(locals, output)
    np.testing.assert_allclose(value, A @ B, atol=1e-5)
    # A program runs any number of times.
    (again,) = run(program, 2 * A, B)
    np.testing.assert_allclose(sum(again) if found[1] else joined(again, output), 2 * A @ B, atol=1e-5)


@pytest.mark.parametrize(
    "before, after, collectives",
    [
        ([["dp"], ["tp"]], [["dp"], ["tp"]], []),
        ([["dp", "tp"], []], [[], []], ["all_gather"]),
        ([[], ["tp"]], [["tp"], []], ["all_to_all"]),
        ([[], []], [["dp"], ["tp"]], []),
    ],
)
def test_an_identity_moves_a_tensor_between_layouts(before, after, collectives):
    value = numbers(4, 7)
    program = _partita.Placed(IDENTITY, Mesh("dp=2,tp=2"), [before], [after], 1)
    (output,) = program.outputs()
    assert output[3] == after
    assert [kind for kind, _, _ in program.collectives()] == collectives
    (locals,) = run(program, value)
    assert [list(local.shape) for local in locals] == [shape for _, shape in Mesh("dp=2,tp=2").parts([4, 7], after)]
    assert (joined(locals, output) == value).all()


def test_the_host_program_has_compute_and_collectives_apart():
    program = _partita.Placed(MATMUL, Mesh("tp=2"), [[[], ["tp"]], [["tp"], []]], [[[], []]])
    instructions = re.findall(r"^ +\d+  (?:%\S+ = )?(start|wait|[a-z_]+)", program.host_ir(1), re.MULTILINE)
    assert instructions == ["dot_general", "start", "wait"]
    assert "start #0 all_reduce over [0, 1]" in program.host_ir(1)
    assert "stablehlo.all_reduce" in program.local_text(0)
    with pytest.raises(PartitaError) as refused:
        program.host_ir(2)
    assert refused.value.code == "E014"


def test_a_vector_jacobian_product_is_a_program_too():
    text = _partita.vjp(MATMUL, [0], [1])
    program = _partita.Placed(text, Mesh("tp=2"), [[["tp"], []], [[], []], [["tp"], []]], [[[], []]])
    seed = numbers(4, 5)
    (locals,) = run(program, A, B, seed)
    np.testing.assert_allclose(locals[1], A.T @ seed, atol=1e-5)
    with pytest.raises(PartitaError) as refused:
        _partita.vjp(MATMUL, [1], [0])
    assert refused.value.code == "E415"


def test_layouts_and_parts_that_do_not_fit_are_refused():
    mesh = Mesh("tp=2")
    both = [[[], ["tp"]], [["tp"], []]]

    def code(*arguments):
        with pytest.raises(PartitaError) as refused:
            _partita.Placed(*arguments)
        return refused.value.code

    assert code("func.func", mesh, both, [None]) == "E140"
    assert code(MATMUL, mesh, both[:1], [None]) == "E415"
    assert code(MATMUL, mesh, both, []) == "E415"
    assert code(MATMUL, mesh, [[[]], both[1]], [None]) == "E210"
    assert code(MATMUL, mesh, [[[], ["dp"]], both[1]], [None]) == "E208"
    assert code(MATMUL, mesh, [[["tp"], ["tp"]], both[1]], [None]) == "E212"
    program = _partita.Placed(MATMUL, mesh, both, [None])
    good = [cut(A, program.inputs()[0][5]), cut(B, program.inputs()[1][5])]
    for wrong in (
        good[:1],
        [good[0][:1], good[1]],
        [[good[0][0]] + [pack(numbers(4, 15))], good[1]],
        [[pack(A[:, :16].astype(np.float64)), good[0][1]], good[1]],
    ):
        with pytest.raises(PartitaError) as refused:
            program.run(wrong)
        assert refused.value.code == "E415"
    with pytest.raises(PartitaError) as refused:
        mesh.parts([4], [[], []])
    assert refused.value.code == "E210"
