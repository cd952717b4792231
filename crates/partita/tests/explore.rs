use partita::commands::lower::{LowerRequest, programs};
use partita::config::Config;
use partita_runtime::Cpu;
#[test]
fn explore() {
    for line in std::fs::read_to_string("/tmp/lower_cases.txt").unwrap().lines() {
        let mut all: Vec<String> = line.split_whitespace().map(|s| s.to_string()).collect();
        let name = all.remove(0);
        let config = Config::load(&name, &all).unwrap_or_else(|e| panic!("{e}"));
        let set = programs(&config, LowerRequest::default(), &Cpu).unwrap_or_else(|e| panic!("{e}"));
        println!("== {line}");
        let mut seen = vec![];
        for c in set.collectives.iter().filter(|c| c.members.len() > 1) {
            if seen.contains(&c.bucket) { continue }
            seen.push(c.bucket);
            println!("{} {:?} mb{:?} {} :", c.kind.name(), c.phase, c.microbatch, c.label);
            for t in &c.transfers { println!("     {} {} -> {}", t.what, t.inputs[0], t.outputs[0]); }
        }
        if std::env::var("PROG").is_ok() { println!("{}", set.display(0)); }
    }
}
