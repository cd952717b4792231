//! Functions of func, arith, math, tensor, linalg and scf: what they compute against numbers worked out here.

use partita_import::Limits;
use partita_import::mlir::read_function;
use partita_ir::{Graph, Literal, Operation, TensorType, evaluate};

fn read(text: &str) -> Graph {
    read_function(text, "test.mlir", None, &Limits::default())
        .unwrap_or_else(|error| panic!("{text}\n{error}"))
}

fn code(text: &str) -> String {
    let limits = Limits { nodes: 1 << 12, ..Limits::default() };
    let error = read_function(text, "test.mlir", None, &limits).map(|_| ()).unwrap_err();
    assert!(error.at.as_deref().is_some_and(|at| at.starts_with("test.mlir:")), "{error}");
    error.code.to_string()
}

/// The only result for arguments 1, 2, 3, .., which count on from argument to argument.
fn result(text: &str) -> Vec<f64> {
    let graph = read(text);
    let mut next = 0;
    let mut argument = |ty: &TensorType| {
        let values = (0..ty.element_count()).map(|at| (next + at + 1) as f64).collect::<Vec<_>>();
        next += ty.element_count();
        Literal::from_f64(ty, values.into_iter())
    };
    let arguments: Vec<Literal> = graph.inputs.iter().map(|&input| argument(graph.ty(input))).collect();
    let results = evaluate(&graph, &arguments).unwrap_or_else(|error| panic!("{text}\n{error}"));
    assert_eq!(results.len(), 1);
    results[0].to_f64()
}

/// The function `@f` of two tensors of four floats with this body.
fn of_four(body: &str) -> Vec<f64> {
    result(&format!(
        "func.func @f(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {{\n{body}\nreturn %r : tensor<4xf32>\n}}"
    ))
}

/// The result for a body on two scalars of i32, 1 and 2.
fn of_integers(body: &str, ty: &str) -> f64 {
    result(&format!("func.func @f(%a: i32, %b: i32) -> {ty} {{\n{body}\nreturn %r : {ty}\n}}"))[0]
}

#[test]
fn the_program_of_the_document_adds_two_tensors() {
    let text = "func.func @simple_add(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> tensor<4xf32> {\n\
                %0 = arith.addf %arg0, %arg1 : tensor<4xf32>\nreturn %0 : tensor<4xf32>\n}";
    let graph = read(text);
    assert_eq!(graph.name, "simple_add");
    let argument = |numbers: [f32; 4]| Literal::new([4], numbers.to_vec());
    let arguments = [argument([1.0, 2.0, 3.0, 4.0]), argument([5.0, 6.0, 7.0, 8.0])];
    assert_eq!(evaluate(&graph, &arguments).unwrap()[0].to_f64(), [6.0, 8.0, 10.0, 12.0]);
}

#[test]
fn floats_follow_their_formulas() {
    type Formula = fn(f64, f64) -> f64;
    let table: &[(&str, Formula)] = &[
        ("arith.addf %a, %b fastmath<fast>", |a, b| a + b),
        ("arith.subf %a, %b", |a, b| a - b),
        ("arith.mulf %a, %b", |a, b| a * b),
        ("arith.divf %a, %b", |a, b| a / b),
        ("arith.remf %b, %a", |a, b| b % a),
        ("arith.negf %a", |a, _| -a),
        ("arith.maximumf %a, %b", f64::max),
        ("arith.minimumf %a, %b", f64::min),
        ("arith.maxnumf %a, %b", f64::max),
        ("arith.minnumf %a, %b", f64::min),
        ("math.exp %a", |a, _| a.exp()),
        ("math.exp2 %a", |a, _| a.exp2()),
        ("math.expm1 %a", |a, _| a.exp_m1()),
        ("math.log %a", |a, _| a.ln()),
        ("math.log2 %a", |a, _| a.log2()),
        ("math.log10 %a", |a, _| a.log10()),
        ("math.log1p %a", |a, _| a.ln_1p()),
        ("math.sqrt %a", |a, _| a.sqrt()),
        ("math.rsqrt %a", |a, _| 1.0 / a.sqrt()),
        ("math.cbrt %a", |a, _| a.cbrt()),
        ("math.sin %a", |a, _| a.sin()),
        ("math.cos %a", |a, _| a.cos()),
        ("math.tan %a", |a, _| a.tan()),
        ("math.tanh %a", |a, _| a.tanh()),
        ("math.sinh %a", |a, _| a.sinh()),
        ("math.cosh %a", |a, _| a.cosh()),
        ("math.atan %a", |a, _| a.atan()),
        ("math.atan2 %a, %b", f64::atan2),
        ("math.powf %a, %b", f64::powf),
        ("math.fma %a, %b, %a", |a, b| a * b + a),
        ("math.trunc %a", |a, _| a.trunc()),
        ("math.floor %a", |a, _| a.floor()),
        ("math.ceil %a", |a, _| a.ceil()),
        ("math.round %a", |a, _| a.round()),
        ("math.absf %a", |a, _| a.abs()),
        ("math.copysign %a, %b", f64::copysign),
    ];
    for (op, formula) in table {
        let found = of_four(&format!("%r = {op} : tensor<4xf32>"));
        for (at, found) in found.iter().enumerate() {
            let expected = formula(at as f64 + 1.0, at as f64 + 5.0);
            assert!((found - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{op}: {found} {expected}");
        }
    }
}

#[test]
fn integers_and_conversions_follow_their_signs() {
    for (body, ty, expected) in [
        ("%r = arith.subi %a, %b : i32", "i32", -1.0),
        ("%r = arith.muli %a, %b : i32", "i32", 2.0),
        ("%c = arith.constant -7 : i32\n%r = arith.divsi %c, %b : i32", "i32", -3.0),
        ("%c = arith.constant -7 : i32\n%r = arith.remsi %c, %b : i32", "i32", -1.0),
        ("%c = arith.constant -1 : i32\n%r = arith.divui %c, %b : i32", "i32", 2147483647.0),
        ("%c = arith.constant -1 : i32\n%r = arith.maxui %c, %b : i32", "i32", -1.0),
        ("%c = arith.constant -1 : i32\n%r = arith.maxsi %c, %b : i32", "i32", 2.0),
        ("%c = arith.constant -8 : i32\n%r = arith.shrsi %c, %b : i32", "i32", -2.0),
        ("%c = arith.constant -8 : i32\n%r = arith.shrui %c, %b : i32", "i32", 1073741822.0),
        ("%r = arith.xori %a, %b : i32", "i32", 3.0),
        ("%r = arith.cmpi slt, %a, %b : i32", "i1", 1.0),
        ("%c = arith.constant -1 : i32\n%r = arith.cmpi ult, %c, %b : i32", "i1", 0.0),
        ("%c = arith.constant -1 : i32\n%r = arith.cmpi slt, %c, %b : i32", "i1", 1.0),
        ("%c = arith.constant true\n%r = arith.extui %c : i1 to i32", "i32", 1.0),
        ("%c = arith.constant true\n%r = arith.extsi %c : i1 to i32", "i32", -1.0),
        ("%c = arith.constant -1 : i8\n%r = arith.extui %c : i8 to i32", "i32", 255.0),
        ("%c = arith.constant -1 : i8\n%r = arith.uitofp %c : i8 to f32", "f32", 255.0),
        ("%c = arith.constant -1 : i8\n%r = arith.sitofp %c : i8 to f32", "f32", -1.0),
        ("%c = arith.constant -2.5 : f32\n%r = arith.fptosi %c : f32 to i32", "i32", -2.0),
        ("%c = arith.constant 258 : i32\n%r = arith.trunci %c : i32 to i8", "i8", 2.0),
        ("%c = arith.constant 1.0 : f32\n%r = arith.bitcast %c : f32 to i32", "i32", 1065353216.0),
        ("%c = arith.cmpi eq, %a, %b : i32\n%r = arith.select %c, %a, %b : i32", "i32", 2.0),
        ("%n = arith.constant 0x7FC00000 : f32\n%r = arith.cmpf uno, %n, %n : f32", "i1", 1.0),
        ("%n = arith.constant 0x7FC00000 : f32\n%r = arith.cmpf olt, %n, %n : f32", "i1", 0.0),
        ("%n = arith.constant 0x7FC00000 : f32\n%r = arith.cmpf ueq, %n, %n : f32", "i1", 1.0),
        (
            "%n = arith.constant 0x7FC00000 : f32\n%x = arith.constant 2.0 : f32\n%r = arith.maxnumf %n, %x : f32",
            "f32",
            2.0,
        ),
        (
            "%r = \"arith.addi\"(%a, %b) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32",
            "i32",
            3.0,
        ),
        ("%r = \"arith.cmpi\"(%a, %b) <{predicate = 4 : i64}> : (i32, i32) -> i1", "i1", 0.0),
        ("%r = \"arith.constant\"() <{value = 9 : i32}> : () -> i32", "i32", 9.0),
    ] {
        assert_eq!(of_integers(body, ty), expected, "{body}");
    }
}

#[test]
fn tensors_are_cut_and_joined() {
    let of = |body: &str, ty: &str| {
        result(&format!("func.func @f(%t: tensor<2x3xf32>) -> {ty} {{\n{body}\nreturn %r : {ty}\n}}"))
    };
    for (body, ty, expected) in [
        ("%r = tensor.empty() : tensor<2xf32>", "tensor<2xf32>", vec![0.0, 0.0]),
        (
            "%c = arith.constant 7.0 : f32\n%r = tensor.splat %c : tensor<2xf32>",
            "tensor<2xf32>",
            vec![7.0, 7.0],
        ),
        (
            "%i = arith.constant 1 : index\n%j = arith.constant 2 : index\n%r = tensor.extract %t[%i, %j] : tensor<2x3xf32>",
            "f32",
            vec![6.0],
        ),
        (
            "%c = arith.constant 7.0 : f32\n%i = arith.constant 1 : index\n\
             %r = tensor.insert %c into %t[%i, %i] : tensor<2x3xf32>",
            "tensor<2x3xf32>",
            vec![1.0, 2.0, 3.0, 4.0, 7.0, 6.0],
        ),
        (
            "%r = tensor.extract_slice %t[0, 0] [2, 2] [1, 2] : tensor<2x3xf32> to tensor<2x2xf32>",
            "tensor<2x2xf32>",
            vec![1.0, 3.0, 4.0, 6.0],
        ),
        (
            "%c = arith.constant dense<[8.0, 9.0]> : tensor<2xf32>\n\
             %r = tensor.insert_slice %c into %t[1, 1] [1, 2] [1, 1] : tensor<2xf32> into tensor<2x3xf32>",
            "tensor<2x3xf32>",
            vec![1.0, 2.0, 3.0, 4.0, 8.0, 9.0],
        ),
        (
            "%r = tensor.collapse_shape %t [[0, 1]] : tensor<2x3xf32> into tensor<6xf32>",
            "tensor<6xf32>",
            vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        ),
        (
            "%r = tensor.expand_shape %t [[0], [1, 2]] output_shape [2, 3, 1] : tensor<2x3xf32> into tensor<2x3x1xf32>",
            "tensor<2x3x1xf32>",
            vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        ),
        (
            "%r = tensor.concat dim(1) %t, %t : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x6xf32>",
            "tensor<2x6xf32>",
            vec![1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 4.0, 5.0, 6.0],
        ),
        (
            "%c = arith.constant 9.0 : f32\n%r = tensor.pad %t low[0, 1] high[0, 0] {\n^bb0(%i: index, %j: index):\n\
             tensor.yield %c : f32\n} : tensor<2x3xf32> to tensor<2x4xf32>",
            "tensor<2x4xf32>",
            vec![9.0, 1.0, 2.0, 3.0, 9.0, 4.0, 5.0, 6.0],
        ),
        (
            "%i = arith.constant 1 : index\n%d = tensor.dim %t, %i : tensor<2x3xf32>\n%r = arith.index_cast %d : index to i32",
            "i32",
            vec![3.0],
        ),
        (
            "%a = arith.constant 1.0 : f32\n%b = arith.constant 2.0 : f32\n%r = tensor.from_elements %a, %b : tensor<2xf32>",
            "tensor<2xf32>",
            vec![1.0, 2.0],
        ),
    ] {
        assert_eq!(of(body, ty), expected, "{body}");
    }
}

/// `x` of 2x3 and `y` of 3x2, counted on: the product, worked out.
const PRODUCT: [f64; 4] = [
    1.0 * 7.0 + 2.0 * 9.0 + 3.0 * 11.0,
    1.0 * 8.0 + 2.0 * 10.0 + 3.0 * 12.0,
    4.0 * 7.0 + 5.0 * 9.0 + 6.0 * 11.0,
    4.0 * 8.0 + 5.0 * 10.0 + 6.0 * 12.0,
];

#[test]
fn a_matmul_by_name_and_written_out_is_one_product() {
    let of = |op: &str| {
        format!(
            "#x = affine_map<(m, n, k) -> (m, k)>\n#y = affine_map<(m, n, k) -> (k, n)>\n#z = affine_map<(m, n, k) -> (m, n)>\n\
             func.func @f(%x: tensor<2x3xf32>, %y: tensor<3x2xf32>) -> tensor<2x2xf32> {{\n\
             %zero = arith.constant 0.0 : f32\n%e = tensor.empty() : tensor<2x2xf32>\n\
             %o = linalg.fill ins(%zero : f32) outs(%e : tensor<2x2xf32>) -> tensor<2x2xf32>\n\
             %r = {op}\nreturn %r : tensor<2x2xf32>\n}}"
        )
    };
    let operands = "ins(%x, %y : tensor<2x3xf32>, tensor<3x2xf32>) outs(%o : tensor<2x2xf32>)";
    let body = "{\n^bb0(%a: f32, %b: f32, %c: f32):\n%p = arith.mulf %a, %b : f32\n%s = arith.addf %c, %p : f32\n\
                linalg.yield %s : f32\n}";
    let written = format!(
        "linalg.generic {{indexing_maps = [#x, #y, #z], iterator_types = [\"parallel\", \"parallel\", \"reduction\"]}} \
         {operands} {body} -> tensor<2x2xf32>"
    );
    for op in [format!("linalg.matmul {operands} -> tensor<2x2xf32>"), written] {
        let text = of(&op);
        assert_eq!(result(&text), PRODUCT, "{op}");
        let dots = read(&text).nodes.iter().filter(|node| node.op.name() == "stablehlo.dot_general").count();
        assert_eq!(dots, 1, "{op}");
    }
}

#[test]
fn structured_ops_repeat_reduce_and_transpose() {
    let of = |body: &str, ty: &str| {
        result(&format!(
            "func.func @f(%x: tensor<2x3xf32>, %v: tensor<3xf32>) -> {ty} {{\n%e = tensor.empty() : tensor<2x3xf32>\n\
             %zero = arith.constant 0.0 : f32\n%e2 = tensor.empty() : tensor<2xf32>\n\
             %o2 = linalg.fill ins(%zero : f32) outs(%e2 : tensor<2xf32>) -> tensor<2xf32>\n{body}\nreturn %r : {ty}\n}}"
        ))
    };
    for (body, ty, expected) in [
        (
            // Adds a row to every row, with a scalar from outside and the index of the column.
            "%one = arith.constant 1.0 : f32\n%r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, \
             affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>], iterator_types = [\"parallel\", \"parallel\"]} \
             ins(%x, %v : tensor<2x3xf32>, tensor<3xf32>) outs(%e : tensor<2x3xf32>) {\n^bb0(%a: f32, %b: f32, %c: f32):\n\
             %s = arith.addf %a, %b : f32\n%t = arith.addf %s, %one : f32\n%j = linalg.index 1 : index\n\
             %k = arith.index_cast %j : index to i32\n%l = arith.sitofp %k : i32 to f32\n%u = arith.addf %t, %l : f32\n\
             linalg.yield %u : f32\n} -> tensor<2x3xf32>",
            "tensor<2x3xf32>",
            vec![9.0, 12.0, 15.0, 12.0, 15.0, 18.0],
        ),
        (
            "%r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>], \
             iterator_types = [\"parallel\", \"reduction\"]} ins(%x : tensor<2x3xf32>) outs(%o2 : tensor<2xf32>) {\n\
             ^bb0(%a: f32, %acc: f32):\n%q = arith.mulf %a, %a : f32\n%s = arith.addf %q, %acc : f32\n\
             linalg.yield %s : f32\n} -> tensor<2xf32>",
            "tensor<2xf32>",
            vec![14.0, 77.0],
        ),
        (
            "%r = linalg.reduce { arith.maximumf } ins(%x : tensor<2x3xf32>) outs(%o2 : tensor<2xf32>) dimensions = [1]",
            "tensor<2xf32>",
            vec![3.0, 6.0],
        ),
        (
            "%r = linalg.reduce ins(%x : tensor<2x3xf32>) outs(%o2 : tensor<2xf32>) dimensions = [1]\n\
             (%in: f32, %acc: f32) {\n%s = arith.addf %acc, %in : f32\nlinalg.yield %s : f32\n}",
            "tensor<2xf32>",
            vec![6.0, 15.0],
        ),
        (
            "%r = linalg.map { arith.mulf } ins(%x, %x : tensor<2x3xf32>, tensor<2x3xf32>) outs(%e : tensor<2x3xf32>)",
            "tensor<2x3xf32>",
            vec![1.0, 4.0, 9.0, 16.0, 25.0, 36.0],
        ),
        (
            "%t = tensor.empty() : tensor<3x2xf32>\n\
             %r = linalg.transpose ins(%x : tensor<2x3xf32>) outs(%t : tensor<3x2xf32>) permutation = [1, 0]",
            "tensor<3x2xf32>",
            vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0],
        ),
        (
            "%r = linalg.broadcast ins(%v : tensor<3xf32>) outs(%e : tensor<2x3xf32>) dimensions = [0]",
            "tensor<2x3xf32>",
            vec![7.0, 8.0, 9.0, 7.0, 8.0, 9.0],
        ),
        (
            "%r = linalg.exp ins(%o2 : tensor<2xf32>) outs(%o2 : tensor<2xf32>) -> tensor<2xf32>",
            "tensor<2xf32>",
            vec![1.0, 1.0],
        ),
        (
            "%r = linalg.matvec ins(%x, %v : tensor<2x3xf32>, tensor<3xf32>) outs(%o2 : tensor<2xf32>) -> tensor<2xf32>",
            "tensor<2xf32>",
            vec![1.0 * 7.0 + 2.0 * 8.0 + 3.0 * 9.0, 4.0 * 7.0 + 5.0 * 8.0 + 6.0 * 9.0],
        ),
    ] {
        assert_eq!(of(body, ty), expected, "{body}");
    }
}

#[test]
fn loops_and_calls_are_written_out() {
    let text = "module {\n func.func private @twice(%x: tensor<2xf32>) -> tensor<2xf32> {\n\
                %0 = arith.addf %x, %x : tensor<2xf32>\n\
                return %0 : tensor<2xf32>\n }\n func.func @f(%x: tensor<2xf32>) -> tensor<2xf32> {\n\
                %zero = arith.constant 0 : index\n%three = arith.constant 3 : index\n%one = arith.constant 1 : index\n\
                %r = scf.for %i = %zero to %three step %one iter_args(%a = %x) -> (tensor<2xf32>) {\n\
                %d = func.call @twice(%a) : (tensor<2xf32>) -> tensor<2xf32>\n%k = arith.index_cast %i : index to i32\n\
                %f = arith.sitofp %k : i32 to f32\n%s = tensor.splat %f : tensor<2xf32>\n\
                %e = arith.addf %d, %s : tensor<2xf32>\nscf.yield %e : tensor<2xf32>\n}\nreturn %r : tensor<2xf32>\n }\n}";
    // x, 2x + 0, 4x + 1, 8x + 4.
    assert_eq!(result(text), [12.0, 20.0]);
}

#[test]
fn stablehlo_is_read_by_its_own_reader() {
    let text = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n%0 = stablehlo.add %x, %x : tensor<2xf32>\n\
                return %0 : tensor<2xf32>\n}";
    assert_eq!(result(text), [2.0, 4.0]);
    assert_eq!(read(text).output_names, ["result0"]);
}

#[test]
fn what_is_not_read_is_refused_with_its_place() {
    let body =
        |body: &str| format!("func.func @f(%a: tensor<4xf32>, %i: index) -> tensor<4xf32> {{\n{body}\n}}");
    let end = "return %a : tensor<4xf32>";
    for (text, expected) in [
        (body(&format!("%r = arith.addq %a, %a : tensor<4xf32>\n{end}")), "E141"),
        (body(&format!("%r = arith.addf %a, %b : tensor<4xf32>\n{end}")), "E143"),
        (body(&format!("%r = arith.addf %a, %a : tensor<5xf32>\n{end}")), "E146"),
        (body(&format!("%r = arith.addf %a : tensor<4xf32>\n{end}")), "E146"),
        (
            body(&format!(
                "%r = memref.alloc() : memref<4xf32>\n%q = arith.addf %a, %a : tensor<4xf32>\n{end}"
            )),
            "E144",
        ),
        (body("%q = arith.addf %a, %a : tensor<4xf32>"), "E140"),
        (body(&format!("%c = arith.constant dense<[1.0]> : tensor<4xf32>\n{end}")), "E145"),
        (
            body(&format!(
                "%z = arith.constant 0 : index\nscf.for %j = %z to %i step %i {{\nscf.yield\n}}\n{end}"
            )),
            "E144",
        ),
        (
            body(&format!(
                "%z = arith.constant 0 : index\n%m = arith.constant 100000000 : index\n%s = arith.constant 1 : index\n\
                 scf.for %j = %z to %m step %s {{\n%k = arith.addi %j, %j : index\nscf.yield\n}}\n{end}"
            )),
            "E149",
        ),
        ("func.func @f(%a: memref<4xf32>) {\n%c = arith.constant 0 : index\nreturn\n}".to_string(), "E144"),
        (
            "func.func @f() {\n%c = arith.constant 0 : index\nfunc.call @f() : () -> ()\nreturn\n}"
                .to_string(),
            "E149",
        ),
    ] {
        assert_eq!(code(&text), expected, "{text}");
    }
    let text = body("%r = memref.load %a[%i] : memref<4xf32>\n%q = arith.addf %a, %a : tensor<4xf32>");
    let error = read_function(&text, "test.mlir", None, &Limits::default()).map(|_| ()).unwrap_err();
    assert_eq!(error.at.as_deref(), Some("test.mlir:2:6"));
    assert!(error.message.contains("memref.load") && error.message.contains("bufferised"), "{error}");
}
