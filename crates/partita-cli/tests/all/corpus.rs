//! The bundled text: its bytes are pinned, and can be made anew from the history of this repository.

use partita::feeds::{BUNDLED_CORPUS, bundled_corpus};
use partita_runtime::data::Corpus;
use partita_testkit::{Place, newest, train_arguments};
use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

/// The text is the Rust sources, documents and TOML files of this commit.
const COMMIT: &str = "657ddec";

const EXTENSIONS: &[&str] = &["md", "rs", "toml"];

/// Its length and what `sha256sum` prints.
const BYTES: u64 = 3_786_429;
const DIGEST: &str = "sha256:fe49294dd1d5f2ed460c6ffb6b996b24d32fa4bb5f132d10110d12f18bd34822";

/// As in the README's first run: 5 % held out, windows of 64 bytes and the byte that follows.
fn parts() -> (Vec<u8>, Vec<u8>) {
    let (train, held_out) = bundled_corpus().split(Corpus::VALIDATION_FRACTION, 64).unwrap();
    (train.to_vec().unwrap(), held_out.to_vec().unwrap())
}

#[test]
fn the_bundled_text_is_the_one_that_its_name_stands_for() {
    let corpus = bundled_corpus();
    assert_eq!((corpus.whole().corpus_name(), corpus.report().bytes), ("partita-corpus-1", BYTES));
    assert_eq!(corpus.whole().corpus_digest(), DIGEST);
}

/// Trains without `data.path` for some steps, in a process that knows no home folder.
fn train_on_the_bundled_text(place: &Place, more: &[&str]) -> partita_testkit::Outcome {
    let all = train_arguments("gpt", "tp=2", more);
    let at = all.iter().position(|item| item.starts_with("data.path=")).expect("it is among the settings");
    let kept: Vec<&str> = all[..at - 1].iter().chain(&all[at + 1..]).map(String::as_str).collect();
    place.run_with(&kept, |command| command.env_remove("HOME").env_remove("CARGO_HOME"))
}

#[test]
fn a_run_without_a_path_names_its_text_and_goes_on_with_that_text_only() {
    let place = crate::place();
    let whole = train_on_the_bundled_text(&place, &["--checkpoint-dir", "whole", "--steps", "4"]);
    let described = "partita-corpus-1, 3786429 bytes, sha256:fe49294dd1d5";
    assert!(whole.of("note").iter().any(|note| note["message"] == described), "{}", whole.out);

    let fixed = ["--set", "optimizer.decay_steps=4"];
    let part = ["--checkpoint-dir", "part", "--steps"];
    let first = train_on_the_bundled_text(&place, &[&fixed[..], &part, &["2"]].concat()).losses();
    let rest = train_on_the_bundled_text(&place, &[&fixed[..], &part, &["4", "--resume"]].concat()).losses();
    assert_eq!([first, rest].concat(), whole.losses());

    let state = std::fs::read_to_string(newest(&place.path("part")).join("state.json")).unwrap();
    assert!(state.contains(BUNDLED_CORPUS) && state.contains(DIGEST), "{state}");
    place
        .train("gpt", "tp=2", &["--resume", "part"])
        .refuses("E304", &["another text", "partita-corpus-1, sha256:fe49294dd1d5", "text.txt, sha256:"]);
}

#[test]
fn keys_that_choose_from_a_path_need_one() {
    let place = crate::place();
    for (setting, key) in [("data.extensions=[\"rs\"]", "extensions"), ("data.max_bytes=1000", "max_bytes")] {
        place
            .run(&["train", "gpt", "--json", "--set", setting])
            .refuses("E340", &[&format!("`data.{key}`"), "partita-corpus-1", "--data PATH"]);
    }
}

/// Whole files are held out, but for the one that is cut. What they share with the rest are lines that all manifests
/// and many tests begin with.
#[test]
fn held_out_text_is_not_in_the_training_text() {
    let (train, held_out) = parts();
    let seen: HashSet<&[u8]> = train.windows(65).collect();
    let windows = held_out.windows(65).count();
    let known = held_out.windows(65).filter(|window| seen.contains(window)).count();
    assert!(known * 25 < windows, "{known} of {windows} windows");
}

/// The held-out text is of the same kinds, in about the same shares.
#[test]
fn held_out_text_resembles_the_training_text() {
    let share = |text: &[u8], word: &str| {
        let count = text.windows(word.len()).filter(|window| *window == word.as_bytes()).count();
        count as f64 * 1e4 / text.len() as f64
    };
    let (train, held_out) = parts();
    for word in ["fn ", "///", "let ", "#[test]", "assert", "the "] {
        let (train, held_out) = (share(&train, word), share(&held_out, word));
        println!("{word:>8} {train:6.2} {held_out:6.2} in 10,000 bytes");
        assert!((0.5..2.0).contains(&(held_out / train)), "{word}: {held_out} and {train} in 10,000 bytes");
    }
}

fn git(arguments: &[&str]) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("git").args(arguments).current_dir(folder).output().expect("git starts");
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The files of [`COMMIT`] one after another. Sorted by path, file i is placed by the fraction of i times the golden
/// ratio (Knuth, The Art of Computer Programming 6.4, Fibonacci hashing): any part of the end of the text then holds
/// files from evenly spaced places of the tree, so what is held out resembles the rest, whatever its size.
fn text_from_history() -> Vec<u8> {
    let listing = git(&["ls-tree", "-r", "--full-tree", "--name-only", COMMIT]);
    let listing = String::from_utf8(listing).expect("paths are text");
    let is_wanted =
        |path: &&str| path.rsplit_once('.').is_some_and(|(_, extension)| EXTENSIONS.contains(&extension));
    let mut paths: Vec<&str> = listing.lines().filter(is_wanted).collect();
    paths.sort_unstable();
    let mut placed: Vec<(u32, &str)> =
        (0u32..).zip(paths).map(|(i, path)| (i.wrapping_mul(0x9e37_79b1), path)).collect();
    placed.sort_unstable();
    placed.iter().flat_map(|(_, path)| git(&["cat-file", "blob", &format!("{COMMIT}:{path}")])).collect()
}

/// `cargo test -p partita-cli --test all corpus -- --ignored --nocapture` writes the compressed file below `target` and says
/// where.
#[test]
#[ignore = "needs git and the history of the repository"]
fn the_bundled_text_is_made_from_the_history() {
    let text = text_from_history();
    let compressed = miniz_oxide::deflate::compress_to_vec_zlib(&text, 10);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{BUNDLED_CORPUS}.zlib"));
    std::fs::write(&path, &compressed).expect("the folder can be written");
    println!("{}: {} bytes, {} before compression", path.display(), compressed.len(), text.len());
    assert!(text == bundled_corpus().whole().to_vec().unwrap(), "another text");
}
