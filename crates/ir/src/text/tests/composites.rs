//! Composites and calls in text.

use super::*;

#[test]
fn composites_come_back_with_their_decompositions() {
    let mut builder = GraphBuilder::new("main");
    let x = builder.input("x", TensorType::new(DType::F32, [2, 4]), Role::Input);
    let registry = Registry::default();
    let mut outputs = Vec::new();
    let template = registry.template("partita.softmax").expect("a template");
    let attributes: Attributes = [("dim".to_string(), crate::Attribute::Int(1))].into_iter().collect();
    let composite = Composite::new(template, attributes, &[builder.ty(x).clone()]).unwrap();
    let again = composite.clone();
    let y = builder.push1(composite, &[x]).unwrap();
    outputs.push(builder.push1(again, &[y]).unwrap());
    let mut own = GraphBuilder::new("double");
    let a = own.input("a", TensorType::scalar(DType::F32), Role::Activation);
    let b = own.add(a, a).unwrap();
    let definition = crate::CompositeDefinition {
        name: "user.double".into(),
        decomposition: own.finish(vec![b]),
        origin: crate::composite::Origin::Outlined,
    };
    let attributes: Attributes = [
        ("int", crate::Attribute::Int(-3)),
        ("float", crate::Attribute::Float(0.1)),
        ("infinite", crate::Attribute::Float(f64::NEG_INFINITY)),
        ("flag", crate::Attribute::Bool(true)),
        ("text", crate::Attribute::Text("a \"b\"\n".into())),
        ("ints", crate::Attribute::Ints(vec![1, -2])),
        ("none", crate::Attribute::Ints(Vec::new())),
        ("type", crate::Attribute::DType(DType::U16)),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_string(), v))
    .collect();
    let scalar = builder.scalar(DType::F32, 1.0);
    outputs.push(builder.push1(Composite { attributes, definition: definition.into() }, &[scalar]).unwrap());
    let graph = builder.finish(outputs);
    let text = round_trip(&graph);
    // Two applications, one function.
    assert_eq!(text.matches("func.func private").count(), 2, "{text}");
    assert!(text.contains("stablehlo.composite \"user.double\" %"), "{text}");
    // Without the template, the composite is an ordinary subgraph.
    let bare = parse_with(&text, "x", &Registry::empty()).unwrap();
    let Op::Composite(first) = &bare.nodes[0].op else { panic!("a composite") };
    assert_eq!(first.definition.origin, crate::composite::Origin::Outlined);
}

#[test]
fn a_gradient_composite_knows_what_it_is_the_gradient_of() {
    let ty = TensorType::new(DType::F32, [2, 4]);
    let registry = Registry::default();
    let template = registry.template("partita.softmax").expect("a template");
    let attributes: Attributes = [("dim".to_string(), crate::Attribute::Int(1))].into_iter().collect();
    let base = Composite::new(template, attributes.clone(), std::slice::from_ref(&ty)).unwrap().definition;
    let first = std::sync::Arc::new(base.vjp(&attributes, &[0], &[0]).unwrap());
    let mut builder = GraphBuilder::new("main");
    let x = builder.input("x", ty.clone(), Role::Input);
    let y = builder.push1(Composite { attributes, definition: first }, &[x, x]).unwrap();
    round_trip(&builder.finish(vec![y]));
}

#[test]
fn a_reduction_from_another_start_keeps_its_meaning() {
    let text = "func.func @main(%x: tensor<2x3xf32>, %s: tensor<f32>) -> (tensor<2xf32>, tensor<f32>, tensor<2xf32>) {
        %c = stablehlo.constant dense<5.0> : tensor<f32>
        %zero = stablehlo.constant dense<-0.0> : tensor<f32>
        %0 = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
        %1 = stablehlo.reduce(%x init: %s) applies stablehlo.maximum across dimensions = [0, 1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<f32>
        %2 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
        return %0, %1, %2 : tensor<2xf32>, tensor<f32>, tensor<2xf32>
    }";
    let graph = parse(text).unwrap();
    for node in graph.nodes.iter().filter(|n| matches!(n.op, Op::Reduce(_))) {
        let (start, _) = graph.value(node.operands[1]).definition.expect("a constant");
        let Op::Constant(start) = &graph.node(start).op else { panic!("a constant") };
        assert!([0.0, f64::NEG_INFINITY].contains(&start.value.to_f64()[0]));
    }
    let x = Literal::new([2, 3], vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let results = crate::evaluate(&graph, &[x, Literal::scalar(DType::F32, 9.0)]).unwrap();
    let values: Vec<Vec<f64>> = results.iter().map(Literal::to_f64).collect();
    assert_eq!(values, [vec![11.0, 20.0], vec![9.0], vec![6.0, 15.0]]);
}

#[test]
fn calls_are_inlined_with_their_origin_and_regions_bring_in_what_they_use() {
    let text = r#"
#loc1 = loc("model.py":7:4 to :9)
module @m attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<f32> {jax.buffer_donor = true} loc("x"), %arg1: tensor<f32>) -> (tensor<f32> {jax.result_info = ""}) {
    %c = stablehlo.constant dense<1> : tensor<i32>
    %0:2 = call @twice(%arg0) : (tensor<f32>) -> (tensor<f32>, tensor<f32>) loc(#loc2)
    %1 = stablehlo.while(%i = %c) : tensor<i32>
     cond {
      %9 = stablehlo.compare LT, %i, %c : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %9 : tensor<i1>
    } do {
      %9 = func.call @twice(%arg1) : (tensor<f32>) -> (tensor<f32>, tensor<f32>)
      stablehlo.return %i : tensor<i32>
    } loc("jit(f)/transpose(jvp(loops))/while")
    return %0#1 : tensor<f32>
  } loc(#loc)
  func.func private @twice(%a: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
    %0 = stablehlo.add %a, %a : tensor<f32> loc("jit(f)/jit(main)/layers_0/mlp/add"(#loc1))
    %1 = stablehlo.multiply %a, %0 : tensor<f32>
    return %0, %1 : tensor<f32>, tensor<f32>
  }
}
#loc = loc(unknown)
#loc2 = loc(callsite("g/call"("caller.py":3:1) at #loc1))
"#;
    let bad = parse(text).unwrap_err();
    assert!(bad.message.contains("a wrong number of results"), "{bad}");
    let graph = parse(&text.replace("%9 = func.call", "%9:2 = func.call")).unwrap();
    let add = &graph.nodes[1];
    assert_eq!(
        (add.path.as_str(), add.location.clone().unwrap().to_string()),
        ("layers_0.mlp", "model.py:7".into())
    );
    assert_eq!((graph.value(graph.inputs[0]).name.as_str(), graph.nodes[3].path.as_str()), ("x", "loops"));
    let multiply = &graph.nodes[2];
    assert_eq!(
        (multiply.path.as_str(), multiply.location.clone().unwrap().to_string()),
        ("g", "caller.py:3".into())
    );
    // The loop carries the captured float; the captured constant is copied into the condition.
    let Op::While(looping) = &graph.nodes[3].op else { panic!("a loop") };
    assert_eq!(graph.nodes[3].operands.len(), 2);
    assert_eq!((looping.condition.inputs.len(), looping.body.outputs.len()), (2, 2));
    assert!(matches!(looping.condition.nodes[0].op, Op::Constant(_)));
    round_trip(&graph);
}
