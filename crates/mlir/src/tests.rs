//! Modules of several dialects as trees and printed again, and texts that are rejected.

use super::*;

fn parse(text: &str) -> partita_base::Result<Tree<'_>> {
    Tree::parse(Source { text, file: "f.mlir" })
}

/// Parses, prints and parses again; the second printed text must equal the first.
#[track_caller]
fn round_trip(text: &str) -> String {
    let printed = parse(text).unwrap_or_else(|error| panic!("{error}")).print();
    let again = parse(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}")).print();
    assert_eq!(again, printed);
    printed
}

/// The names of all operations, indented by nesting.
fn outline(tree: &Tree, operations: &[OperationId], depth: usize) -> String {
    let mut out = String::new();
    for &id in operations {
        let operation = tree.operation(id);
        out += &format!("{}{}\n", " ".repeat(depth), tree.name(operation));
        for &region in operation.regions() {
            for block in &tree.region(region).blocks {
                out += &outline(tree, &block.operations, depth + 1);
            }
        }
    }
    out
}

const LINALG: &str = r#"
#map = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d1)>
#positive = affine_set<(d0) : (d0 - 1 >= 0)>
module {
  func.func @bias(%x: tensor<4x8xf32>, %b: tensor<8xf32>) -> tensor<4x8xf32> {
    %zero = arith.constant 0.000000e+00 : f32
    %empty = tensor.empty() : tensor<4x8xf32>
    %0 = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x8xf32>) -> tensor<4x8xf32>
    %1 = linalg.generic {indexing_maps = [#map, #row, #map], iterator_types = ["parallel", "parallel"]} ins(%x, %b : tensor<4x8xf32>, tensor<8xf32>) outs(%0 : tensor<4x8xf32>) {
    ^bb0(%in: f32, %bias: f32, %out: f32):
      %2 = arith.addf %in, %bias : f32
      linalg.yield %2 : f32
    } -> tensor<4x8xf32>
    return %1 : tensor<4x8xf32>
  }
}
"#;

const TORCH: &str = r#"
!scale = !torch.vtensor<[4],f32>
module attributes {torch.debug_module_name = "Net"} {
  func.func @forward(%arg0: !torch.vtensor<[2,3],f32>) -> !torch.vtensor<[2,4],f32> attributes {torch.assume_strict_symbolic_shapes} {
    %int1 = torch.constant.int 1
    %none = torch.constant.none
    %0 = torch.vtensor.literal(dense_resource<weight> : tensor<4x3xf32>) : !torch.vtensor<[4,3],f32>
    %1 = torch.prim.ListConstruct %int1, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %2 = torch.aten.linear %arg0, %0, %none : !torch.vtensor<[2,3],f32>, !torch.vtensor<[4,3],f32>, !torch.none -> !torch.vtensor<[2,4],f32> loc(#loc1)
    return %2 : !torch.vtensor<[2,4],f32>
  } loc(#loc)
}
#loc = loc(unknown)
#loc1 = loc("net.py":3:0)
{-#
  dialect_resources: {
    builtin: {
      weight: "0x04000000CDCC8C3F"
    }
  }
#-}
"#;

const GENERIC: &str = r#"
"builtin.module"() <{sym_name = "m"}> ({
  "sdy.mesh"() <{mesh = #sdy.mesh<["x"=2, "y"=4]>, sym_name = "mesh"}> : () -> ()
  "func.func"() <{function_type = (tensor<4xf32>) -> tensor<4xf32>, sym_name = "main"}> ({
  ^bb0(%a: tensor<4xf32> loc("a")):
    %0 = "stablehlo.constant"() <{value = dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>}> : () -> tensor<4xf32>
    %1:2 = "foreign.split"(%a, %0) <{sizes = array<i64: 1, 3>, where = @outer::@inner}> {note = "text", flag, n = 3 : i8} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<1xf32>, tensor<3xf32>) loc("f"("m.py":1:2))
    "cf.cond_br"(%0)[^bb1, ^bb2] : (tensor<4xf32>) -> ()
  ^bb1:
    "func.return"(%a) : (tensor<4xf32>) -> ()
  ^bb2(%b: tensor<complex<f32>>):
    "func.return"(%0) : (tensor<4xf32>) -> ()
  }) : () -> ()
}) {dlti = {a = [1, -2, true], b = !x.y<z>, c = distinct[0]<unit>, d = strided<[1, ?]>}} : () -> ()
"#;

#[test]
fn modules_of_any_dialect_are_trees() {
    let tree = parse(LINALG).unwrap();
    let names = outline(&tree, &tree.top, 0);
    let expected = "module\n func.func\n  arith.constant\n  tensor.empty\n  linalg.fill\n  linalg.generic\n   arith.addf\n   \
                    linalg.yield\n  return\n";
    assert_eq!(names, expected);
    assert_eq!(
        tree.aliases.iter().map(|a| a.name.as_str()).collect::<Vec<_>>(),
        ["#map", "#row", "#positive"]
    );
    let tree = parse(TORCH).unwrap();
    let names = outline(&tree, &tree.top, 0);
    assert_eq!(names.lines().count(), 8, "{names}");
    assert!(names.contains("  torch.aten.linear\n  return"), "{names}");
    assert_eq!((tree.resources.len(), tree.aliases.len()), (1, 3));
    let linear = tree.operations.iter().find(|op| tree.name(op) == "torch.aten.linear").unwrap();
    assert_eq!(linear.location.as_ref().map(|span| tree.slice(span)), Some("(#loc1)"));
}

#[test]
fn the_generic_form_is_structure() {
    let tree = parse(GENERIC).unwrap();
    let split = tree.operations.iter().find(|op| tree.name(op) == "foreign.split").unwrap();
    let Form::Generic(generic) = &split.form else { panic!("a generic form") };
    assert_eq!(generic.operands.iter().map(|&t| tree.text(t)).collect::<Vec<_>>(), ["%a", "%0"]);
    assert_eq!((generic.properties, generic.attributes.len()), (2, 5));
    let values: Vec<String> =
        generic.attributes.iter().map(|named| tree.attribute_text(&named.value)).collect();
    assert_eq!(values, ["array<i64: 1, 3>", "@outer::@inner", "\"text\"", "unit", "3 : i8"]);
    let types: Vec<String> = generic.result_types.iter().map(|ty| tree.type_text(ty)).collect();
    assert_eq!(types, ["tensor<1xf32>", "tensor<3xf32>"]);
    assert_eq!((split.results.len(), split.results[0].count), (1, 2));
    let function = tree.operations.iter().find(|op| tree.name(op) == "func.func").unwrap();
    let blocks = &tree.region(function.regions()[0]).blocks;
    let labels: Vec<&str> = blocks.iter().filter_map(|block| Some(tree.text(block.label?))).collect();
    assert_eq!(labels, ["^bb0", "^bb1", "^bb2"]);
    assert_eq!(blocks[2].arguments.as_ref().map(|span| tree.slice(span)), Some("(%b: tensor<complex<f32>>)"));
    let branch = tree.operations.iter().find(|op| tree.name(op) == "cf.cond_br").unwrap();
    assert!(matches!(&branch.form, Form::Generic(generic) if generic.successors.len() == 2));
}

#[test]
fn trees_print_what_is_read_again() {
    for text in [LINALG, TORCH, GENERIC] {
        let printed = round_trip(text);
        let words = |text: &str| -> Vec<String> {
            let mut lines: Vec<String> = text.lines().map(|l| l.trim().to_string()).collect();
            lines.retain(|line| line.starts_with('%') && !line.contains('{'));
            lines
        };
        assert_eq!(words(&printed), words(text));
    }
}

#[test]
fn pretty_operations_end_where_a_statement_begins() {
    let cases = [
        ("a.b %x {k = 1} %y = c.d", "a.b\nc.d\n"),
        ("a.b : f32\nc.d", "a.b\nc.d\n"),
        ("a.b applies c.d across dimensions = [1]\nreturn", "a.b\nreturn\n"),
        (
            "scf.for %i = %a to %b iter_args(%c = %d) -> (f32) { scf.yield %c : f32 } e.f",
            "scf.for\n scf.yield\ne.f\n",
        ),
        (
            "a.while(%x = %y) : f32\n cond { %0 = a.b\n a.return } do { a.return }",
            "a.while\n a.b\n a.return\n a.return\n",
        ),
        ("a.b {c.d}\n\"e.f\"() : () -> ()", "a.b\ne.f\n"),
        ("a.b ^bb1\n", "a.b\n"),
        ("a.b @f(%x) : (i32) -> i32 loc(\"x\") return", "a.b\nreturn\n"),
    ];
    for (text, expected) in cases {
        let tree = parse(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(outline(&tree, &tree.top, 0), expected, "{text}");
        round_trip(text);
    }
}

#[test]
fn what_is_not_well_formed_or_too_deep_is_told_where() {
    let error = |text: &str| parse(text).err().unwrap_or_else(|| panic!("`{text}` is read"));
    for (text, at) in [
        ("\"a.b\"(%x) : (f32) f32", "f.mlir:1:19"),
        ("\"a.b\"() {k = } : () -> ()", "f.mlir:1:14"),
        ("%x, 1 = a.b", "f.mlir:1:5"),
        ("%x:0 = a.b", "f.mlir:1:4"),
        ("\n  )", "f.mlir:2:3"),
        ("#l = loc", "f.mlir:1:9"),
        ("\"a.b\"() <{k = dense<1}> : () -> ()", "f.mlir:1:22"),
        ("a.b { c.d 1 } }", "f.mlir:1:15"),
    ] {
        let error = error(text);
        assert_eq!((error.code, error.at.as_deref()), ("E140", Some(at)), "{text}: {error}");
    }
    let deep = |open: &str, inner: &str, close: &str| {
        let (open, close) = (open.repeat(100_000), close.repeat(100_000));
        format!("{open}{inner}{close}")
    };
    for text in [
        format!("\"a.b\"() {{k = {}}} : () -> ()", deep("[", "1", "]")),
        format!("\"a.b\"() {{k = {}}} : () -> ()", deep("{k = ", "1", "}")),
        format!("\"a.b\"() : ({}) -> ()", deep("(", "", ") -> ()")),
        deep("\"a.b\"() ({\n", "", "}) : () -> ()\n"),
        deep("a.b {\n a.c\n", "", "}\n"),
    ] {
        assert_eq!(error(&text).code, "E149", "{}", &text[..40]);
    }
    // Long lists are examined once: 200,000 operands, each of which could begin a list of results.
    let many: Vec<String> = (0..200_000).map(|i| format!("%{i}")).collect();
    let list = many.join(", ");
    let text = format!("a.b {list} : f32\n{list} = a.c {list} : f32");
    assert_eq!(parse(&text).map(|tree| tree.top.len()).ok(), Some(2));
    // Brackets without structure are skipped, however deep.
    let body = deep("<", "x", ">");
    assert!(parse(&format!("\"a.b\"() {{k = #a.b{body}}} : () -> ()")).is_ok());
    assert!(parse(&format!("a.b loc({})", deep("(", "", ")"))).is_ok());
}
