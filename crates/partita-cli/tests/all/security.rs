//! What a run opens to others, and what is read without trust.

use crate::launch::{launch, process};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Numbers of the sockets of a process.
fn sockets(id: u32) -> BTreeSet<String> {
    let links =
        fs::read_dir(format!("/proc/{id}/fd")).unwrap().filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    let number = |link: std::path::PathBuf| {
        Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_string())
    };
    links.filter_map(number).collect()
}

/// Numbers of the sockets of this machine that others can reach by TCP or UDP: those that listen, and all of UDP.
fn ports() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (table, is_tcp) in [("tcp", true), ("tcp6", true), ("udp", false), ("udp6", false)] {
        for line in fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default().lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if !is_tcp || fields[3] == "0A" {
                found.insert(fields[9].to_string());
            }
        }
    }
    found
}

#[test]
fn launched_processes_open_no_port() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let own = |id: u32| sockets(id).intersection(&ports()).count();
    assert!(own(std::process::id()) >= 1, "the listener of this test is not found");
    drop(listener);
    let place = crate::place();
    let arguments = launch(2, "mlp", "dp=2", &["--set", "train.steps=100000000"]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut launcher =
        place.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(launcher.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("\"event\":\"step\"")), "no step was done");
    let processes = [Some(launcher.id()), process(launcher.id(), 0), process(launcher.id(), 1)];
    let open: Vec<usize> = processes.into_iter().map(|id| own(id.expect("the process runs"))).collect();
    assert!(Command::new("kill").args(["-9", &launcher.id().to_string()]).status().unwrap().success());
    launcher.wait().unwrap();
    assert_eq!(open, [0, 0, 0]);
}

/// Calls that run what a file says.
const UNSAFE: [&str; 7] = [
    "import pickle",
    "pickle.load",
    "allow_pickle=True",
    "torch.load(",
    "weights_only=False",
    "marshal.load",
    "yaml.load(",
];

fn calls(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            calls(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "py") {
            let text = fs::read_to_string(&entry).unwrap();
            let lines = text.lines().filter(|line| UNSAFE.iter().any(|call| line.contains(call)));
            found.extend(lines.map(|line| format!("{}: {line}", entry.display())));
        }
    }
}

#[test]
fn nothing_that_the_project_ships_reads_a_pickle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    for folder in ["python/partita", "python/examples", "crates/partita/src"] {
        calls(&root.join(folder), &mut found);
    }
    assert_eq!(found, Vec::<String>::new());
}
