//! The commands, configs and plans on the pages of docs/ and in the README: all are understood, and those that need nothing but the
//! command are run, in the order of their page. What they print is compared on the pages that say it (`docs/TUTORIAL.md` in
//! `python/tests/test_tutorial.py`, the pages of messages in `explain.rs`).

use crate::{place, root};
use partita::engines::Engines;
use partita_testkit::Place;
use std::fs;
use std::path::PathBuf;

/// Commands that the test does not run, by how they begin, and who does.
const ELSEWHERE: &[(&str, &str)] = &[
    ("partita simulate --validate", "a table of runs: crates/partita/tests/all/published.rs"),
    ("partita plan gpt-39b", "a search of minutes: crates/partita/tests/all/search.rs has smaller ones"),
    ("partita launch", "several processes: launch.rs"),
    ("partita train --live", "a terminal: docs/screenshots.py"),
];

/// Pages whose commands are run. Those on other pages need files of PyTorch and JAX, which python/tests have, or are forms
/// with names to fill in.
const RUN: &[&str] = &[
    "README.md",
    "docs/COST.md",
    "docs/LONG_CONTEXT.md",
    "docs/PLANNER.md",
    "docs/PRECISION.md",
    "docs/PROFILE.md",
];

/// The pages, by their paths from the root.
fn pages() -> Vec<(String, String)> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        docs.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    paths.push(root().join("README.md"));
    paths.sort();
    let name = |path: &PathBuf| path.strip_prefix(root()).unwrap().display().to_string();
    paths.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

/// The blocks of a page in a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("\n```{language}\n");
    page.split(&begin).skip(1).map(|rest| &rest[..rest.find("\n```").expect("a block ends")]).collect()
}

/// The words of a line as a shell reads them: quotes hold words together, and what begins with # is a comment.
fn words(line: &str) -> Vec<String> {
    let (mut all, mut word, mut quote) = (Vec::new(), None::<String>, None::<char>);
    for sign in line.chars() {
        match (quote, sign) {
            (Some(end), sign) if sign == end => quote = None,
            (Some(_), sign) => word.get_or_insert_default().push(sign),
            (None, '\'' | '"') => {
                quote = Some(sign);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, sign) if sign.is_whitespace() => all.extend(word.take()),
            (None, sign) => word.get_or_insert_default().push(sign),
        }
    }
    all.extend(word);
    all
}

/// The commands of `partita` in a block: of lines with `$`, or of all lines where none has it.
fn commands(block: &str) -> Vec<Vec<String>> {
    let joined = block.replace("\\\n", " ");
    let typed = joined.lines().any(|line| line.starts_with("$ "));
    let own = joined.lines().filter(|line| !typed || line.starts_with("$ "));
    let begins: [&[&str]; 4] = [
        &["partita"],
        &["cargo", "run", "--release", "--"],
        &["python", "-m", "partita"],
        &["mpirun", "-n", "4", "partita-mpi"],
    ];
    let command = |line: &str| -> Option<Vec<String>> {
        let words = words(line.trim_start_matches("$ "));
        let begin = begins.iter().find(|begin| words.starts_with(&begin.owned()))?;
        Some(std::iter::once("partita".to_string()).chain(words[begin.len()..].iter().cloned()).collect())
    };
    own.filter_map(command).collect()
}

trait Words {
    fn owned(&self) -> Vec<String>;
}

impl Words for &[&str] {
    fn owned(&self) -> Vec<String> {
        self.iter().map(|word| word.to_string()).collect()
    }
}

/// A form with its choices and omissions filled in: `ls|show` is `ls`, `..` is left away, `[NAME]` is `NAME`.
fn filled(words: &[String]) -> Vec<String> {
    let one = |word: &String| {
        let word = word.trim_start_matches('[').trim_end_matches(']');
        if word == "SUITE" { "gemm" } else { word.split('|').next().unwrap_or_default() }.to_string()
    };
    words.iter().filter(|word| *word != "..").map(one).collect()
}

#[test]
fn every_command_on_a_page_is_understood() {
    let application = partita_cli::application(Engines::bundled());
    let mut count = 0;
    for (page, text) in pages() {
        for command in blocks(&text, "console").into_iter().chain(blocks(&text, "sh")).flat_map(commands) {
            count += 1;
            if let Err(error) = application.read(filled(&command)) {
                panic!("{page}: {}\n{error}", command.join(" "));
            }
        }
    }
    assert!(count > 80, "{count}");
    assert!(application.read(["partita", "train", "gpt", "--mehs", "dp=2"]).is_err());
    assert_eq!(words("a 'b c'=d  # e"), ["a", "b c=d"]);
}

/// A command as the test runs it: few steps, and outputs where nothing is yet.
fn prepared(words: &[String], place: &Place) -> Vec<String> {
    let mut words = words[1..].to_vec();
    for (at, word) in words.iter().enumerate() {
        if ["--out", "--trace", "--metrics", "--svg"].contains(&word.as_str()) {
            let _ = fs::remove_file(place.path(words[at + 1].as_str()));
        }
    }
    if words[0] == "train" {
        match words.iter().position(|word| word == "--steps") {
            Some(at) => words[at + 1] = "6".to_string(),
            None => words.extend(["--steps", "2", "--no-verify", "--no-sample"].map(String::from)),
        }
    }
    if words[0] == "bench" {
        words.push("--list".to_string());
    }
    words
}

#[test]
fn commands_of_pages_run() {
    let mut run = 0;
    for (page, text) in pages().into_iter().filter(|(page, _)| RUN.contains(&page.as_str())) {
        let place = place();
        let began = std::time::Instant::now();
        // What the pages take from elsewhere: the log of a run, another run, a plan.
        fs::write(place.path("run.jsonl"), "{\"event\":\"step\",\"step\":1,\"loss\":2.5}\n").unwrap();
        fs::write(place.path("plan.toml"), "[plan]\n\"layers.*.mlp.up_proj\" = \"colwise\"\n").unwrap();
        if text.contains("runs/b") {
            let made = place.run(&["train", "gpt", "--steps", "2", "--checkpoint-dir", "runs/b"]);
            assert_eq!(made.code, Some(0), "{}", made.err);
        }
        let typed = |block: &&str| page != "README.md" || block.starts_with("$ ");
        for command in blocks(&text, "console").into_iter().filter(typed).flat_map(commands) {
            let line = command.join(" ");
            if ELSEWHERE.iter().any(|(begin, _)| line.starts_with(begin)) || line.contains("CONFIG") {
                continue;
            }
            let words = prepared(&command, &place);
            let outcome = place.run(&words.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(outcome.code, Some(0), "{page}: {line}\n{}", outcome.err);
            run += 1;
        }
        eprintln!("{page}: {:.1} s", began.elapsed().as_secs_f64());
    }
    assert!(run > 20, "{run}");
}

#[test]
fn configs_and_plans_of_pages_are_accepted() {
    let place = place();
    fs::write(place.path("books"), "to be or not to be, that is the question. ".repeat(400)).unwrap();
    let (mut configs, mut plans) = (0, 0);
    let page = |name: &str| fs::read_to_string(root().join("docs").join(name)).unwrap();
    let text = page("CONFIG.md") + &page("PLANS.md");
    for block in blocks(&text, "toml") {
        if block.starts_with("[model]") {
            fs::write(place.path("config.toml"), block).unwrap();
            let outcome = place.run(&["train", "config.toml", "--steps", "2", "--no-verify", "--no-sample"]);
            assert_eq!(outcome.code, Some(0), "{block}\n{}", outcome.err);
            configs += 1;
        } else if block.contains("layers.*.attn.q_proj") {
            fs::write(place.path("plan.toml"), block).unwrap();
            let outcome = place.run(&["show", "gpt", "--mesh", "dp=2,fsdp=2,tp=2", "--plan", "plan.toml"]);
            assert_eq!(outcome.code, Some(0), "{block}\n{}", outcome.err);
            plans += 1;
        }
    }
    assert!(configs > 0 && plans > 0, "{configs} {plans}");
}
