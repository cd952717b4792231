//! `partita explain` and the three spellings of a plan, from outside.

use partita_cli::commands::explain::page;
use partita_schedule::Plan;
use partita_testkit::Place;
use serde_json::Value;

const PLAN: &str = "sch[\"layers.0\"].shard(\"weight\", 0).shard(\"bias\", 0)\n\
                    sch[\"layers.0\"].decompose()\n\
                    sch[\"layers.1\"].rowwise()  # by hand\n\
                    sch[\"layers.*\"].fork_rng()\n\
                    sch[\"layers.1\"].annotate(\"weight\", \"owner\", \"me\")\n\
                    sch[\"**\"].zero1()\n";

fn with_plan(text: &str) -> Place {
    let place = crate::place();
    std::fs::write(place.path("plan.py"), text).unwrap();
    place
}

fn json(place: &Place, arguments: &[&str]) -> Value {
    let mut all = vec!["explain", "mlp", "--mesh", "dp=2,tp=2", "--plan", "plan.py", "--json"];
    all.splice(2..2, arguments.iter().copied());
    let outcome = place.run(&all);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let [event] = &outcome.of("explain")[..] else { panic!("one object: {}", outcome.out) };
    assert_eq!(outcome.events().len(), 1, "{}", outcome.out);
    event.clone()
}

#[test]
fn a_plan_reads_back_from_each_of_its_spellings() {
    let place = with_plan(PLAN);
    let plan = Plan::parse(PLAN, "here").unwrap();
    let mut texts = Vec::new();
    for form in ["calls", "slapo", "dict", "toml"] {
        let shown = place.run(&["show", "mlp", "--mesh", "dp=2,tp=2", "--plan", "plan.py", "--as", form]);
        assert_eq!(shown.code, Some(0), "{}", shown.err);
        assert_eq!(Plan::parse(&shown.out, "shown").unwrap(), plan, "{form}:\n{}", shown.out);
        // The command reads it as a file too.
        std::fs::write(place.path("again"), &shown.out).unwrap();
        let again = place.run(&["show", "mlp", "--mesh", "dp=2,tp=2", "--plan", "again", "--as", "dict"]);
        assert_eq!(Plan::parse(&again.out, "again").unwrap(), plan, "{form}: {}", again.err);
        texts.push(shown.out);
    }
    assert_eq!(texts[0], texts[1], "an alias");
    assert!(texts[0].contains("sch[\"layers.1\"].rowwise()  # by hand"), "{}", texts[0]);
}

#[test]
fn costs_are_those_of_the_cluster_of_the_run() {
    let place = crate::place();
    std::fs::write(place.path("slow.toml"), "links = [{ latency_s = 1.0, bytes_per_s = 1e9 }]\n").unwrap();
    std::fs::write(place.path("wrong.toml"), "links = [{ latency_s = -1.0, bytes_per_s = 1e9 }]\n").unwrap();
    let explain = |more: &[&str]| place.run(&[&["explain", "gpt", "--mesh", "tp=2"], more].concat());
    let cost_us = |more: &[&str]| {
        let outcome = explain(&[more, &["--json"]].concat());
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        let event = &outcome.of("explain")[0];
        (event["cluster"].as_str().unwrap().to_string(), event["collectives"][0]["cost_us"].as_f64().unwrap())
    };
    let (name, laptop_us) = cost_us(&[]);
    assert_eq!(name, "laptop");
    let (name, fast_us) = cost_us(&["--cluster", "h100-8"]);
    assert_eq!(name, "h100-8");
    let (name, slow_us) = cost_us(&["--cluster", "slow.toml"]);
    assert_eq!(name, "slow.toml");
    assert!(fast_us < laptop_us && laptop_us < 1e6 && 1e6 < slow_us, "{fast_us} {laptop_us} {slow_us}");
    let text = explain(&["--set", "cluster.name=h100-8", "all_reduce:1"]).out;
    assert!(text.contains("us, by cluster `h100-8`"), "{text}");
    let code = |more: &[&str]| {
        let outcome = explain(more);
        assert_eq!(outcome.code, Some(2), "{}", outcome.out);
        outcome.err.split(['[', ']']).nth(1).unwrap().to_string()
    };
    assert_eq!(code(&["--cluster", "h100-9"]), "E473");
    assert_eq!(code(&["--cluster", "wrong.toml"]), "E470");
    assert_eq!(code(&["--set", "mesh.shape=dp=8,tp=2", "--cluster", "h100-8"]), "E474");
}

#[test]
fn a_dictionary_of_pytorch_is_a_plan_file() {
    let text = "from torch.distributed.tensor.parallel import *\n\nparallelize_plan = {\n    \
                \"layers.0\": ColwiseParallel(input_layouts=Shard(0), use_local_output=False),\n    \
                \"layers.1\": RowwiseParallel(output_layouts=Shard(0)),\n}\n";
    let place = with_plan(text);
    let plan = Plan::parse(text, "here.py").unwrap();
    for form in ["calls", "dict", "toml"] {
        let shown = place.run(&["show", "mlp", "--mesh", "tp=2", "--plan", "plan.py", "--as", form]);
        assert_eq!(Plan::parse(&shown.out, "shown").unwrap(), plan, "{form}: {}", shown.err);
    }
    let verified = place.run(&["verify", "mlp", "--mesh", "tp=2", "--plan", "plan.py"]);
    assert_eq!(verified.code, Some(0), "{}", verified.err);
    let said = format!("{}{}", verified.out, verified.err);
    assert!(said.contains("`use_local_output` changes nothing"), "{said}");
}

#[test]
fn every_command_says_what_a_pipeline_split_does_on_one_stage() {
    let place = with_plan("sch[\"layers.0\"].pipeline_split()\n");
    for command in ["show", "explain", "verify"] {
        let outcome = place.run(&[command, "mlp", "--mesh", "dp=2,pp=1", "--plan", "plan.py"]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        let said = format!("{}{}", outcome.out, outcome.err);
        assert!(
            said.contains("\"pipeline_split\" (plan.py:1): a pipeline stage ends here on"),
            "{command}: {said}"
        );
    }
    place
        .run(&["show", "mlp", "--mesh", "dp=2", "--plan", "plan.py", "--json"])
        .refuses("E229", &["plan.py:1", "pp=1"]);
    let trained = place.run(&[
        "train",
        "mlp",
        "--mesh",
        "dp=2,pp=1",
        "--plan",
        "plan.py",
        "--steps",
        "1",
        "--no-verify",
    ]);
    assert_eq!(trained.code, Some(0), "{}", trained.err);
    let said = format!("{}{}", trained.out, trained.err);
    assert!(said.contains("a pipeline stage ends here on"), "{said}");
}

#[test]
fn the_screen_shows_lines_meetings_and_notes() {
    let place = with_plan(PLAN);
    let outcome = place.run(&["explain", "mlp", "--mesh", "dp=2,tp=2", "--plan", "plan.py"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    for words in [
        "mesh dp=2,tp=2",
        "\"layers.0\" = \"shard(weight, 0)\"  (plan.py:1)\n      lays out 1 parameter, 2 optimizer states",
        "(by hand)",
        "changes nothing: random numbers follow the global index",
        "default layout of the batch\n      all_reduce:",
        "note: `layers.0`: fork_rng changes nothing",
    ] {
        assert!(outcome.out.contains(words), "`{words}` is not in\n{}", outcome.out);
    }
}

/// Sends are counted in the table, and are not "no collectives".
#[test]
fn sends_between_stages_are_listed() {
    let step = ["explain", "mlp", "--mesh", "pp=2", "--microbatches", "2"];
    let outcome = crate::place().run(&step);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let (_, rest) = outcome.out.split_once("no collectives within a stage\n\nsends between stages").unwrap();
    let row = |from: &str, to: &str, part: &str| {
        let is_meant = |line: &&str| line.split_whitespace().take(3).eq([from, to, part]);
        rest.lines().filter(is_meant).count()
    };
    assert_eq!((row("0", "1", "forward"), row("1", "0", "backward")), (1, 1), "{rest}");
    // Without stages there are none.
    assert!(crate::place().run(&["explain", "mlp", "--mesh", "dp=1"]).out.contains("\nno collectives\n"));
}

#[test]
fn the_collectives_are_those_that_counts_counts() {
    let place = with_plan(PLAN);
    let event = json(&place, &[]);
    let counts = &event["counts"];
    let collectives = event["collectives"].as_array().unwrap();
    for (part, phases) in [
        ("forward", vec!["forward"]),
        ("backward", vec!["input_grad", "weight_grad"]),
        ("update", vec!["update"]),
    ] {
        let of: Vec<&Value> =
            collectives.iter().filter(|c| phases.contains(&c["phase"].as_str().unwrap())).collect();
        let total: u64 = of.iter().map(|c| c["bytes"].as_u64().unwrap()).sum();
        assert_eq!(counts["bytes"][part], total, "{part}");
        for kind in ["all_reduce", "all_gather", "reduce_scatter"] {
            let count = of.iter().filter(|c| c["kind"] == kind).count();
            assert_eq!(counts["logical"][part][kind], count, "{part} {kind}");
        }
    }
}

#[test]
fn one_object_holds_the_facts_of_a_name() {
    let place = with_plan(PLAN);
    let event = json(&place, &["layers.1.weight"]);
    assert_eq!((&event["role"], &event["layout"]), (&"parameter".into(), &"[{}, {tp}]".into()));
    assert_eq!(event["shape"], serde_json::json!([32, 64]));
    assert_eq!(event["held"][0]["bytes"], 32 * 32 * 4);
    assert_eq!(
        event["over"][1]["chain"][0].as_str().unwrap().split(':').next(),
        Some("\"layers.1\" = \"rowwise\" (by hand)")
    );
    let choices = event["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 6, "two axes, two dimensions or whole");
    assert_eq!(choices.iter().filter(|choice| choice["present"] == true).count(), 2);
    let event = json(&place, &["all_reduce:1"]);
    assert_eq!((&event["kind"], &event["name"]), (&"all_reduce".into(), &"all_reduce:1".into()));
    assert!(event["cost_us"].as_f64().unwrap() > 0.0);
}

#[test]
fn names_that_are_nothing_are_refused() {
    let place = crate::place();
    place.run(&["explain", "mlp", "layers.0.wieght", "--json"]).refuses("E257", &["layers.0.weight"]);
    place.run(&["explain", "mlp", "all_reduce:99", "--json"]).refuses("E258", &["a number from 1 to"]);
    place.run(&["explain", "E232x", "--json"]).refuses("E005", &[]);
    place.run(&["explain", "E239", "--json"]).refuses("E016", &["E229"]);
}

#[test]
fn codes_have_pages_in_either_case_with_or_without_a_config() {
    let place = crate::place();
    for arguments in [&["explain", "E231"][..], &["explain", "e231"], &["explain", "mlp", "E231"]] {
        let outcome = place.run(arguments);
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        assert!(
            outcome.out.starts_with("E231 (schedule): ") && outcome.out.contains("```python"),
            "{}",
            outcome.out
        );
    }
    let row = page("E407").unwrap();
    assert!(row.text.is_empty() && row.text().starts_with("E407 (program): A buffer is used outside"));
}

/// The fenced block of a page in a language.
fn block<'p>(page: &'p str, language: &str) -> Option<&'p str> {
    let (_, rest) = page.split_once(&format!("```{language}\n"))?;
    Some(rest.split("```").next().unwrap().trim_end())
}

/// The first line of a message, without the numbers of values.
fn headline(message: &str) -> String {
    let head = message.lines().next().unwrap_or_default();
    let mut parts = head.split('%');
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |text, part| text + "%" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

#[test]
fn the_examples_of_pages_say_what_the_command_says() {
    let mut shown = 0;
    for code in 221..=256 {
        let code = format!("E{code}");
        let Ok(page) = page(&code) else { continue };
        let Some(command) = block(&page.text, "console") else { continue };
        let place = with_plan(block(&page.text, "python").expect("a plan"));
        let words: Vec<&str> = command.trim_start_matches("$ partita ").split_whitespace().collect();
        let outcome = place.run(&words);
        assert_eq!(outcome.code, Some(2), "{code}: {}", outcome.out);
        let expected = block(&page.text, "text").expect("a message");
        assert!(expected.starts_with(&format!("error[{code}]: ")), "{code}");
        assert_eq!(headline(&outcome.err), headline(expected), "{code}");
        shown += 1;
    }
    assert!(shown >= 15, "{shown} pages have examples");
}
