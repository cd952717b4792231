//! `partita bench` runs what it names and prints lines that machines can read. How fast is nobody's business here.

use partita_testkit::Outcome;
use serde_json::Value;
use std::collections::BTreeSet;

fn bench(arguments: &[&str]) -> Outcome {
    let once = ["bench", "--json", "--repeats", "1", "--warmup", "1"];
    crate::place().run(&[&once, arguments].concat())
}

/// The lines of cases that ran well, each with a positive duration.
#[track_caller]
fn measured(outcome: &Outcome) -> Vec<Value> {
    assert_eq!(outcome.code, Some(0), "{}{}", outcome.out, outcome.err);
    let lines = outcome.of("bench");
    for line in &lines {
        for key in ["median_ms", "min_ms", "compile_ms", "first_step_ms", "planned_mb"] {
            assert!(line[key].as_f64().is_some_and(|figure| figure > 0.0), "{key}: {line}");
        }
        assert!(line["initialize_ms"].as_f64().is_some_and(|figure| figure >= 0.0), "{line}");
        assert_eq!((&line["repeats"], &line["spread"]), (&1.into(), &0.0.into()), "{line}");
        assert!(line["first_step_ms"].as_f64() > line["compile_ms"].as_f64(), "{line}");
    }
    lines
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|v| v.as_f64().expect("a number")).collect()
}

#[test]
fn products_run_on_one_thread_and_two() {
    let lines = measured(&bench(&["gemm", "--filter", "256x256x256"]));
    let cases: Vec<_> = lines.iter().map(|line| (line["case"].clone(), line["threads"].clone())).collect();
    let expected = [1, 2].map(|n| (format!("256x256x256/{n}").into(), n.into()));
    assert_eq!(cases, expected);
    assert!(lines.iter().all(|line| line["gflops"].as_f64().unwrap() > 0.0 && line.get("losses").is_none()));
}

/// What is learnt from does not matter to the first loss: targets are normal, and so is their mean square about 1; the
/// prediction of fresh weights adds a little.
#[test]
fn an_mlp_runs_forward_and_backward() {
    let lines = measured(&bench(&["mlp", "--filter", "slapo", "--mesh", "dp=1"]));
    assert_eq!((lines.len(), &lines[0]["case"]), (1, &"slapo".into()));
    let losses = numbers(&lines[0]["losses"]);
    assert_eq!(losses.len(), 2);
    assert_eq!(losses[0], losses[1], "nothing is updated");
    assert!((1.0..1.5).contains(&losses[0]), "{losses:?}");
}

/// A fresh model knows nothing of 256 tokens, and learns a fixed batch by heart; every mesh computes the same.
#[test]
fn a_gpt_learns_the_same_on_every_mesh() {
    let gpt = bench(&["gpt", "--filter", "tiny", "--profile", "--threads", "3"]);
    let dist = bench(&["dist", "--filter", "tiny/"]);
    let lines = [measured(&gpt), measured(&dist)].concat();
    let meshes: Vec<&str> = lines.iter().map(|line| line["mesh"].as_str().unwrap()).collect();
    assert_eq!(meshes, ["dp=1", "dp=1", "tp=2", "dp=2", "fsdp=2", "dp=4", "fsdp=4"]);
    let first = numbers(&lines[0]["losses"]);
    assert!((first[0] - 256f64.ln()).abs() < 0.1 && first[1] < first[0], "{first:?}");
    for line in &lines {
        for (loss, expected) in numbers(&line["losses"]).iter().zip(&first) {
            assert!((loss - expected).abs() < 1e-4, "{line}");
        }
    }
    let profile = &gpt.of("profile")[0];
    let rows = profile["rows"].as_array().unwrap();
    let phases: BTreeSet<&str> = rows.iter().map(|row| row["phase"].as_str().unwrap()).collect();
    assert_eq!(phases.into_iter().collect::<Vec<_>>(), ["forward", "input_grad", "update", "weight_grad"]);
    // Four layers on one rank of three threads.
    let attention = rows.iter().find(|row| row["what"] == "attention").unwrap();
    assert_eq!((&attention["instructions"], &lines[0]["threads"]), (&4.into(), &3.into()));
    let total: f64 = rows.iter().map(|row| row["ms"].as_f64().unwrap()).sum();
    let (step, other) = (profile["step_ms"].as_f64().unwrap(), profile["other_ms"].as_f64().unwrap());
    assert!((total + other - step).abs() < 1e-6 * step);
}

#[test]
fn collectives_are_held_against_the_copy_beside_them() {
    let lines = measured(&bench(&["collectives", "--filter", "1MiB/2"]));
    let of_limit: Vec<bool> = lines.iter().map(|line| line["of_limit"].as_f64().is_some()).collect();
    assert_eq!(of_limit, [false, true, true, true, true]);
    let of_exchange: Vec<bool> = lines.iter().map(|line| line["of_exchange"].as_f64().is_some()).collect();
    assert_eq!(of_exchange, [false, false, true, true, true]);
    assert!(lines.iter().all(|line| line["gbytes_per_s"].as_f64().unwrap() > 0.0));
    let alone = measured(&bench(&["--filter", "all_gather/1MiB/4"]));
    assert_eq!((alone.len(), alone[0].get("of_limit")), (1, None));
}

#[test]
fn people_get_a_line_per_case() {
    let text = crate::place().run(&["bench", "gemm", "--filter", "256x256x256/1", "--repeats", "2"]);
    assert_eq!(text.code, Some(0), "{}", text.err);
    assert!(text.out.starts_with("gemm/256x256x256/1 ") && text.out.contains(" GFLOP/s "), "{}", text.out);
    assert_eq!(text.out.lines().count(), 1);
    let list = crate::place().run(&["bench", "mlp", "--list"]);
    assert_eq!(list.out, "mlp/slapo\nmlp/alpa\n");
}

/// Every rung of a model runs, is in the table and has a bar; which one is fastest is nobody's business here.
#[test]
fn schedules_are_measured_line_by_line() {
    let place = crate::place();
    let arguments =
        ["bench", "schedules", "--json", "--repeats", "1", "--warmup", "1", "--filter", "schedules/mlp"];
    let outcome = place.run(&[&arguments[..], &["--svg", "s.svg"]].concat());
    let lines = measured(&outcome);
    let cases: Vec<&str> = lines.iter().map(|line| line["case"].as_str().unwrap()).collect();
    let rungs_of =
        |model: &str| ["unscheduled", "kernels", "fuse", "shard"].map(|rung| format!("{model}/{rung}"));
    assert_eq!(cases, [rungs_of("mlp"), rungs_of("mlp4")].concat());
    // The schedule changes no number.
    for model in lines.chunks(4) {
        for line in model {
            let (found, expected) = (numbers(&line["losses"])[0], numbers(&model[0]["losses"])[0]);
            assert!((found - expected).abs() < 1e-5, "{line}");
        }
    }
    let rungs = outcome.of("schedules")[0]["rungs"].as_array().unwrap().clone();
    let own: Vec<&Value> = rungs.iter().filter(|rung| !rung["planned_mb"].is_null()).collect();
    assert_eq!(own.len(), 8);
    let ratio = own[0]["median_ms"].as_f64().unwrap() / own[3]["median_ms"].as_f64().unwrap();
    assert_eq!(own[3]["over_unscheduled"].as_f64(), Some(ratio));
    let svg = std::fs::read_to_string(place.path("s.svg")).unwrap();
    assert_eq!(svg.matches("<rect").count(), 1 + rungs.len());
}

#[test]
fn mistakes_are_explained() {
    bench(&["--filter", "gpt/smal1"]).refuses("E020", &["gpt/smal1", "did you mean `gpt/small`"]);
    bench(&["gpt", "--filter", "zzz"]).refuses("E020", &["--list"]);
    bench(&["gemm", "--mesh", "dp=2"]).refuses("E021", &["--mesh", "dp=2"]);
    bench(&["gemm", "--svg", "s.svg"]).refuses("E033", &["--svg"]);
    assert_eq!(crate::place().run(&["bench", "--repeats", "0"]).code, Some(2));
    assert_eq!(crate::place().run(&["bench", "everything"]).code, Some(2));
}
