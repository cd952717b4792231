//! Parsing of collectives' groups, and texts that are rejected or limited.

use super::*;
use crate::op::Op;
use crate::traits::{CollectiveRef, Traits};

#[track_caller]
fn code(text: &str) -> &'static str {
    match parse(text) {
        Ok(graph) => panic!("this is read:\n{}", print(&graph)),
        Err(error) => error.code,
    }
}

/// `main` over one vector of two, with one collective of these properties, whose result has `result` elements.
fn collective(module: &str, name: &str, properties: &str, region: bool, result: usize) -> String {
    let body = "({\n^bb0(%x: tensor<f32>, %y: tensor<f32>):\n%s = stablehlo.add %x, %y : tensor<f32>\nstablehlo.return %s : tensor<f32>\n}) ";
    let body = if region { body } else { "" };
    format!(
        "module {module} {{ func.func public @main(%a: tensor<2xf32>) -> tensor<{result}xf32> {{\n%0 = \"stablehlo.{name}\"(%a) \
         <{{{properties}}}> {body}: (tensor<2xf32>) -> tensor<{result}xf32>\nreturn %0 : tensor<{result}xf32>\n}} }}"
    )
}

const CHANNEL: &str = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>";

/// The groups of the only collective of a program; `None` if parsing removed it.
#[track_caller]
fn groups(text: &str) -> Option<Vec<Vec<usize>>> {
    let graph = parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    match graph.nodes.as_slice() {
        [] => None,
        [node] => {
            let Traits::Collective(collective) = graph.traits(node) else { panic!("{:?}", node.op) };
            Some(match collective {
                CollectiveRef::AllReduce(op) => op.groups.to_vec(),
                CollectiveRef::AllGather(op) => op.groups.to_vec(),
                CollectiveRef::ReduceScatter(op) => op.groups.to_vec(),
                CollectiveRef::AllToAll(op) => op.groups.to_vec(),
                CollectiveRef::CollectiveBroadcast(op) => op.groups.to_vec(),
                CollectiveRef::CollectivePermute(op) => {
                    op.pairs.iter().map(|&(from, to)| vec![from, to]).collect()
                }
            })
        }
        many => panic!("{} nodes", many.len()),
    }
}

#[test]
fn groups_of_reductions_and_gathers_name_what_their_flags_say() {
    let list = |rows: &str, width: usize| format!("replica_groups = dense<{rows}> : tensor<1x{width}xi64>");
    for (name, dim, region) in [
        ("all_reduce", "", true),
        ("all_gather", "all_gather_dim = 0 : i64, ", false),
        ("reduce_scatter", "scatter_dimension = 0 : i64, ", true),
    ] {
        let text = |module: &str, groups: &str, flags: &str, members: usize| {
            let result = match name {
                "all_gather" => 2 * members,
                "reduce_scatter" => 2 / members,
                _ => 2,
            };
            collective(module, name, &format!("{dim}{groups}{flags}"), region, result)
        };
        let (two, one) = (list("[[1, 0]]", 2), list("[[0]]", 1));
        let global = format!(", {CHANNEL}, use_global_device_ids");
        let channel = format!(", {CHANNEL}");
        assert_eq!(groups(&text("", &two, &global, 2)), Some(vec![vec![1, 0]]), "{name}");
        // Over the only replica each partition takes part alone; with a channel all its partitions
        // do.
        assert_eq!(groups(&text("", &one, "", 1)), None, "{name}");
        let counted = "attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32}";
        assert_eq!(groups(&text(counted, &one, &channel, 2)), Some(vec![vec![0, 1]]), "{name}");
        assert_eq!(code(&text("", &one, &channel, 2)), "E144", "{name}: partitions of unknown number");
        assert_eq!(code(&text(counted, &two, &channel, 2)), "E144", "{name}: a second replica");
        assert_eq!(code(&text(counted, &two, "", 2)), "E144", "{name}: a second replica");
        assert_eq!(code(&text(counted, &two, ", use_global_device_ids", 2)), "E147", "{name}");
        // Two replicas of two partitions: partition p of replica r is rank 2 r + p.
        let replicas = "attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 2 : i32}";
        let each = vec![vec![2, 0], vec![3, 1]];
        assert_eq!(groups(&text(replicas, &two, "", 2)), Some(each), "{name}");
        let both = vec![vec![0, 1]];
        assert_eq!(groups(&text(replicas, &list("[[0]]", 1), &channel, 2)), Some(both), "{name}");
        assert_eq!(groups(&text(replicas, &two, &global, 2)), Some(vec![vec![1, 0]]), "{name}");
        assert_eq!(code(&text(replicas, &list("[[0, 2]]", 2), "", 2)), "E144", "{name}");
        let many = "attributes {mhlo.num_partitions = 4294967296 : i64, mhlo.num_replicas = 2 : i32}";
        assert_eq!(code(&text(many, &two, "", 2)), "E149", "{name}");
        // A handle of 0 is no channel.
        let zero = ", channel_handle = #stablehlo.channel_handle<handle = 0, type = 0>";
        assert_eq!(groups(&text(counted, &one, zero, 1)), None, "{name}");
    }
}

#[test]
fn groups_of_exchanges_are_partitions_only_with_a_channel() {
    let groups_of = "replica_groups = dense<[[1, 0]]> : tensor<1x2xi64>";
    let alone = "replica_groups = dense<[[0]]> : tensor<1x1xi64>";
    let pairs = "source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>";
    let itself = "source_target_pairs = dense<[[0, 0]]> : tensor<1x2xi64>";
    let all_to_all = |groups: &str, count: usize| {
        format!(
            "concat_dimension = 0 : i64, {groups}, split_count = {count} : i64, split_dimension = 0 : i64"
        )
    };
    for (name, partitions, replica, expected) in [
        ("all_to_all", all_to_all(groups_of, 2), all_to_all(alone, 1), vec![vec![1, 0]]),
        ("collective_broadcast", groups_of.to_string(), alone.to_string(), vec![vec![1, 0]]),
        ("collective_permute", pairs.to_string(), itself.to_string(), vec![vec![0, 1]]),
    ] {
        let text = |properties: &str| collective("", name, properties, false, 2);
        assert_eq!(groups(&text(&format!("{partitions}, {CHANNEL}"))), Some(expected.clone()), "{name}");
        assert_eq!(groups(&text(&replica)), None, "{name}");
        assert_eq!(code(&text(&partitions)), "E144", "{name}");
        let replicas = "attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 2 : i32}";
        let text = |properties: &str| collective(replicas, name, properties, false, 2);
        let shifted =
            |by: usize, times: usize| -> Vec<usize> { expected[0].iter().map(|&i| i * times + by).collect() };
        let found = groups(&text(&format!("{partitions}, {CHANNEL}")));
        assert_eq!(found, Some(vec![shifted(0, 1), shifted(2, 1)]), "{name}");
        assert_eq!(groups(&text(&partitions)), Some(vec![shifted(0, 2), shifted(1, 2)]), "{name}");
    }
}

#[test]
fn collectives_over_a_mesh_of_devices_in_another_order_are_refused() {
    let text = |devices: &str| {
        format!(
            "module {{ sdy.mesh @m = <[\"x\"=2]{devices}>\nfunc.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> {{\n\
             %0 = sdy.manual_computation(%a) in_shardings=[<@m, [{{\"x\"}}]>] out_shardings=[<@m, [{{\"x\"}}]>] \
             manual_axes={{\"x\"}} (%b: tensor<1xf32>) {{\n%1 = \"stablehlo.collective_permute\"(%b) <{{{CHANNEL}, \
             source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}}> : (tensor<1xf32>) -> tensor<1xf32>\n\
             sdy.return %1 : tensor<1xf32>\n}} : (tensor<2xf32>) -> tensor<2xf32>\nreturn %0 : tensor<2xf32>\n}} }}"
        )
    };
    assert!(parse(&text("")).is_ok() && parse(&text(", device_ids=[0, 1]")).is_ok());
    assert_eq!(code(&text(", device_ids=[1, 0]")), "E144");
}

/// A function of a predicate, an index and a scalar around some lines that define `%0`.
fn scalar_function(lines: &str) -> String {
    format!(
        "func.func @main(%p: tensor<i1>, %i: tensor<i32>, %x: tensor<f32>) -> tensor<f32> {{\n{lines}\nreturn %0 : \
         tensor<f32>\n}}"
    )
}

#[test]
fn branches_with_arguments_and_loops_with_other_arguments_are_refused() {
    let with = "{\n^bb0(%y: tensor<f32>):\nstablehlo.return %x : tensor<f32>\n}";
    let without = "{\nstablehlo.return %x : tensor<f32>\n}";
    let case = |branch: &str| {
        scalar_function(&format!("%0 = \"stablehlo.case\"(%i) ({branch}) : (tensor<i32>) -> tensor<f32>"))
    };
    let branch = |first: &str, second: &str| {
        let op = format!("%0 = \"stablehlo.if\"(%p) ({first}, {second}) : (tensor<i1>) -> tensor<f32>");
        scalar_function(&op)
    };
    assert!(parse(&case(without)).is_ok() && parse(&branch(without, without)).is_ok());
    assert_eq!(code(&case(with)), "E107");
    assert_eq!(code(&branch(with, without)), "E107");
    assert_eq!(code(&branch(without, with)), "E107");
    let looped = |arguments: &str| {
        scalar_function(&format!(
            "%0 = \"stablehlo.while\"(%x) ({{\n^bb0({arguments}):\nstablehlo.return %p : tensor<i1>\n}}, {{\n\
             ^bb0(%y: tensor<f32>):\nstablehlo.return %y : tensor<f32>\n}}) : (tensor<f32>) -> tensor<f32>"
        ))
    };
    assert!(parse(&looped("%y: tensor<f32>")).is_ok());
    assert_eq!(code(&looped("")), "E107");
    assert_eq!(code(&looped("%y: tensor<f32>, %z: tensor<f32>")), "E107");
}

#[test]
fn an_alias_without_its_location_is_refused() {
    let used = scalar_function("%0 = stablehlo.tanh %x : tensor<f32> loc(#here)");
    assert!(parse(&format!("{used}\n#here = loc(\"a/b\")")).is_ok());
    for end in ["", " ", "\n", " 1", " unknown"] {
        assert_eq!(code(&format!("{used}\n#here = loc{end}")), "E140");
    }
}

#[test]
fn an_empty_window_of_a_gather_is_refused() {
    let text = |size: usize| {
        scalar_function(&format!(
            "%t = stablehlo.constant dense<1.0> : tensor<5xf32>\n%at = stablehlo.constant dense<3> : tensor<1xi32>\n\
             %0 = \"stablehlo.gather\"(%t, %at) <{{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], \
             start_index_map = [0]>, slice_sizes = array<i64: {size}>}}> : (tensor<5xf32>, tensor<1xi32>) -> tensor<f32>"
        ))
    };
    assert!(parse(&text(1)).is_ok());
    assert_eq!(code(&text(0)), "E106");
}

/// A module whose `main` and functions `@f0..` each hold `body(next)` over `%a`, the last one plain.
fn chain(levels: usize, body: impl Fn(usize) -> String) -> String {
    let function = |name: &str, body: &str| {
        format!("func.func {name}(%a: tensor<f32>) -> tensor<f32> {{\n{body}\nreturn %0 : tensor<f32>\n}}\n")
    };
    let mut text = function("public @main", &body(0));
    for level in 0..levels {
        let body =
            if level + 1 < levels { body(level + 1) } else { "%0 = stablehlo.tanh %a : tensor<f32>".into() };
        text += &function(&format!("private @f{level}"), &body);
    }
    format!("module {{\n{text}}}")
}

/// One level that applies the composite `name` of the next level twice.
fn composite_twice(next: usize) -> String {
    let apply = |result: &str, from: &str| {
        format!(
            "{result} = stablehlo.composite \"x.level{next}\" {from} {{decomposition = @f{next}}} : (tensor<f32>) -> \
             tensor<f32>"
        )
    };
    format!("{}\n{}", apply("%1", "%a"), apply("%0", "%1"))
}

#[test]
fn composites_of_composites_are_compared_once_and_unfold_within_bounds() {
    // Compared as trees, 16 levels are 2^32 comparisons for the two texts and the graphs.
    let graph = parse(&chain(16, composite_twice)).unwrap();
    assert_eq!(parse(&print(&graph)).unwrap(), graph);
    assert_eq!(code(&chain(22, composite_twice)), "E149");
    assert_eq!(code(&chain(400, composite_twice)), "E149");
}

#[test]
fn calls_in_regions_count_with_all_they_hold() {
    let branches = |next: usize| {
        let branch = format!(
            "{{\n%1 = func.call @f{next}(%a) : (tensor<f32>) -> tensor<f32>\nstablehlo.return %1 : tensor<f32>\n}}"
        );
        format!(
            "%p = stablehlo.constant dense<true> : tensor<i1>\n%0 = \"stablehlo.if\"(%p) ({branch}, {branch}) : \
             (tensor<i1>) -> tensor<f32>"
        )
    };
    assert!(parse(&chain(8, branches)).is_ok());
    assert_eq!(code(&chain(18, branches)), "E149");
    // Depth counts through calls too, from the outside in and from the inside out.
    let one = |next: usize| {
        format!(
            "%i = stablehlo.constant dense<0> : tensor<i32>\n%0 = \"stablehlo.case\"(%i) ({{\n%1 = func.call \
             @f{next}(%a) : (tensor<f32>) -> tensor<f32>\nstablehlo.return %1 : tensor<f32>\n}}) : (tensor<i32>) -> \
             tensor<f32>"
        )
    };
    assert_eq!(code(&chain(1000, one)), "E149");
    let first: String = (0..1000)
        .rev()
        .map(|level| format!("%c{level} = call @f{level}(%a) : (tensor<f32>) -> tensor<f32>\n"))
        .collect();
    let bottom_up = chain(1000, one).replacen("%i = ", &format!("{first}%i = "), 1);
    assert_eq!(code(&bottom_up), "E149");
}

#[test]
fn calls_say_the_types_of_what_they_pass() {
    let text = |types: &str| {
        let call = format!("%0 = call @f0(%a) : ({types}) -> tensor<f32>");
        chain(1, |_| call.clone())
    };
    assert!(parse(&text("tensor<f32>")).is_ok());
    assert_eq!(code(&text("")), "E146");
    assert_eq!(code(&text("tensor<2xf32>")), "E146");
    assert_eq!(code(&text("tensor<f32>, tensor<f32>")), "E146");
}

#[test]
fn constants_of_one_number_take_no_room() {
    // 64 constants of 2^27 elements each: half a terabyte if they were filled in.
    let constants: String = (0..64)
        .map(|i| {
            let value = if i % 2 == 0 { "1.5" } else { "\"0x0000C03F\"" };
            format!("%c{i} = stablehlo.constant dense<{value}> : tensor<134217728xf32>\n")
        })
        .collect();
    let text = format!(
        "func.func @main() -> tensor<134217728xf32> {{\n{constants}return %c3 : tensor<134217728xf32>\n}}"
    );
    let graph = parse(&text).unwrap();
    let Op::Constant(constant) = &graph.nodes[63].op else { panic!("a constant") };
    assert!(constant.value.is_splat());
    assert_eq!(constant.value.data.pick([0, (1 << 27) - 1].into_iter()), vec![1.5f32; 2].into());
    assert_eq!(parse(&print(&graph)).unwrap(), graph);
}

#[test]
fn groups_of_more_ranks_than_a_mesh_may_have_are_refused() {
    let text = |groups: &str| {
        let properties = format!("replica_groups = dense<{groups}xi64>, {CHANNEL}, use_global_device_ids");
        collective("", "all_reduce", &properties, true, 2)
    };
    assert_eq!(code(&text("0> : tensor<8192x8192")), "E149");
    assert_eq!(code(&text("0> : tensor<2x2")), "E110");
    assert!(parse(&text("[[0, 1]]> : tensor<1x2")).is_ok());
}

#[test]
fn meshes_have_few_axes_and_name_each_device_once() {
    let with = |mesh: &str| format!("sdy.mesh @m = <{mesh}>\nfunc.func @main() {{ return }}");
    let axes = |count: usize| {
        let list: Vec<String> = (0..count).map(|i| format!("\"a{i}\"=1")).collect();
        format!("[{}]", list.join(", "))
    };
    assert!(parse(&with(&axes(256))).is_ok());
    assert_eq!(code(&with(&axes(100_000))), "E149");
    assert!(parse(&with("[\"x\"=2], device_ids=[9, 7]")).is_ok());
    assert_eq!(code(&with("[\"x\"=2], device_ids=[9, 9]")), "E148");
    assert_eq!(code(&with("[\"x\"=3], device_ids=[2, 0, 2]")), "E148");
}

#[test]
fn collectives_and_aliases_declare_the_types_that_follow() {
    let all = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>";
    let global = format!("{all}, {CHANNEL}, use_global_device_ids");
    let gather = format!("all_gather_dim = 0 : i64, {global}");
    let scatter = format!("scatter_dimension = 0 : i64, {global}");
    let exchange = format!(
        "concat_dimension = 0 : i64, split_count = 2 : i64, split_dimension = 0 : i64, {all}, {CHANNEL}"
    );
    let permute = format!("source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>, {CHANNEL}");
    for (name, properties, region, right) in [
        ("all_reduce", &global, true, 2),
        ("all_gather", &gather, false, 4),
        ("reduce_scatter", &scatter, true, 1),
        ("all_to_all", &exchange, false, 2),
        ("collective_permute", &permute, false, 2),
    ] {
        for result in 1..6 {
            let text = collective("", name, properties, region, result);
            match parse(&text) {
                Ok(_) => assert_eq!(result, right, "{name}"),
                Err(error) => assert!(error.code == "E146" && result != right, "{name} {result}: {error}"),
            }
        }
    }
    // Of uneven shards, a rank declares one.
    let with_extents = |result: usize| {
        let text = collective("", "reduce_scatter", &scatter, true, result);
        let text = text.replace("tensor<2xf32>", "tensor<5xf32>");
        text.replace(") : (tensor<5xf32>)", ") {partita.extents = array<i64: 3, 2>} : (tensor<5xf32>)")
    };
    assert!(parse(&with_extents(3)).is_ok(), "{}", parse(&with_extents(3)).unwrap_err());
    assert_eq!(code(&with_extents(4)), "E118");
    let alias = |ty: &str| {
        format!(
            "func.func @main(%a: tensor<2xf32> {{tf.aliasing_output = 0 : i32}}, %b: {ty}) -> {ty} {{ return %b : {ty} }}"
        )
    };
    assert!(parse(&alias("tensor<2xf32>")).is_ok());
    assert_eq!(code(&alias("tensor<3xf32>")), "E156");
    assert_eq!(code(&alias("tensor<2xi32>")), "E156");
}

#[test]
fn types_without_devices_are_read_printed_evaluated_and_refused_by_devices() {
    for &inert in partita_base::InertType::ALL {
        let (name, dtype) = (inert.name(), partita_base::DType::Inert(inert));
        let (elements, one) = match name {
            "complex<f32>" | "complex<f64>" => ("(1.5, -2.0), (0x7FC00000, 0.0)", "(0.0, 1.0)"),
            "i2" => ("-2, 1", "1"),
            "i4" => ("-2, 7", "-3"),
            "ui2" => ("0, 3", "2"),
            "ui4" => ("0, 15", "9"),
            _ => ("1.5, 4.0", "2.0e+00"),
        };
        let value =
            |text: &str| text.trim_matches(['(', ')']).split(',').next().unwrap().parse::<f64>().unwrap();
        let text = format!(
            "func.func @main(%a: tensor<2x{name}>) -> tensor<2x{name}> {{\n%0 = stablehlo.constant dense<[{elements}]> : \
             tensor<2x{name}>\n%1 = stablehlo.constant dense<{one}> : tensor<2x{name}>\n%2 = stablehlo.add %a, %0 : \
             tensor<2x{name}>\n%3 = stablehlo.multiply %2, %1 : tensor<2x{name}>\nreturn %3 : tensor<2x{name}>\n}}"
        );
        let graph = parse(&text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(graph.ty(graph.outputs[0]).dtype, dtype);
        let printed = print(&graph);
        let again = parse(&printed).unwrap();
        assert_eq!(print(&again), printed);
        let input = crate::Literal::splat(graph.ty(graph.inputs[0]), 1.0);
        let found = crate::evaluate(&graph, &[input]).unwrap().remove(0);
        let first = value(elements) + 1.0;
        let expected = crate::Literal::splat(&found.ty.with_shape([1]), first * value(one));
        if dtype.is_complex() {
            // (2.5 - 2i) i
            assert_eq!(found.to_complex()[0], [2.0, 2.5]);
        } else if name != "f8E8M0FNU" {
            assert_eq!(found.to_f64()[0], expected.to_f64()[0], "{name}");
        }
        let error = crate::runnable(&graph).unwrap_err();
        assert!(error.code == "E170" && error.message.contains(name), "{error}");
    }
    let constant = |literal: &str, ty: &str| {
        format!("func.func @main() {{\n%0 = stablehlo.constant dense<{literal}> : tensor<{ty}>\nreturn\n}}")
    };
    for (literal, ty) in [
        ("8", "i4"),
        ("-1", "ui2"),
        ("1.5", "complex<f32>"),
        ("(1.5, 2.5, 3.5)", "complex<f32>"),
        ("(true, 2.5)", "complex<f64>"),
        ("(1.0, 2.0)", "f8E5M2"),
        ("(1.0, 2.0)", "f32"),
    ] {
        assert_eq!(code(&constant(literal, ty)), "E145", "{literal} : {ty}");
    }
    let raw = parse(&constant("\"0x3C\"", "f8E5M2")).unwrap();
    assert!(print(&raw).contains("dense<1.000000e+00> : tensor<f8E5M2>"));
    assert_eq!(code(&constant("\"0x3C3C\"", "complex<f32>")), "E145");
    for ty in ["complex<i32>", "complex", "f8", "i3"] {
        assert_eq!(code(&constant("0", ty)), "E142", "{ty}");
    }
}

#[test]
fn deep_types_and_locations_end_in_words() {
    let repeat = |open: &str, inner: &str, close: &str| {
        format!("{}{inner}{}", open.repeat(100_000), close.repeat(100_000))
    };
    let typed = |ty: &str| scalar_function(&format!("%0 = stablehlo.tanh %x {{a = {ty}}} : tensor<f32>"));
    assert_eq!(code(&typed(&repeat("(", "f32", ") -> f32"))), "E149");
    assert!(parse(&typed(&repeat("tuple<", "f32", ">"))).is_ok(), "what is not looked into may nest");
    let located =
        |location: &str| scalar_function(&format!("%0 = stablehlo.tanh %x : tensor<f32> loc({location})"));
    for location in [
        repeat("callsite(", "\"f\"", " at unknown)"),
        repeat("fused[", "\"f\"", "]"),
        repeat("\"a\"(", "\"f\":1:2", ")"),
    ] {
        assert!(parse(&located(&location)).is_ok(), "{}", &location[..30]);
    }
    let aliases: String = (0..1000).map(|i| format!("#l{i} = loc(\"n\"(#l{}))\n", (i + 1) % 1000)).collect();
    assert!(parse(&format!("{}\n{aliases}", located("#l0"))).is_ok());
    assert_eq!(code(&scalar_function(&repeat("%0 = \"a.b\"() ({\n", "", "}) : () -> ()\n"))), "E149");
    let huge = |literal: &str| format!("func.func @main() {{\n%0 = stablehlo.constant {literal}\nreturn\n}}");
    assert_eq!(code(&huge("dense<1> : tensor<134217729xi8>")), "E149");
    assert_eq!(code(&huge("dense<1> : tensor<281474976710657xi8>")), "E142");
    assert_eq!(code(&huge("dense<1> : tensor<99999999999999999999999xi8>")), "E142");
    assert_eq!(code(&huge(&format!("dense<{}> : tensor<1xi8>", repeat("[", "1", "]")))), "E149");
}

#[test]
fn sharding_groups_are_joined_and_printed_again() {
    let with = |groups: &str| {
        format!(
            "func.func @main(%a: tensor<2xf32>, %b: tensor<3xf32>) -> tensor<2xf32> {{\n%0 = stablehlo.tanh %a : \
             tensor<2xf32>\n%1 = stablehlo.sine %0 : tensor<2xf32>\n{groups}\nreturn %1 : tensor<2xf32>\n}}"
        )
    };
    let group = |value: &str, id: u64| format!("sdy.sharding_group {value} group_id={id} : tensor<2xf32>\n");
    let graph =
        parse(&with(&[("%a", 9), ("%0", 7), ("%0", 9), ("%1", 8)].map(|(v, g)| group(v, g)).concat()))
            .unwrap();
    let of = |graph: &Graph| graph.values.iter().map(|value| value.group).collect::<Vec<_>>();
    assert_eq!(of(&graph), [Some(7), None, Some(7), Some(8)]);
    let printed = print(&graph);
    assert!(printed.contains("sdy.sharding_group %arg0 group_id=7 : tensor<2xf32>"), "{printed}");
    assert_eq!(of(&parse(&printed).unwrap()), of(&graph));
    let generic = "\"sdy.sharding_group\"(%1) <{group_id = 5 : i64}> : (tensor<2xf32>) -> ()";
    assert_eq!(of(&parse(&with(generic)).unwrap())[3], Some(5));
    let other = "sdy.sharding_group %b group_id=1 : tensor<3xf32>";
    assert_eq!(code(&with(&(group("%a", 1) + other))), "E148");
    assert_eq!(code(&with("sdy.sharding_group %a group_id=-1 : tensor<2xf32>")), "E147");
}

#[test]
fn layouts_on_one_device_have_no_dimensions_and_fix_the_number_of_the_rank() {
    let text = "module { sdy.mesh @m = <[\"x\"=4]>\nsdy.mesh @one = <[], device_ids=[3]>\nfunc.func @main() -> tensor<2xui32> {\n\
                %0 = stablehlo.partition_id : tensor<ui32>\n%1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<ui32>) -> \
                tensor<2xui32>\n%2 = stablehlo.add %1, %1 {sdy.sharding = \
                #sdy.sharding_per_value<[#sdy.sharding<@one, []>]>} : tensor<2xui32>\nreturn %2 : tensor<2xui32>\n} }";
    let graph = parse(text).unwrap();
    let result = graph.value(graph.outputs[0]);
    assert_eq!(result.annotation.as_ref().unwrap().sharding.dims.len(), 1);
    assert_eq!(crate::evaluate(&graph, &[]).unwrap()[0].to_f64(), [6.0, 6.0]);
    let printed = print(&graph);
    assert!(printed.contains("<@one, []>"), "{printed}");
    assert_eq!(crate::evaluate(&parse(&printed).unwrap(), &[]).unwrap()[0].to_f64(), [6.0, 6.0]);
}
