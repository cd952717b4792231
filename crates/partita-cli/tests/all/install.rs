//! What a new user gets: a folder to begin from, completions, the manual.

use crate::place;
use std::process::Command;

#[test]
fn a_new_folder_holds_a_plan_that_verifies() {
    for model in ["mlp", "gpt"] {
        let place = place();
        let made = place.run(&["new", "mine", "--model", model]);
        assert_eq!(made.code, Some(0), "{}", made.err);
        let verified = place.run(&["verify", "mine/config.toml", "--plan", "mine/plan.toml", "--json"]);
        assert_eq!(verified.code, Some(0), "{}{}", verified.out, verified.err);
        let script = std::fs::read_to_string(place.path("mine/run.sh")).unwrap();
        let is_valid =
            Command::new("sh").args(["-n", "mine/run.sh"]).current_dir(place.path("")).status().unwrap();
        assert!(is_valid.success(), "{script}");
        // Each of its commands is one of this build.
        for line in script.lines().filter(|line| line.starts_with("partita ")) {
            let mut words: Vec<&str> = line.split(' ').skip(1).collect();
            words.push("--help");
            assert_eq!(place.run(&words).code, Some(0), "{line}");
        }
        place.run(&["new", "mine", "--json"]).refuses("E043", &["mine"]);
    }
    place().run(&["new", "mine", "--model", "gtp", "--json"]).refuses("E005", &["gtp", "gpt"]);
}

#[test]
fn completions_and_the_manual_name_every_command() {
    let place = place();
    for shell in ["bash", "zsh", "fish"] {
        let text = place.run(&["completions", shell]).out;
        for command in ["train", "profile", "simulate", "report"] {
            assert!(text.contains(command), "{shell}: {command}");
        }
    }
    assert_eq!(place.run(&["man", "pages"]).code, Some(0));
    for page in ["partita.1", "partita-train.1", "partita-plan.1"] {
        let text = std::fs::read_to_string(place.path("pages").join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
}

#[test]
fn a_machine_is_checked_by_a_step_that_runs_on_it() {
    let place = place();
    let outcome = place.run(&["env", "--check", "--json"]);
    let found = &outcome.of("env_check")[0];
    assert_eq!((outcome.code, &found["ok"]), (Some(0), &true.into()), "{}", outcome.out);
    let checks = found["checks"].as_array().unwrap();
    let named = |name: &str| checks.iter().find(|check| check["name"] == name).unwrap();
    assert_eq!(named("a step")["verdict"], "good");
    assert_eq!(named("this folder")["verdict"], "good");
    let left = std::fs::read_dir(place.path("")).unwrap().count();
    assert_eq!(left, 1, "the text to train on is alone: the check leaves nothing behind");
    // A folder for temporary files that is none: the check says so, and what to do.
    let outcome = place.command(&["env", "--check"]).env("TMPDIR", "/no/such/folder").output().unwrap();
    let text = String::from_utf8_lossy(&outcome.stdout);
    assert_eq!(outcome.status.code(), Some(1), "{text}");
    assert!(text.contains("WRONG  temporary files") && text.contains("set TMPDIR"), "{text}");
}
