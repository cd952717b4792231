//! Mutated plans, configs and timetables: reading them neither panics nor hangs. `PARTITA_FUZZ` and `PARTITA_FUZZ_SECONDS` as
//! in the test of the same name of `partita-import`.

use partita::config::{BUNDLED, Config};
use partita_pipeline::Order;
use partita_schedule::Plan;
use partita_testkit::Random;
use std::time::{Duration, Instant};

fn rounds(short: usize) -> impl Iterator<Item = usize> {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<usize>().ok());
    let (count, seconds) = (number("PARTITA_FUZZ"), number("PARTITA_FUZZ_SECONDS"));
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds as u64));
    let most = count.unwrap_or(if seconds.is_some() { usize::MAX } else { short });
    (0..most).take_while(move |_| end.is_none_or(|end| Instant::now() < end))
}

/// Exchanges, repeats or drops parts of a text, or puts other characters in.
fn mutated(random: &mut Random, text: &str) -> String {
    const MARKS: &[&str] =
        &["\"", "[", "]", "{", "}", "=", "-1", "999999999999", "1e999", ",", "\n", "*", "é", "\0", "."];
    let mut characters: Vec<char> = text.chars().collect();
    for _ in 0..1 + random.below(5) {
        let length = characters.len();
        let (from, at) = (random.below(length), random.below(length));
        match random.below(3) {
            0 => {
                let part = characters[from..length.min(from + 1 + random.below(30))].to_vec();
                characters.splice(at..at, part);
            }
            1 if length > 40 => {
                characters.drain(from..length.min(from + 1 + random.below(20)));
            }
            _ => {
                let mark = MARKS[random.below(MARKS.len())];
                characters.splice(at..length.min(at + random.below(3)), mark.chars());
            }
        }
    }
    characters.into_iter().collect()
}

fn survives(seed: u64, short: usize, texts: &[&str], read: impl Fn(&str)) {
    let mut random = Random(seed);
    for round in rounds(short) {
        let text = texts[random.below(texts.len())];
        let text = mutated(&mut random, text);
        let start = Instant::now();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| read(&text)));
        assert!(outcome.is_ok(), "round {round} panics:\n{text}");
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "round {round} takes {:?}:\n{text}",
            start.elapsed()
        );
    }
}

#[test]
fn mutated_plans_are_survived() {
    let texts = [
        "\"layers.*.attn\" = \"colwise\"\n\"layers.0\" = \"rowwise\"\n\"head\" = { shard = 0, axis = \"tp\" }\n",
        "sch[\"layers.0\"].shard(\"weight\", axis=0)\nsch[\"layers.0\"].sync(mode=\"bwd_post\", sync_op_or_fn=\"all_reduce\")\n",
        "parallelize_plan = {\"in_proj\": ColwiseParallel(input_layouts=Shard(0)), \"out\": RowwiseParallel()}\n",
    ];
    survives(1, 2000, &texts, |text| drop(Plan::parse(text, "fuzz.toml")));
}

#[test]
fn mutated_configs_are_survived() {
    let texts: Vec<&str> = BUNDLED.iter().map(|(_, text)| *text).collect();
    survives(2, 2000, &texts, |text| {
        // Not the files and models that a mutated path might name.
        if let Ok(table) = text.parse::<toml::Table>() {
            drop(Config::from_table(table));
        }
    });
}

#[test]
fn mutated_timetables_are_survived() {
    let texts: Vec<String> = ["1f1b", "gpipe", "zb-h1"]
        .iter()
        .map(|name| Order::named(name).and_then(|order| order.timetable(3, 4)).unwrap().to_csv())
        .collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    survives(3, 2000, &texts, |text| {
        if let Ok(order) = Order::from_csv(text, "fuzz.csv") {
            drop(order.timetable(3, 4));
        }
    });
}
