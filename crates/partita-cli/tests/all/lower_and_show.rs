//! What `lower` and `show` say.

use partita::Session;
use partita_cli::commands::lower::{Stage, stage};
use partita_cli::commands::show::{self, PlanForm};
use partita_cli::output::events::Counts;
use partita_ir::text;
use partita_schedule::Plan;

fn session(mesh: &str, more: &[&str]) -> Session {
    let mut overrides = vec![format!("mesh.shape={mesh}"), "model.layers=1".into(), "model.dropout=0".into()];
    overrides.extend(more.iter().map(|item| item.to_string()));
    Session::load("gpt", &overrides).unwrap_or_else(|error| panic!("{error}"))
}

fn at(session: &Session, of: Stage, rank: usize) -> String {
    stage(session, &session.build().unwrap(), of, rank).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_stage_has_a_text_and_graphs_read_back() {
    let session = session("dp=2,tp=2", &[]);
    for of in [Stage::Global, Stage::Sharded, Stage::Local] {
        let printed = at(&session, of, 3);
        let read = text::parse(&printed).unwrap_or_else(|error| panic!("{of:?}: {error}"));
        assert_eq!(text::print(&read), printed, "{of:?}");
    }
    let (global, sharded) = (at(&session, Stage::Global, 0), at(&session, Stage::Sharded, 0));
    assert!(!global.contains("all_reduce") && at(&session, Stage::Local, 0).contains("stablehlo.all_reduce"));
    let annotated = |text: &str| text.matches("sdy.sharding").count();
    assert!(annotated(&sharded) > 5 * annotated(&global), "every value has a layout");
    let program = at(&session, Stage::Program, 3);
    assert!(program.starts_with("program of rank 3:") && program.contains("start #"), "{program}");
}

#[test]
fn a_layout_names_its_cause() {
    let sharded = at(&session("tp=2", &[]), Stage::Sharded, 0);
    assert!(sharded.contains("layers.*.mlp.up_proj"), "the plan's line");
    assert!(sharded.contains("from layers.0.mlp.up_proj.weight"), "what it spread from");
}

#[test]
fn a_rank_that_is_not_there_is_an_error() {
    let session = session("tp=2", &[]);
    let error = stage(&session, &session.build().unwrap(), Stage::Local, 2).unwrap_err();
    assert_eq!(error.code, "E014");
}

#[test]
fn tokens_have_no_gradient() {
    let error = session("tp=2", &[]).with_input_gradient().build().unwrap_err();
    assert_eq!(error.code, "E013");
}

#[test]
fn counts_have_fixed_names_in_json() {
    let session = session("dp=2,tp=2", &["model.tied=false", "optimizer.clip_grad_norm=0"]);
    let built = session.build().unwrap_or_else(|error| panic!("{error}"));
    let programs = session.lower(&built).unwrap_or_else(|error| panic!("{error}"));
    let json = serde_json::to_value(Counts::of_rank(&programs, 0).unwrap_or_else(|error| panic!("{error}")))
        .expect("it has a JSON form");
    for phase in ["forward", "backward", "update"] {
        for kind in ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute", "send"]
        {
            assert!(json[phase][kind].is_u64() && json["logical"][phase][kind].is_u64(), "{phase} {kind}");
        }
        assert!(json["bytes"][phase].is_u64(), "{phase}");
    }
    assert_eq!(json["forward"]["all_reduce"], 3);
    assert_eq!(json["logical"]["backward"]["all_reduce"], 2 + 21);
}

#[test]
fn show_tells_layouts_plan_and_memory() {
    let text = show::overview(&session("fsdp=2,tp=2", &[])).unwrap_or_else(|error| panic!("{error}"));
    let line = |start: &str| {
        text.lines()
            .find(|line| line.trim_start().starts_with(start))
            .unwrap_or_else(|| panic!("{start}:\n{text}"))
    };
    // The first matrix of a layer is q_proj's: its output over tp, stored in pieces over fsdp.
    let weight =
        text.split("q_proj").nth(1).and_then(|rest| rest.lines().nth(1)).expect("q_proj has a weight");
    assert!(
        weight.contains("96x96") && weight.contains("24x96") && weight.contains("{tp, fsdp}"),
        "{weight}"
    );
    assert!(line("\"layers.*.attn.q_proj\"").contains("colwise"));
    assert!(line("memory of rank").contains("peak"));
    assert!(line("0,1,2,3").contains("KiB"), "ranks alike share a row");
}

/// A step beyond the bound is shown from fewer microbatches: all but times and memory is as of the whole one, and a rank has
/// the same parameters.
#[test]
fn a_large_step_is_shown_as_a_small_one() {
    let shown = |microbatches: usize| {
        let more = [
            "model.layers=4".to_string(),
            "model.dim=32".to_string(),
            "model.heads=2".to_string(),
            format!("train.batch={}", 2 * microbatches),
            format!("train.microbatches={microbatches}"),
        ];
        let session = session("pp=2,dp=2", &more.each_ref().map(String::as_str));
        (session.listing().unwrap(), show::overview(&session).unwrap())
    };
    let ((none, whole), (listing, large)) = (shown(8), shown(32));
    let listing = listing.unwrap();
    assert!(none.is_none() && listing.session.config().train.microbatches == 2);
    // How far `forward` is indented depends on the figures below it, which differ, as do the rows of the inputs.
    let until = |text: &str, end: &str| {
        text[text.find("parameter ").unwrap()..text.find(end).unwrap()].trim_end().to_string()
    };
    assert_eq!(until(&whole, "forward"), until(&large, "forward"));
    let inputs = |text: &str| -> Vec<String> {
        let rows = text.lines().skip_while(|line| !line.starts_with("input ")).skip(1);
        rows.take_while(|line| !line.is_empty())
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    };
    assert_eq!(inputs(&whole), ["tokens i32 [16, 64]", "labels i32 [16, 64]"]);
    assert_eq!(inputs(&large), ["tokens i32 [64, 64]", "labels i32 [64, 64]"]);
    // Four times the work, as many activations in flight, as `1F1B` keeps them.
    let row = |text: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with("0 ") && line.contains("FLOP")).unwrap();
        line.split_whitespace().map(str::to_string).collect()
    };
    let (one, four) = (row(&whole), row(&large));
    let flops = |row: &[String]| row[4].trim_end_matches('M').parse::<f64>().unwrap();
    assert!((flops(&four) / flops(&one) / 4.0 - 1.0).abs() < 2e-3, "{one:?} {four:?}");
    assert_eq!(one[6..], four[6..]);
    // The bytes of a rank of the first slice: parameters are exact, the peak nearly.
    let cells = |text: &str, head: &str, row: &str| -> Vec<String> {
        let table = &text[text.find(head).unwrap()..];
        let line = table.lines().find(|line| line.starts_with(row)).unwrap();
        line.split("  ").filter(|cell| !cell.is_empty()).map(|cell| cell.trim().to_string()).collect()
    };
    let (exact, predicted) = (cells(&whole, "memory of rank", "0,1"), cells(&large, "slice", "0"));
    assert_eq!(exact[1], predicted[2], "{exact:?} {predicted:?}");
    assert!(large.contains("as `partita simulate` predicts it"), "{large}");
}

/// A program that scales its input by a scalar.
const SCALE: &str = "\
func.func @main(%scale: tensor<f32> {partita.name = \"scale\"}, %x: tensor<4x3xf32> {partita.name = \"x\"}) -> \
(tensor<f32> {jax.result_info = \"loss\"}) {
  %0 = stablehlo.broadcast_in_dim %scale, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
  %1 = stablehlo.multiply %0, %x : tensor<4x3xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0, 1] : \
(tensor<4x3xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}
";

/// Names, types and shapes are those that a file of data needs; a parameter without dimensions is no vector of one element.
#[test]
fn what_is_fed_is_listed_before_the_parameters() {
    let file = |name: &str| format!("{}/../../tests/pt2/{name}.pt2", env!("CARGO_MANIFEST_DIR"));
    for (model, expected) in [
        ("wide-resnet".to_string(), ["inputs f32 [32, 16, 16, 3]", "labels i32 [32]"]),
        (file("mlp"), ["x f32 [6, 4]", "y f32 [6, 4]"]),
    ] {
        let overrides = ["train.batch=32".to_string()];
        let overrides = if model == "wide-resnet" { &overrides[..] } else { &[] };
        let shown = show::overview(&Session::load(&model, overrides).unwrap()).unwrap();
        let (above, _) = shown.split_once("\n\nparameter ").unwrap();
        let rows: Vec<String> =
            above.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(rows[2..], [&["input type shape"][..], &expected[..]].concat(), "{shown}");
    }
    let place = crate::place();
    std::fs::write(place.path("scale.mlir"), SCALE).unwrap();
    let shown = place.run(&["show", "scale.mlir", "--set", "model.parameters=[\"scale\"]"]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    let row = shown.out.lines().find(|line| line.starts_with("scale ")).unwrap();
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["scale", "[]", "[]", "[]", "4", "B"], "{row}");
}

#[test]
fn a_shown_plan_is_a_plan_again() {
    let built = session("tp=2", &[]).build().unwrap_or_else(|error| panic!("{error}"));
    for form in [PlanForm::Dict, PlanForm::Toml] {
        let text = show::plan_text(&built.plan, form);
        let plan = Plan::from_toml(&text, "shown").unwrap_or_else(|error| panic!("{error}"));
        assert!(plan.entries.iter().any(|e| e.modules == "layers.*.mlp.down_proj"), "{text}");
    }
}
