//! Every bundled model in stages on every kind of mesh, under every timetable and with several
//! numbers of microbatches, in f64 against one device:
//!
//! `cargo test -p partita --test all pipelines_sweep -- --ignored --nocapture`
//!
//! `ONLY="gpt pp=2,tp=2"` runs the cases whose line contains each of these words.

use crate::staged::{mesh, model, options, plan, verify};
use partita_pipeline::timetables;

const MODELS: [&str; 4] = ["gpt", "llama", "bert", "mlp"];
const MESHES: [&str; 6] = ["pp=2", "pp=4", "pp=3", "pp=2,tp=2", "pp=2,dp=2", "pp=2,fsdp=2"];
const MICROBATCHES: [usize; 4] = [1, 2, 3, 8];

#[test]
#[ignore = "takes a quarter of an hour"]
fn every_model_mesh_timetable_and_number_of_microbatches_agrees_with_one_device() {
    let only = std::env::var("ONLY").unwrap_or_default();
    let mut cases = Vec::new();
    for name in MODELS {
        for on in MESHES {
            for named in timetables::ALL.iter().filter(|named| named.name != "inference") {
                for microbatches in MICROBATCHES {
                    let line = format!("{name} {on} {} microbatches={microbatches}", named.name);
                    let has = |word: &str| line.split(' ').any(|part| part == word);
                    if only.split_whitespace().all(has) {
                        cases.push((line, name, on, named.name, microbatches));
                    }
                }
            }
        }
    }
    assert!(!cases.is_empty(), "no case is called `{only}`");
    let models = MODELS.map(|name| model(name, 8, 8));
    let mut wrong = Vec::new();
    for (number, (line, name, on, timetable, microbatches)) in cases.iter().enumerate() {
        let model = &models[MODELS.iter().position(|other| other == name).expect("it is one of them")];
        let mesh = mesh(on);
        let outcome = verify(model, &plan(name, model, &mesh), &mesh, &options(*microbatches, timetable));
        let told = match outcome {
            Err(error) => Err(error.to_string()),
            Ok(report) if report.ok && report.tolerance <= 1e-9 => {
                Ok(report.worst().map_or(0.0, |worst| worst.rel_error))
            }
            Ok(report) => Err(format!("{:?} {:?}", report.worst(), report.first_diverging)),
        };
        let progress = format!("[{} of {}] {line}", number + 1, cases.len());
        match told {
            Ok(error) => println!("{progress}: within {error:.1e}"),
            Err(error) => {
                println!("{progress}: WRONG {error}");
                wrong.push(format!("{line}: {error}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
