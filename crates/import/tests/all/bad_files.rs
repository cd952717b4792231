//! Files that must be refused, each by name: damaged and hostile archives, other formats, weights
//! that do not fit, programs that cannot be imported.

use crate::common::{Entry, zip, zip64};
use partita_base::Diagnostic;
use partita_import::{ImportOptions, ImportedModel, Limits, Pt2, Source, Weights};
use serde_json::{Value, json};

fn read(bytes: Vec<u8>) -> Result<Pt2, Box<Diagnostic>> {
    Pt2::read(bytes.into(), None, &Limits::default())
}

/// The error of a file: its code, and the words that must be in it.
fn refused(bytes: Vec<u8>, code: &str, words: &[&str]) {
    let error = read(bytes).expect_err(&format!("{code} {words:?}"));
    assert_eq!(error.code, code, "{error}");
    let text = error.to_string();
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} in {text}"));
}

/// The type of a tensor as the schema has it.
fn meta(sizes: &[i64], strides: &[i64]) -> Value {
    let ints = |list: &[i64]| -> Vec<Value> { list.iter().map(|i| json!({ "as_int": i })).collect() };
    json!({"dtype": 7, "sizes": ints(sizes), "strides": ints(strides), "storage_offset": {"as_int": 0},
           "requires_grad": true, "layout": 7})
}

fn tensor(name: &str) -> Value {
    json!({ "as_tensor": { "name": name } })
}

/// A node `target(self = x, arguments..) -> y`.
fn node(target: &str, arguments: &[(&str, Value)]) -> Value {
    let mut inputs = vec![json!({"name": "self", "arg": tensor("x"), "kind": 1})];
    inputs.extend(arguments.iter().map(|(name, arg)| json!({"name": name, "arg": arg, "kind": 1})));
    let stack = "L__self__,,m.Net;L__self__a,h.0.attn,m.Attention";
    json!({"target": target, "inputs": inputs, "outputs": [tensor("y")],
           "metadata": {"nn_module_stack": stack, "stack_trace": "File \"net.py\", line 12, in forward"}})
}

/// A node `_c10d_functional.OP(input, arguments..) -> y`.
fn collective(op: &str, input: &str, arguments: &[(&str, Value)]) -> Value {
    let mut inputs = vec![json!({"name": "input", "arg": tensor(input), "kind": 1})];
    inputs.extend(arguments.iter().map(|(name, arg)| json!({"name": name, "arg": arg, "kind": 1})));
    json!({"target": format!("torch.ops._c10d_functional.{op}.default"), "inputs": inputs, "outputs": [tensor("y")],
           "metadata": {}})
}

/// A program of one input `x` [2, 3], a parameter `w` [2, 3] and one node.
fn program(node: Value, result: &[i64]) -> Value {
    let nodes = if node.is_array() { node } else { json!([node]) };
    json!({"schema_version": {"major": 8, "minor": 14}, "graph_module": {
        "graph": {"inputs": [tensor("x"), tensor("p_w")], "outputs": [tensor("y")], "nodes": nodes,
                  "tensor_values": {"x": meta(&[2, 3], &[3, 1]), "p_w": meta(&[2, 3], &[3, 1]), "y": meta(result, &[])}},
        "signature": {"input_specs": [{"parameter": {"arg": {"name": "p_w"}, "parameter_name": "w"}},
                                      {"user_input": {"arg": tensor("x")}}],
                      "output_specs": [{"user_output": {"arg": tensor("y")}}]}}})
}

fn weights(meta: Value) -> Value {
    json!({"config": {"w": {"path_name": "weight_0", "is_param": true, "use_pickle": false, "tensor_meta": meta}}})
}

/// The entries of a file with this program and this table; 24 bytes of weights.
fn entries(program: &Value, weights: &Value) -> Vec<Entry> {
    vec![
        Entry::new("m/data/weights/weight_0", vec![0u8; 24]),
        Entry::new("m/data/weights/model_weights_config.json", weights.to_string()),
        Entry::new("m/models/model.json", program.to_string()),
        Entry::new("m/byteorder", "little"),
    ]
}

fn relu() -> Value {
    program(node("torch.ops.aten.relu.default", &[]), &[2, 3])
}

fn good() -> Vec<Entry> {
    entries(&relu(), &weights(meta(&[2, 3], &[3, 1])))
}

fn import(program: &Value) -> Result<ImportedModel, Box<Diagnostic>> {
    let file = read(zip(&entries(program, &weights(meta(&[2, 3], &[3, 1]))))).expect("a file");
    file.import(&ImportOptions::default())
}

fn not_imported(program: &Value, code: &str, words: &[&str]) {
    let error = import(program).expect_err(&format!("{code} {words:?}"));
    assert_eq!(error.code, code, "{error}");
    let text = error.to_string();
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} in {text}"));
}

#[test]
fn the_file_that_the_others_are_made_of_is_good() {
    let model = read(zip(&good())).unwrap().import(&ImportOptions::default()).unwrap();
    assert_eq!(model.inputs.keys().collect::<Vec<_>>(), ["x"]);
    assert_eq!(model.outputs, ["output.0"]);
    assert_eq!(model.model.forward.nodes.last().unwrap().path, "h.0.attn");
    assert_eq!(model.model.forward.nodes[0].location.as_ref().unwrap().to_string(), "net.py:12");
    assert_eq!(model.model.modules.get("h.0.attn").unwrap(), "Attention");
}

#[test]
fn damaged_and_hostile_archives_are_refused() {
    refused(vec![], "E351", &["an empty file"]);
    refused(b"PK".to_vec(), "E351", &["a few bytes"]);
    refused(b"hello, world".to_vec(), "E351", &["other bytes"]);
    let whole = zip(&good());
    refused(whole[..whole.len() - 9].to_vec(), "E351", &["end of a central directory"]);
    let changed = |change: &dyn Fn(&mut Vec<Entry>)| {
        let mut entries = good();
        change(&mut entries);
        zip(&entries)
    };
    for name in ["../outside", "/etc/outside", "m\\outside", "m/../../outside", "C:outside", "m/\0"] {
        refused(changed(&|e| e.push(Entry::new(name, "x"))), "E351", &["could name a file outside"]);
    }
    refused(
        changed(&|e| e.push(Entry::new("m/byteorder", "x"))),
        "E351",
        &["two entries named `m/byteorder`"],
    );
    // A bomb: a few bytes that claim to become a terabyte.
    refused(
        changed(&|e| (e[0].method, e[0].size) = (8, u32::MAX - 1)),
        "E351",
        &["`m/data/weights/weight_0` is compressed"],
    );
    refused(changed(&|e| e[0].flags = 1), "E351", &["is encrypted"]);
    refused(changed(&|e| (e[0].size, e[0].stored) = (1 << 30, 1 << 30)), "E351", &["data outside the file"]);
    refused(changed(&|e| (e[0].size, e[0].stored) = (90, 90)), "E351", &["overlap"]);
    refused(changed(&|e| e[1].moved = 3), "E351", &["has no header"]);
    refused(changed(&|e| e[3].moved = 1 << 20), "E351", &["outside the file"]);
    // The number of entries, without the last of which there would be no table of weights.
    let mut fewer = whole.clone();
    let count = whole.len() - 22 + 10;
    fewer[count] -= 1;
    refused(fewer, "E351", &["more entries than it says"]);
    let one = Limits { entries: 1, ..Limits::default() };
    assert_eq!(Pt2::read(whole.into(), None, &one).unwrap_err().code, "E358");
    let small = Limits { json_bytes: 10, ..Limits::default() };
    assert_eq!(Pt2::read(zip(&good()).into(), None, &small).unwrap_err().code, "E358");
}

#[test]
fn large_archives_are_read_and_checked() {
    let whole = zip64(&good());
    let file = read(whole.clone()).unwrap();
    assert_eq!(file.tensors().map(|(name, _)| name).collect::<Vec<_>>(), ["w"]);
    // The 64-bit record, its locator, and the sizes of the first entry.
    let record = whole.len() - 22 - 20 - 56;
    let first = whole.windows(4).position(|four| four == [0x50, 0x4B, 1, 2]).unwrap();
    for (at, words) in [
        (record, "no ZIP64 end of the central directory"),
        (record + 46, "a central directory beyond the end"),
        (record + 56, "no ZIP64 locator"),
        (record + 56 + 14, "in the middle of a field"),
        (first + 46 + "m/data/weights/weight_0".len() + 10, "is compressed"),
        (first + 46 + "m/data/weights/weight_0".len() + 26 + 7, "outside the file"),
    ] {
        let mut changed = whole.clone();
        changed[at] = if changed[at] == 0x7F { 0x3F } else { 0x7F };
        refused(changed, "E351", &[words]);
    }
}

#[test]
fn other_formats_and_pickles_are_refused_by_name() {
    refused(vec![0x80, 2, b'}', b'.'], "E352", &["a pickle", "torch.export.save"]);
    let only = |name: &str| zip(&[Entry::new(name, "x")]);
    refused(only("serialized_exported_program.json"), "E352", &["torch 2.8 or older"]);
    refused(only("archive/data.pkl"), "E352", &["a checkpoint of `torch.save`"]);
    refused(only("m/data/aotinductor/model/a.so"), "E352", &["AOTInductor"]);
    refused(only("x.npy"), "E352", &["NumPy"]);
    let mut pickled = good();
    pickled[1] = Entry::new("m/data/weights/model.pt", "x");
    refused(zip(&pickled), "E352", &["`m/data/weights/model.pt` is a pickle"]);
    let table = json!({"config": {"w": {"path_name": "weight_0", "is_param": true, "use_pickle": true}}});
    refused(zip(&entries(&relu(), &table)), "E352", &["pickle", "the values of `w`"]);
    let mut big = good();
    big[3] = Entry::new("m/byteorder", "big");
    refused(zip(&big), "E352", &["big-endian"]);
    let mut two = good();
    two.push(Entry::new("m/models/first.json", "{}"));
    two[2].name = "m/models/second.json".into();
    refused(zip(&two), "E352", &["several programs", "first, second"]);
    let bytes = Source::from(zip(&two));
    assert!(
        Pt2::read(bytes.clone(), Some("secnd"), &Limits::default())
            .unwrap_err()
            .to_string()
            .contains("second")
    );
}

#[test]
fn graphs_that_cannot_be_read_are_refused() {
    let graph = |text: String| {
        let mut entries = good();
        entries[2] = Entry::new("m/models/model.json", text);
        zip(&entries)
    };
    refused(graph("{".into()), "E353", &["EOF"]);
    let nested = r#"{"inputs":[],"outputs":[],"nodes":[{"target":"t","inputs":[{"name":"","arg":{"as_graph":{"graph":"#;
    let deep = nested.repeat(10_000);
    let head = r#"{"schema_version":{"major":8,"minor":14},"graph_module":{"graph":"#;
    refused(graph(format!("{head}{deep}")), "E353", &["EOF"]);
    let close = r#"{"inputs":[],"outputs":[],"nodes":[],"tensor_values":{}}"#;
    let ends = r#"}}}],"outputs":[]}],"tensor_values":{}}"#.repeat(10_000);
    let tail = r#","signature":{"input_specs":[],"output_specs":[]}}}"#;
    refused(graph(format!("{head}{deep}{close}{ends}{tail}")), "E353", &["recursion limit"]);
    let mut old = relu();
    old["schema_version"]["major"] = json!(7);
    refused(graph(old.to_string()), "E353", &["schema version 7.14"]);
    let mut newer = relu();
    newer["schema_version"]["minor"] = json!(99);
    let model = read(graph(newer.to_string())).unwrap().import(&ImportOptions::default()).unwrap();
    assert!(model.notes[0].contains("8.99"));
    let mut half = relu();
    half["graph_module"]["graph"]["nodes"][0]["outputs"] = json!([{"as_tensor": {"name": "y"}, "as_int": 3}]);
    refused(graph(half.to_string()), "E353", &["`as_int` and `as_tensor`"]);
}

#[test]
fn weights_that_do_not_fit_are_refused() {
    let table = |meta: Value| zip(&entries(&relu(), &weights(meta)));
    refused(table(meta(&[2, 4], &[4, 1])), "E354", &["`w`", "24 bytes"]);
    refused(table(meta(&[2, 3], &[30, 1])), "E354", &["strides [30, 1]"]);
    refused(table(meta(&[-2, 3], &[3, 1])), "E354", &["at least 0"]);
    refused(table(meta(&[2, 3], &[3])), "E354", &["2 strides"]);
    refused(table(meta(&[i64::MAX, i64::MAX], &[0, 0])), "E358", &["`w` is too large"]);
    let mut complex = meta(&[2, 3], &[3, 1]);
    complex["dtype"] = json!(9);
    refused(table(complex), "E354", &["complex"]);
    let mut missing = good();
    missing.remove(0);
    refused(zip(&missing), "E354", &["`m/data/weights/weight_0`"]);
    // Two names of one view are one tensor; views that share a part are not.
    let mut shared = weights(meta(&[2, 3], &[3, 1]));
    shared["config"]["v"] = shared["config"]["w"].clone();
    assert!(read(zip(&entries(&relu(), &shared))).is_ok());
    shared["config"]["v"]["tensor_meta"] = meta(&[4], &[1]);
    refused(zip(&entries(&relu(), &shared)), "E354", &["`v` and `w` share some of their values"]);
    not_imported_type();
}

fn not_imported_type() {
    let file = read(zip(&entries(&relu(), &weights(meta(&[3, 2], &[2, 1]))))).unwrap();
    assert_eq!(file.import(&ImportOptions::default()).unwrap_err().code, "E354");
}

#[test]
fn unknown_ops_are_refused_all_at_once() {
    let mut program = relu();
    let nodes = [
        node("torch.ops.aten.fft_hfft.default", &[]),
        node("torch.ops.mine.op.default", &[]),
        node("torch.ops.mine.op.default", &[]),
    ];
    program["graph_module"]["graph"]["nodes"] = json!(nodes);
    let words = [
        "2 ops that cannot be imported",
        "`aten.fft_hfft.default` is called once, first in h.0.attn at net.py:12",
        "`mine.op.default` is called 2 times",
        "`table = torch.export.default_decompositions(); program = program.run_decompositions({op: table[op] for op in \
         (torch.ops.aten.fft_hfft.default, torch.ops.mine.op.default,) if op in table})`",
    ];
    not_imported(&program, "E355", &words);
}

#[test]
fn arguments_without_a_counterpart_are_refused() {
    let with =
        |target: &str, arguments: &[(&str, Value)], result: &[i64]| program(node(target, arguments), result);
    let int = |value: i64| json!({ "as_int": value });
    let ints = |values: &[i64]| json!({ "as_ints": values });
    for (target, arguments, words) in [
        ("aten.transpose.int", vec![("dim0", int(5)), ("dim1", int(0))], "a dimension from -2 to 1"),
        ("aten.select.int", vec![("dim", int(0)), ("index", int(2))], "an index of a dimension of 2"),
        ("aten.view.default", vec![("size", ints(&[-1, -1]))], "a shape of 6 elements"),
        ("aten.view.default", vec![("size", ints(&[4, 2]))], "a shape of 6 elements"),
        ("aten.expand.default", vec![("size", ints(&[3, 3]))], "broadcasts to"),
        ("aten.slice.Tensor", vec![("step", int(0))], "a step of at least 1"),
        ("aten.permute.default", vec![("dims", ints(&[0, 0]))], "different dimensions"),
        ("aten.add.Tensor", vec![], "a number as argument `other`"),
        ("aten.add.Tensor", vec![("other", json!({"as_new_kind": 3}))], "as_new_kind"),
        ("aten.sum.dim_IntList", vec![("dim", json!({"as_string": "x"}))], "integers as argument `dim`"),
        (
            "aten.pad.default",
            vec![("pad", ints(&[1, 1])), ("mode", json!({"as_string": "reflect"}))],
            "reflect",
        ),
    ] {
        let target = format!("torch.ops.{target}");
        not_imported(&with(&target, &arguments, &[2, 3]), "E356", &[words, "h.0.attn at net.py:12"]);
    }
    let change = json!({"target": "torch.ops.aten.add_.Tensor", "outputs": [tensor("y")],
        "inputs": [{"name": "self", "arg": tensor("p_w")}, {"name": "other", "arg": int(1)}]});
    not_imported(&program(change, &[2, 3]), "E356", &["changes its parameter `w`"]);
}

#[test]
fn graphs_that_contradict_themselves_are_refused() {
    not_imported(
        &program(node("torch.ops.aten.relu.default", &[]), &[3, 2]),
        "E357",
        &["f32 [3, 2] for `y`"],
    );
    let later = json!({"target": "torch.ops.aten.relu.default", "outputs": [tensor("y")],
        "inputs": [{"name": "self", "arg": tensor("later")}]});
    not_imported(&program(later, &[2, 3]), "E357", &["`later` is used before it is defined"]);
    let mut twice = relu();
    let specs = &mut twice["graph_module"]["signature"]["input_specs"];
    specs[1] = specs[0].clone();
    not_imported(&twice, "E357", &["`w` is an input twice"]);
}

#[test]
fn results_beyond_the_limits_are_refused() {
    let huge = json!({ "as_ints": [1i64 << 40, 1i64 << 40] });
    let ones = node("torch.ops.aten.new_ones.default", &[("size", huge.clone())]);
    not_imported(&program(ones, &[2, 3]), "E358", &["`aten.new_ones.default`"]);
    let repeated =
        node("torch.ops.aten.repeat.default", &[("repeats", json!({ "as_ints": [1 << 20, 1 << 20] }))]);
    not_imported(&program(repeated, &[2, 3]), "E358", &["`aten.repeat.default`"]);
    let expanded =
        node("torch.ops.aten.expand.default", &[("size", json!({ "as_ints": [1i64 << 50, 2, 3] }))]);
    not_imported(&program(expanded, &[2, 3]), "E358", &["`aten.expand.default`"]);
    let file = read(zip(&good())).unwrap();
    let limits = Limits { nodes: 0, ..Limits::default() };
    assert_eq!(file.import(&ImportOptions { limits, ..Default::default() }).unwrap_err().code, "E358");
}

#[test]
fn a_loss_must_exist_and_be_a_float_scalar() {
    let sum = program(node("torch.ops.aten.sum.default", &[]), &[]);
    let file = read(zip(&entries(&sum, &weights(meta(&[2, 3], &[3, 1]))))).unwrap();
    let with = |loss: &str| file.import(&ImportOptions { loss: Some(loss.into()), ..Default::default() });
    let model = with("output.0").unwrap();
    assert_eq!((model.loss.as_deref(), &model.outputs[..]), (Some("output.0"), &["loss".to_string()][..]));
    assert_eq!(with("output.1").unwrap_err().code, "E360");
    let file = read(zip(&good())).unwrap();
    let error =
        file.import(&ImportOptions { loss: Some("output.0".into()), ..Default::default() }).unwrap_err();
    assert_eq!(error.code, "E360");
    assert!(error.to_string().contains("tensor<2x3xf32>"), "{error}");
    assert_eq!(file.import(&ImportOptions::default()).unwrap().loss, None);
}

#[test]
fn symbolic_sizes_are_checked() {
    let mut dynamic = relu();
    let batch =
        json!({"as_expr": {"expr_str": "Symbol('s0', positive=True, integer=True)", "hint": {"as_int": 2}}});
    for name in ["x", "y"] {
        dynamic["graph_module"]["graph"]["tensor_values"][name]["sizes"][0] = batch.clone();
    }
    dynamic["range_constraints"] = json!({"s0": {"min_val": 2, "max_val": 8}});
    let file = read(zip(&entries(&dynamic, &weights(meta(&[2, 3], &[3, 1]))))).unwrap();
    let symbols = file.symbols().unwrap();
    assert_eq!((symbols.len(), symbols[0].name.as_str(), symbols[0].example), (1, "s0", Some(2)));
    let batch = |batch| file.import(&ImportOptions { batch: Some(batch), ..Default::default() });
    assert_eq!(batch(5).unwrap().inputs["x"].shape, [5, 3]);
    assert_eq!(batch(9).unwrap_err().code, "E359");
    let sizes = [("s1".to_string(), 4)].into();
    assert_eq!(file.import(&ImportOptions { sizes, ..Default::default() }).unwrap_err().code, "E359");
    let fixed = read(zip(&good())).unwrap();
    assert_eq!(
        fixed.import(&ImportOptions { batch: Some(3), ..Default::default() }).unwrap_err().code,
        "E359"
    );
}

#[test]
fn numbers_of_shapes_are_computed_and_checked() {
    // y = relu(x) if the checks on the size of x hold; the checks themselves become nothing.
    let named = |name: &str| json!({ "as_sym_int": { "as_name": name } });
    let mut nodes = vec![json!({"target": "torch.ops.aten.sym_size.int", "outputs": [named("n")],
        "inputs": [{"name": "self", "arg": tensor("x")}, {"name": "dim", "arg": {"as_int": 0}}]})];
    for (at, op) in ["eq", "ne", "lt", "le", "gt", "ge"].iter().enumerate() {
        let test = json!({ "as_sym_bool": { "as_name": format!("t{at}") } });
        nodes.push(json!({"target": format!("_operator.{op}"), "outputs": [test.clone()],
            "inputs": [{"name": "a", "arg": named("n")}, {"name": "b", "arg": {"as_int": 2}}]}));
        nodes.push(json!({"target": "torch.ops.aten._assert_scalar.default", "outputs": [],
            "inputs": [{"name": "self", "arg": test}, {"name": "assert_msg", "arg": {"as_string": ""}}]}));
    }
    nodes.push(node("torch.ops.aten.relu.default", &[]));
    let model = import(&program(json!(nodes), &[2, 3])).unwrap();
    let alone = import(&relu()).unwrap();
    assert_eq!(model.model.forward.nodes.len(), alone.model.forward.nodes.len());
}

/// A safetensors file of this header and so many bytes.
fn safetensors(header: &str, bytes: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(vec![0u8; bytes]);
    file
}

#[test]
fn damaged_safetensors_are_refused() {
    let read = |bytes: Vec<u8>| Weights::read(bytes.into(), &Limits::default());
    let one = |dtype: &str, shape: &str, from: usize, to: usize| {
        format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}}}"#)
    };
    let names = |weights: Weights| weights.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(read(safetensors(&one("F32", "[2]", 0, 8), 8)).unwrap()), ["w"]);
    for (file, code) in [
        (Vec::new(), "E361"),
        (vec![0x80, 4, 1, 2, 3, 4, 5, 6], "E352"),
        (zip(&[Entry::new("archive/data.pkl", "x")]), "E352"),
        (safetensors(&one("F32", "[2]", 0, 8), 4), "E361"),
        (safetensors(&one("F32", "[3]", 0, 8), 8), "E361"),
        (safetensors(&one("F32", "[4294967296, 4294967296, 4294967296]", 0, 8), 8), "E361"),
        (safetensors(&one("F8_E4M3", "[8]", 0, 8), 8), "E354"),
        (safetensors(&one("F32", "[2]", 8, 0), 8), "E361"),
        (safetensors("{", 0), "E361"),
        (u64::MAX.to_le_bytes().to_vec(), "E361"),
        // Two tensors of the same bytes.
        (
            safetensors(
                r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#,
                3,
            ),
            "E361",
        ),
    ] {
        assert_eq!(read(file).expect_err(code).code, code);
    }
}

#[test]
fn an_index_names_files_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("model.safetensors.index.json");
    for (shard, code) in
        [("../a.safetensors", "E361"), ("/a.safetensors", "E361"), ("missing.safetensors", "E350")]
    {
        std::fs::write(&index, json!({"weight_map": {"w": shard}}).to_string()).unwrap();
        assert_eq!(Weights::open(folder.path(), &Limits::default()).unwrap_err().code, code, "{shard}");
    }
    let header = r#"{"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
    std::fs::write(folder.path().join("a.safetensors"), safetensors(header, 2)).unwrap();
    std::fs::write(&index, json!({"weight_map": {"w": "a.safetensors"}}).to_string()).unwrap();
    assert!(
        Weights::open(folder.path(), &Limits::default())
            .unwrap_err()
            .to_string()
            .contains("`w` in `a.safetensors`")
    );
    std::fs::write(&index, json!({"weight_map": {"v": "a.safetensors"}}).to_string()).unwrap();
    let weights = Weights::open(folder.path(), &Limits::default()).unwrap();
    assert_eq!(weights.get("v").unwrap().literal().unwrap().to_f64(), [0.0, 0.0]);
    assert_eq!(Weights::open(&folder.path().join("none"), &Limits::default()).unwrap_err().code, "E350");
}

#[test]
fn collectives_without_a_meaning_for_all_ranks_are_refused() {
    let text = |text: &str| json!({ "as_string": text });
    let of_group =
        |group: &str, size: i64| [("group_size", json!({ "as_int": size })), ("group_name", text(group))];
    let refused = |nodes: Value, rows: i64, ranks: Option<usize>, code: &str, word: &str| {
        let file =
            read(zip(&entries(&program(nodes, &[rows, 3]), &weights(meta(&[2, 3], &[3, 1]))))).unwrap();
        let error = file.import(&ImportOptions { ranks, ..ImportOptions::default() }).unwrap_err();
        assert!(error.code == code && error.to_string().contains(word), "{code} {word}: {error}");
    };
    let sum = collective("all_reduce", "x", &[("reduce_op", text("sum")), ("group_name", text("0"))]);
    refused(sum.clone(), 2, None, "E356", "model.ranks=2");
    refused(sum.clone(), 2, Some(0), "E358", "ranks");
    let gather = |input: &str, size| collective("all_gather_into_tensor", input, &of_group("0", size));
    refused(gather("x", 2), 4, Some(3), "E356", "[2, 3]");
    refused(gather("x", -1), 4, None, "E358", "ranks");
    // Another rank may have another shard of it.
    refused(gather("p_w", 2), 4, None, "E356", "a parameter or a constant");
    let other = collective("all_gather_into_tensor", "x", &of_group("1", 2));
    refused(json!([sum, other]), 4, None, "E356", "0, 1");
    refused(collective("reduce_scatter_tensor", "x", &of_group("0", 4)), 1, None, "E356", "4 ranks divide");
    let to_rank_2 = [("src", json!({ "as_int": 2 })), ("group_name", text("0"))];
    refused(collective("broadcast", "x", &to_rank_2), 2, Some(2), "E356", "`src`");
    let xor = collective("all_reduce", "x", &[("reduce_op", text("bxor")), ("group_name", text("0"))]);
    refused(xor, 2, Some(2), "E356", "bxor");
    refused(node("torch.ops.aten.relu.default", &[]), 2, Some(2), "E356", "no collectives");
    refused(node("torch.ops.aten._scaled_grouped_mm.default", &[]), 2, None, "E355", "_scaled_grouped_mm");
}
