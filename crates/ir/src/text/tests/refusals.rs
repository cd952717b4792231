//! Texts that are refused, and where the message points.

use super::*;

/// The error for a text, as a whole message.
#[track_caller]
fn message(text: &str) -> String {
    parse_named(text, "f.mlir").expect_err("the text is wrong").to_string()
}

/// A function of two f32 vectors around one line.
fn line(op: &str) -> String {
    format!(
        "func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {{\n  {op}\n  return %0 : tensor<4xf32>\n}}"
    )
}

#[test]
fn wrong_texts_are_explained_where_they_are_wrong() {
    let cases: &[(String, &str)] = &[
        (
            line("%0 = stablehlo.ad %a, %b : tensor<4xf32>"),
            "error[E141]: unknown operation `stablehlo.ad`\n        at: f.mlir:2:8\n      note: %0 = stablehlo.ad %a, %b : tensor<4xf32>\n                 ^\n      help: did you mean `stablehlo.add` or `stablehlo.and` or `stablehlo.pad`?",
        ),
        (
            line("%0 = stablehlo.add %a, %c : tensor<4xf32>"),
            "error[E143]: `%c` is not defined here\n        at: f.mlir:2:26\n      note: %0 = stablehlo.add %a, %c : tensor<4xf32>\n                                   ^\n      help: did you mean `%a` or `%b`?",
        ),
        (
            line("%0 = stablehlo.add %a %b : tensor<4xf32>"),
            "error[E140]: unexpected text\n        at: f.mlir:2:25\n  expected: `:`\n     found: `%b`\n      note: %0 = stablehlo.add %a %b : tensor<4xf32>\n                                  ^",
        ),
        (
            line("%0 = stablehlo.add %a, %b : tensor<5xf32>"),
            "error[E146]: the operands of `stablehlo.add` do not have the types after `:`\n        at: f.mlir:2:8\n  expected: tensor<4xf32>, tensor<4xf32>\n     found: tensor<5xf32>, tensor<5xf32>\n      note: %0 = stablehlo.add %a, %b : tensor<5xf32>\n                 ^",
        ),
        (
            line("%0 = stablehlo.add %a, %b : tensor<4x!quant.uniform<i8:f32, 0.5>>"),
            "error[E142]: quantized element types are not supported\n        at: f.mlir:2:31\n     found: `tensor<4x!quant.uniform<i8:f32, 0.5>>`\n      note: %0 = stablehlo.add %a, %b : tensor<4x!quant.uniform<i8:f32, 0.5>>\n                                        ^",
        ),
        (
            line("%0 = stablehlo.add %a, %b : tensor<?xf32>"),
            "error[E142]: shapes must be static\n        at: f.mlir:2:31\n     found: `tensor<?xf32>`\n      note: %0 = stablehlo.add %a, %b : tensor<?xf32>\n                                        ^\n      help: lower the program with concrete shapes",
        ),
        (
            line("%0 = stablehlo.custom_call @lapack_getrf(%a) : (tensor<4xf32>) -> tensor<4xf32>"),
            "error[E144]: custom call `@lapack_getrf` is not supported\n        at: f.mlir:2:8\n      note: %0 = stablehlo.custom_call @lapack_getrf(%a) : (tensor<4xf32>) -> tensor<4xf32>\n                 ^",
        ),
        (
            line("%0 = stablehlo.constant dense<[1.0, 2.0]> : tensor<4xf32>"),
            "error[E145]: the literal's brackets do not match its type\n        at: f.mlir:2:27\n  expected: [4]\n     found: [2]\n      note: %0 = stablehlo.constant dense<[1.0, 2.0]> : tensor<4xf32>\n                                    ^",
        ),
        (
            line("%0 = stablehlo.constant dense<300> : tensor<4xui8>"),
            "error[E145]: this element does not fit the literal's type\n        at: f.mlir:2:33\n  expected: a value of ui8\n     found: `300`\n      note: %0 = stablehlo.constant dense<300> : tensor<4xui8>\n                                          ^",
        ),
        (
            line("%0 = \"stablehlo.transpose\"(%a) : (tensor<4xf32>) -> tensor<4xf32>"),
            "error[E147]: `stablehlo.transpose` lacks the attribute `permutation`\n        at: f.mlir:2:8\n  expected: integers such as `array<i64: 0, 1>`\n      note: %0 = \"stablehlo.transpose\"(%a) : (tensor<4xf32>) -> tensor<4xf32>\n                 ^",
        ),
        (
            line("%0 = stablehlo.transpose %a, dims = [1] : (tensor<4xf32>) -> tensor<4xf32>"),
            "error[E105]: `permutation` of `stablehlo.transpose` must be different dimensions\n        at: f.mlir:2:8",
        ),
        (
            format!(
                "sdy.mesh @mesh = <[\"data\"=2]>\n{}",
                line("%0 = sdy.sharding_constraint %a <@mesh, [{\"date\"}]> : tensor<4xf32>")
            ),
            "error[E148]: mesh `@mesh` has no axis `date`\n        at: f.mlir:3:45\n  expected: one of `data`\n      note: %0 = sdy.sharding_constraint %a <@mesh, [{\"date\"}]> : tensor<4xf32>\n                                                      ^\n      help: did you mean `data`?",
        ),
        (
            format!(
                "sdy.mesh @mesh = <[\"data\"=2]>\n{}",
                line("%0 = sdy.sharding_constraint %a <@mesh, [{}, {}]> : tensor<4xf32>")
            ),
            "error[E148]: a sharding must have an entry for each dimension\n        at: f.mlir:3:8\n  expected: 1 dimensions for tensor<4xf32>\n     found: 2",
        ),
        (
            "module {\n  func.func @f() {\n    return\n".into(),
            "error[E140]: `{` is never closed\n        at: f.mlir:2:18\n      note: func.func @f() {\n                           ^",
        ),
        (
            "func.func @f() { return }\nfunc.func @g() { return }".into(),
            "error[E143]: there is no entry function\n        at: f.mlir\n  expected: a function `@main`, or a single public function\n     found: `@f`, `@g`",
        ),
        (
            "func.func @main() {\n  call @main() : () -> ()\n  return\n}".into(),
            "error[E149]: function `@main` calls itself\n        at: f.mlir:2:8\n      note: call @main() : () -> ()\n                 ^",
        ),
        (
            format!("// {}\n{}", "é".repeat(200), line("%0 = stablehlo.constant \"x")),
            "error[E140]: this string does not end on its line\n        at: f.mlir:3:27\n      note: %0 = stablehlo.constant \"x\n                                    ^",
        ),
    ];
    for (text, expected) in cases {
        let found = message(text);
        assert!(found.starts_with(expected), "--- expected\n{expected}\n--- found\n{found}");
    }
}

#[test]
fn the_caret_stays_in_view_on_lines_of_thousands_of_characters() {
    let many: Vec<String> = (0..400).map(|i| format!("%arg{i}: tensor<4xf32>")).collect();
    let text = format!("func.func @main({}, %x: tensor<4xf3>) {{ return }}", many.join(", "));
    let found = message(&text);
    let note: Vec<&str> = found.lines().skip_while(|l| !l.contains("note")).take(2).collect();
    assert!(note[0].chars().count() < 130 && note[1].ends_with('^'), "{found}");
    assert_eq!(note[0].chars().skip(note[1].chars().count() - 1).take(6).collect::<String>(), "tensor");
}

#[test]
fn texts_that_would_unfold_without_bound_are_refused() {
    // Each function calls the next twice: 2^40 nodes.
    let mut text = String::from("module {\n");
    for i in 0..40 {
        let name = if i == 0 { "public @main".to_string() } else { format!("private @f{i}") };
        let call = |n: usize| format!("%{n} = call @f{}(%a) : (tensor<f32>) -> tensor<f32>\n", i + 1);
        let body = if i == 39 {
            "%0 = stablehlo.add %a, %a : tensor<f32>\n%1 = stablehlo.add %0, %a : tensor<f32>\n".to_string()
        } else {
            call(0) + &call(1)
        };
        text.push_str(&format!(
            "func.func {name}(%a: tensor<f32>) -> tensor<f32> {{\n{body}return %1 : tensor<f32>\n}}\n"
        ));
    }
    text.push('}');
    assert_eq!(parse(&text).unwrap_err().code, "E149");
    let deep = "{a = ".repeat(100_000) + &"}".repeat(100_000);
    assert_eq!(
        parse(&line(&format!("%0 = stablehlo.add %a, %b {deep} : tensor<4xf32>"))).unwrap_err().code,
        "E149"
    );
    let nested = |levels: usize| {
        let open = "%0 = \"stablehlo.case\"(%i) ({\n".repeat(levels);
        let close = "stablehlo.return %0 : tensor<f32>\n}) : (tensor<i32>) -> tensor<f32>\n".repeat(levels);
        let body = format!("{open}%0 = stablehlo.tanh %x : tensor<f32>\n{close}");
        format!(
            "func.func @main(%i: tensor<i32>, %x: tensor<f32>) -> tensor<f32> {{\n{body}return %0 : tensor<f32>\n}}"
        )
    };
    round_trip(&parse(&nested(40)).unwrap());
    assert_eq!(parse(&nested(5_000)).unwrap_err().code, "E149");
    let huge = line("%0 = stablehlo.constant dense<0.0> : tensor<100000x100000xf32>");
    assert_eq!(parse(&huge).unwrap_err().code, "E149");
    let huge = line("%0 = stablehlo.add %a, %b : tensor<99999999999x99999999999x99999999999xf32>");
    assert_eq!(parse(&huge).unwrap_err().code, "E142");
}
