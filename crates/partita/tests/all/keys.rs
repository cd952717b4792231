//! The list of the config's keys against the config itself.

use partita::config::{BUNDLED, Config};
use partita::models::ModelKinds;
use partita::prelude::*;
use std::collections::BTreeSet;
use toml::{Table, Value};

/// Everything that a table is read to, but for the table.
fn read(table: &Table) -> String {
    let config = Config::from_table(table.clone()).unwrap_or_else(|error| panic!("{table}: {error}"));
    format!("{:?}", Config { resolved: Table::new(), ..config })
}

fn table(model: &str, optimizer: &str) -> Table {
    format!("[model]\nkind = \"{model}\"\n[optimizer]\nkind = \"{optimizer}\"\n").parse().unwrap()
}

/// A default that is written as TOML is the value of a config without the key.
#[test]
fn writing_a_default_out_changes_nothing() {
    let keys = Config::keys(&ModelKinds::bundled());
    let mut written = 0;
    for model in
        ["mlp", "gpt", "llama", "bert", "moe-gpt", "mixtral", "deepseek", "wide-resnet", "vit", "unet", "t5"]
    {
        for optimizer in Optimizer::NAMES {
            let plain = table(model, optimizer);
            for key in &keys {
                let kind = if key.section == "model" { model } else { optimizer };
                let is_of_kind = key.kinds.is_empty() || key.kinds.iter().any(|own| own == kind);
                let default =
                    format!("v = {}", key.default).parse::<Table>().ok().and_then(|mut t| t.remove("v"));
                let Some(default) = default.filter(|_| is_of_kind && key.name != "kind") else { continue };
                let mut changed = plain.clone();
                let section =
                    changed.entry(key.section.clone()).or_insert_with(|| Value::Table(Table::new()));
                section.as_table_mut().unwrap().insert(key.name.clone(), default);
                assert_eq!(read(&changed), read(&plain), "{}.{} = {}", key.section, key.name, key.default);
                written += 1;
            }
        }
    }
    assert!(written > 300, "{written}");
}

#[test]
fn every_key_of_the_bundled_configs_is_listed_once_with_a_meaning() {
    let keys = Config::keys(&ModelKinds::bundled());
    for key in &keys {
        assert!(!key.about.is_empty() && !key.default.is_empty() && !key.takes.is_empty(), "{key:?}");
    }
    let names: BTreeSet<String> = keys.iter().map(|key| format!("{}.{}", key.section, key.name)).collect();
    for (name, text) in BUNDLED {
        for (section, keys) in text.parse::<Table>().unwrap() {
            for key in keys.as_table().unwrap().keys() {
                assert!(names.contains(&format!("{section}.{key}")), "{name}: {section}.{key}");
            }
        }
    }
    let train = keys.iter().filter(|key| key.section == "train");
    assert_eq!(train.map(|key| key.name.as_str()).collect::<Vec<_>>()[..3], ["dtype", "steps", "batch"]);
}

/// A key of some kinds is refused for the others.
#[test]
fn keys_of_a_kind_belong_to_it_alone() {
    let keys = Config::keys(&ModelKinds::bundled());
    let (mut accepted, mut refused) = (0, 0);
    for key in keys.iter().filter(|key| key.section == "model" && key.name != "kind") {
        let default = format!("v = {}", key.default).parse::<Table>().ok().and_then(|mut t| t.remove("v"));
        let Some(default) = default else { continue };
        for model in [
            "mlp",
            "gpt",
            "llama",
            "bert",
            "moe-gpt",
            "mixtral",
            "deepseek",
            "wide-resnet",
            "vit",
            "unet",
            "t5",
        ] {
            let mut changed = table(model, "adamw");
            changed["model"].as_table_mut().unwrap().insert(key.name.clone(), default.clone());
            let others = keys.iter().filter(|other| other.section == "model" && other.name == key.name);
            let has = others
                .into_iter()
                .any(|other| other.kinds.is_empty() || other.kinds.iter().any(|k| k == model));
            match Config::from_table(changed) {
                Ok(_) => accepted += usize::from(has),
                Err(error) => {
                    assert!(!has && error.code == "E001", "{model} {}: {error}", key.name);
                    refused += 1;
                }
            }
        }
    }
    assert!(accepted > 20 && refused > 10, "{accepted} {refused}");
}

#[test]
fn a_kind_that_does_not_exist_names_those_that_do() {
    let error: Box<Diagnostic> = ModelKinds::bundled().named("lama").map(|_| ()).unwrap_err();
    assert_eq!(
        (error.code, error.expected.as_deref()),
        (
            "E004",
            Some("mlp, gpt, llama, bert, moe-gpt, mixtral, deepseek, wide-resnet, vit, unet, t5 or file")
        )
    );
    assert!(error.help.as_deref().unwrap().contains("llama"), "{error}");
    assert_eq!(ModelKinds::default().named("gpt").map(|_| ()).unwrap_err().code, "E004");
}
