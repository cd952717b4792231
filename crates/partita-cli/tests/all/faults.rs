//! What goes wrong while a run goes on: processes that are killed or stopped, disks that are full, checkpoints that are
//! damaged. Real processes, real signals.

use crate::launch::{launch, process, run};
use partita_testkit::{Outcome, Place, newest, train_arguments};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A number of steps that no run reaches.
const ENDLESS: &str = "train.steps=100000000";

/// How soon every process of a run has ended, or started again, after one has died.
const SOON: Duration = Duration::from_secs(5);

/// A command that runs, with its lines of both outputs as they come.
struct Running {
    child: Child,
    out: Receiver<(Instant, String)>,
    err: Receiver<(Instant, String)>,
}

impl Running {
    fn start(place: &Place, arguments: &[String]) -> Running {
        Running::start_with(place, arguments, |command| command)
    }

    fn start_with(
        place: &Place,
        arguments: &[String],
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Running {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command = place.command(&arguments);
        change(&mut command);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (out, err) = (lines(child.stdout.take().unwrap()), lines(child.stderr.take().unwrap()));
        Running { child, out, err }
    }

    /// The next step that it prints, and its loss; `None` at its end.
    fn step(&self) -> Option<(u64, f64)> {
        loop {
            let (_, line) = self.out.recv().ok()?;
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["event"] == "step" {
                return Some((event["step"].as_u64().unwrap(), event["loss"].as_f64().unwrap()));
            }
        }
    }

    /// Reads until a step that is at least this one.
    fn until(&self, step: u64) {
        while self.step().expect("the run goes on").0 < step {}
    }

    /// Its exit code and the rest of its standard error.
    fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        (status.code(), self.err.iter().map(|(_, line)| line + "\n").collect())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(pipe: impl Read + Send + 'static) -> Receiver<(Instant, String)> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if send.send((Instant::now(), line)).is_err() {
                return;
            }
        }
    });
    receive
}

fn signal(name: &str, id: u32) {
    assert!(Command::new("kill").args([name, &id.to_string()]).status().unwrap().success(), "{name} {id}");
}

/// Arguments of `launch` before its command.
fn with(mut arguments: Vec<String>, flags: &[&str]) -> Vec<String> {
    arguments.splice(3..3, flags.iter().map(|flag| flag.to_string()));
    arguments
}

#[test]
fn a_process_that_is_stopped_is_told_of_and_ended_and_a_short_stop_is_not() {
    for stopped in [1, 0] {
        let place = crate::place();
        let more = ["--watchdog", "2", "--set", ENDLESS];
        let running = Running::start(&place, &launch(2, "mlp", "dp=2", &more));
        running.until(1);
        let id = process(running.child.id(), stopped).expect("the process runs");
        signal("-STOP", id);
        std::thread::sleep(Duration::from_millis(700));
        signal("-CONT", id);
        let (step, _) = running.step().unwrap();
        running.until(step + 50);
        signal("-STOP", id);
        let begin = Instant::now();
        let launcher = running.child.id();
        let (code, said) = running.end();
        // The watchdog notices soon after its limit; then the others have three seconds.
        assert!(begin.elapsed() < Duration::from_secs(2 + 3 + 3), "{:?}", begin.elapsed());
        assert_eq!(
            (code, said.matches("error[E").count()),
            (Some(2), if stopped == 1 { 1 } else { 2 }),
            "{said}"
        );
        // In a step the watchdog tells where every rank is, between two steps the control channel does.
        assert!(said.contains("error[E413]") || said.contains("error[E443]"), "{said}");
        assert!(said.contains(&format!("process {stopped} (id {id} on ")), "{said}");
        assert!(said.contains("has not run for"), "{said}");
        if said.contains("error[E413]") {
            assert!((0..2).all(|rank| said.contains(&format!("rank {rank} is at "))), "{said}");
        }
        assert!((0..2).all(|index| process(launcher, index).is_none()), "a process still runs");
    }
}

#[test]
fn a_process_that_is_stopped_is_restarted_as_one_that_died() {
    let place = crate::place();
    let more = ["--watchdog", "1", "--checkpoint-every", "20", "--set", "train.steps=400"];
    let running = Running::start(&place, &with(launch(2, "mlp", "dp=2", &more), &["--restarts", "1"]));
    running.until(100);
    signal("-STOP", process(running.child.id(), 1).expect("the process runs"));
    let (code, said) = running.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("process 1 died: restart 1 of 1 in 2 processes"), "{said}");
}

#[test]
fn the_folder_of_a_dead_launch_is_removed_by_the_next_one() {
    let place = crate::place();
    let folder = place.path("met");
    fs::create_dir(&folder).unwrap();
    let meeting_in = |more: &[&str]| {
        Running::start_with(&place, &launch(2, "mlp", "dp=2", more), |command| command.env("TMPDIR", &folder))
    };
    let mut running = meeting_in(&["--set", ENDLESS]);
    running.until(1);
    let left = || fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let [meeting] = &left()[..] else { panic!("{:?}", left()) };
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(fs::metadata(meeting).unwrap().permissions().mode() & 0o777, 0o700);
    // All of it at once, so that none of its processes can remove it.
    let launcher = running.child.id();
    let mut ids = vec![launcher.to_string()];
    ids.extend((0..2).map(|index| process(launcher, index).expect("the process runs").to_string()));
    assert!(Command::new("kill").arg("-KILL").args(ids).status().unwrap().success());
    running.child.wait().unwrap();
    // One of them may have had the time to remove it.
    fs::create_dir_all(meeting).unwrap();
    fs::write(meeting.join("left"), "behind").unwrap();
    let next = meeting_in(&["--set", "train.steps=2", "--checkpoint-dir", "next"]);
    assert_eq!(next.end().0, Some(0));
    assert_eq!(left(), Vec::<PathBuf>::new());
}

/// Trains by a line of shell that has `$0` and its arguments, in a folder of its own.
fn train_in_shell(place: &Place, shell: &[&str], more: &[&str]) -> Outcome {
    let train = train_arguments("gpt", "dp=2", more);
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).arg(env!("CARGO_BIN_EXE_partita")).args(train);
    let output = command.current_dir(place.path(".")).output().unwrap();
    Outcome {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn bytes_of(folder: &Path) -> u64 {
    fs::read_dir(folder).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn a_full_disk_ends_the_run_with_one_message_and_loses_nothing() {
    let place = crate::place();
    let more = ["--checkpoint-every", "2", "--checkpoint-keep", "1", "--checkpoint-dir", "disk/run"];
    place.train("gpt", "dp=2", &["--checkpoint-dir", "alone"]);
    let checkpoint = bytes_of(&newest(&place.path("alone")));
    fs::create_dir(place.path("disk")).unwrap();
    let refused = |outcome: &Outcome, words: &[&str]| {
        outcome.refuses("E315", words);
        // The message comes at the next step, or the one after.
        assert!(outcome.of("step").len() >= 2, "{}", outcome.out);
    };
    // A file system with room for one checkpoint and a half, where this process may mount one.
    let size = checkpoint + checkpoint / 2;
    let mount = format!("mount -t tmpfs -o size={size} none disk");
    let probe =
        Command::new("unshare").args(["-m", "sh", "-c", &mount]).current_dir(place.path(".")).output();
    if probe.is_ok_and(|probe| probe.status.success()) {
        let verify = "\"$0\" checkpoint verify disk/run --json >verified; cp -r disk/run kept; exit $code";
        let script = format!("{mount} && \"$0\" \"$@\"; code=$?; {verify}");
        let full = train_in_shell(&place, &["unshare", "-m", "sh", "-c", &script], &more);
        refused(&full, &["disk is full", "nothing is lost: disk/run/step-00000002 is complete"]);
        let verified = fs::read_to_string(place.path("verified")).unwrap();
        assert!(verified.contains("step-00000002") && !verified.contains("\"problem\""), "{verified}");
        let resumed = place.train("gpt", "dp=2", &["--resume", "kept", "--checkpoint-dir", "more"]);
        assert_eq!(
            resumed.losses(),
            place.train("gpt", "dp=2", &["--checkpoint-dir", "again"]).losses()[2..]
        );
    } else {
        eprintln!("not tested: this process may not mount a small file system");
    }
    // Files that may have 4 KiB.
    let limited = ["sh", "-c", "ulimit -f 8 && exec \"$0\" \"$@\""];
    let limited = train_in_shell(&place, &limited, &more);
    refused(&limited, &["the checkpoint was not written", "there is no earlier checkpoint"]);
}

/// The files below a folder, by their paths within it.
fn files_below(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(inner) = folders.pop() {
        for entry in fs::read_dir(inner).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.insert(path.strip_prefix(folder).unwrap().to_path_buf(), fs::read(&path).unwrap());
            }
        }
    }
    files
}

#[test]
fn a_write_that_fails_leaves_no_part_of_a_file_under_its_name() {
    let commands = [
        "report mlp --out r.html",
        "simulate mlp --mesh dp=2 --trace t.json",
        "plan mlp --devices 2 --out plan.toml",
        "plan gpt --devices 2 --tables tables",
        "timetable 1f1b --svg a.svg --csv a.csv",
        "export gpt --mesh tp=2 --for toml --out plan.toml",
        "export mlp --for safetensors --out weights.safetensors",
        "export mlp --for xla --mesh dp=2 --out step",
        "new mine",
    ];
    for command in commands {
        let arguments: Vec<&str> = command.split(' ').collect();
        let place = crate::place();
        let before = files_below(&place.path("."));
        let outcome = place.run(&arguments);
        assert_eq!(outcome.code, Some(0), "{command}: {}", outcome.err);
        let mut whole = files_below(&place.path("."));
        whole.retain(|name, _| !before.contains_key(name));
        let largest = whole.values().map(Vec::len).max().expect("it writes a file");
        // Every file may have so many blocks, of 512 or 1024 bytes.
        for blocks in [0].into_iter().chain((0..).map(|power| 1 << power)).take_while(|n| n * 1024 < largest)
        {
            let place = crate::place();
            let script = format!("ulimit -f {blocks} && exec \"$0\" \"$@\"");
            let mut limited = Command::new("sh");
            limited.args(["-c", &script, env!("CARGO_BIN_EXE_partita")]).args(&arguments);
            let run = limited.current_dir(place.path(".")).output().unwrap();
            let said = String::from_utf8_lossy(&run.stderr);
            assert_eq!(run.status.code(), Some(2), "{command} with {blocks} blocks: {said}");
            let is_named = said.contains("error[E043]") || said.contains("error[E316]");
            assert!(is_named, "{command} with {blocks} blocks: {said}");
            for (name, bytes) in files_below(&place.path(".")) {
                if before.contains_key(&name) {
                    continue;
                }
                // The names of tables have the time in them.
                let is_whole = whole.values().any(|other| *other == bytes);
                assert!(
                    is_whole,
                    "{command} with {blocks} blocks: {} has {} bytes",
                    name.display(),
                    bytes.len()
                );
            }
        }
    }
}

/// A file in the format of safetensors with the inputs of `mlp`, rows of zeros.
fn rows_of_mlp(rows: usize) -> Vec<u8> {
    let bytes = rows * 32 * 4;
    let tensor = |start: usize| {
        format!(r#"{{"dtype":"F32","shape":[{rows},32],"data_offsets":[{start},{}]}}"#, start + bytes)
    };
    let header = format!(r#"{{"inputs":{},"targets":{}}}"#, tensor(0), tensor(bytes));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; 2 * bytes]].concat()
}

#[test]
fn data_that_is_truncated_while_it_is_read_ends_the_run_after_a_save() {
    let text: Vec<u8> = b"the quick brown fox jumps over the lazy dog. ".repeat(4000);
    for (name, bytes, model) in [("data.txt", text, "gpt"), ("data.safetensors", rows_of_mlp(512), "mlp")] {
        for processes in [1, 2] {
            for kept in [0, 1 + bytes.len() / 3] {
                let place = crate::place();
                fs::write(place.path(name), &bytes).unwrap();
                let path = format!("data.path={name}");
                let more = ["--set", ENDLESS, "--set", &path, "--checkpoint-dir", "run"];
                let arguments = match processes {
                    1 => train_arguments(model, "dp=2", &more),
                    _ => launch(processes, model, "dp=2", &more),
                };
                let running = Running::start(&place, &arguments);
                running.until(3);
                fs::File::options().write(true).open(place.path(name)).unwrap().set_len(kept as u64).unwrap();
                let (code, said) = running.end();
                assert_eq!(code, Some(2), "{name} {processes} {kept}: {said}");
                let named =
                    said.contains("error[E307]") && said.contains(&format!("{kept} bytes: it was truncated"));
                assert!(named && said.contains(name) && said.contains("the state after step"), "{said}");
                assert_eq!(place.run(&["checkpoint", "verify", "run"]).code, Some(0));
                let step = newest(&place.path("run"));
                assert!(said.contains(&step.file_name().unwrap().to_string_lossy().into_owned()), "{said}");
            }
        }
    }
}

#[test]
fn a_run_whose_folder_is_removed_does_not_make_it_anew() {
    for (processes, sharded) in [(1, "false"), (2, "true")] {
        let place = crate::place();
        let more = ["--set", ENDLESS, "--set", &format!("checkpoint.sharded={sharded}")];
        let more = [&more[..], &["--checkpoint-dir", "run", "--checkpoint-every", "5"]].concat();
        let arguments = match processes {
            1 => train_arguments("mlp", "dp=2", &more),
            _ => launch(processes, "mlp", "dp=2", &more),
        };
        let running = Running::start(&place, &arguments);
        running.until(12);
        fs::rename(place.path("run"), place.path("moved")).unwrap();
        let (code, said) = running.end();
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("error[E315]"), "{said}");
        assert!(!place.path("run").exists(), "{said}");
    }
}

#[test]
fn two_runs_cannot_share_a_folder() {
    let place = crate::place();
    let more = ["--checkpoint-dir", "run", "--set", ENDLESS];
    let running = Running::start(&place, &launch(2, "mlp", "dp=2", &more));
    running.until(1);
    place.train("mlp", "dp=2", &["--checkpoint-dir", "run"]).refuses("E331", &["another run writes"]);
    let second = run(&place, &launch(2, "mlp", "dp=2", &["--checkpoint-dir", "run"]));
    second.refuses("E331", &["another run writes"]);
    // The first one did not notice.
    let (step, _) = running.step().unwrap();
    running.until(step + 10);
}

#[test]
fn without_latest_a_run_continues_from_the_newest_checkpoint_that_is_whole() {
    let place = crate::place();
    let saved = ["--checkpoint-dir", "run", "--checkpoint-every", "2", "--checkpoint-keep", "3"];
    let whole = place.train("gpt", "dp=2", &saved).losses();
    let model = |step: usize| place.path("run").join(format!("step-{step:08}")).join("model.safetensors");
    let mut bytes = fs::read(model(6)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(model(6), &bytes).unwrap();
    // As a crash of the machine may leave it.
    let half = fs::read(model(4)).unwrap();
    fs::write(model(4), &half[..half.len() / 2]).unwrap();
    let resume = |more: &[&str]| {
        place.train("gpt", "dp=2", &[&["--resume", "run", "--checkpoint-dir"], more].concat())
    };
    resume(&["one"]).refuses("E312", &["step-00000006", "continue from another checkpoint"]);
    fs::remove_file(place.path("run/latest")).unwrap();
    let resumed = resume(&["two"]);
    assert_eq!(resumed.losses(), whole[2..], "{}", resumed.err);
    for step in ["step-00000006", "step-00000004"] {
        let is_told = |note: &Value| {
            let note = note["message"].as_str().unwrap();
            note.contains("passed over") && note.contains(step) && note.contains("E312")
        };
        assert!(resumed.of("note").iter().any(is_told), "{}", resumed.out);
    }
    fs::write(model(2), &half[..9]).unwrap();
    resume(&["three"]).refuses("E312", &["step-00000006"]);
}

#[test]
fn a_folder_with_the_name_of_a_checkpoint_is_no_run() {
    let place = crate::place();
    place.train("mlp", "dp=2", &["--checkpoint-dir", "run"]);
    let convert = place.run(&["checkpoint", "convert", "run", "--out", "out/step-00000006", "--json"]);
    convert.refuses("E315", &["name of a checkpoint", "name the folder around it: out"]);
    // A run within a folder of that name, as an older version made it.
    fs::create_dir_all(place.path("out/step-00000007")).unwrap();
    fs::rename(place.path("run/step-00000006"), place.path("out/step-00000007/step-00000006")).unwrap();
    for path in ["out", "out/step-00000007"] {
        let verified = place.run(&["checkpoint", "verify", path, "--json"]);
        let problem = verified.of("checkpoints")[0]["checkpoints"][0]["problem"].to_string();
        assert!(verified.code == Some(1) && problem.contains("E311"), "{}", verified.out);
    }
    let verified = place.run(&["checkpoint", "verify", "out/step-00000007/step-00000006", "--json"]);
    assert_eq!(verified.code, Some(0), "{}", verified.err);
}

#[test]
fn a_save_in_the_background_writes_what_one_in_the_foreground_does() {
    let place = crate::place();
    for sharded in ["checkpoint.sharded=false", "checkpoint.sharded=true"] {
        for processes in [1, 2] {
            let train = |dir: &'static str, is_async: &'static str| {
                let every = ["--checkpoint-every", "1", "--checkpoint-keep", "9", "--checkpoint-dir", dir];
                let more = [&every[..], &["--set", sharded, "--set", is_async]].concat();
                match processes {
                    1 => place.train("gpt", "fsdp=2", &more).losses(),
                    _ => run(&place, &launch(processes, "gpt", "fsdp=2", &more)).losses(),
                }
            };
            let losses = train("behind", "checkpoint.async=true");
            assert_eq!(losses, train("before", "checkpoint.async=false"), "{sharded} {processes}");
            for step in 1..=losses.len() {
                let folder = |dir: &str| place.path(dir).join(format!("step-{step:08}"));
                let names = fs::read_dir(folder("before")).unwrap().map(|file| file.unwrap().file_name());
                for name in
                    names.map(|name| name.into_string().unwrap()).filter(|name| name.ends_with("tensors"))
                {
                    let bytes = |dir: &str| fs::read(folder(dir).join(&name)).unwrap();
                    assert!(bytes("behind") == bytes("before"), "{sharded} {processes}: {step} {name}");
                }
                assert!(folder("behind").join("config.toml").exists());
            }
            for dir in ["behind", "before"] {
                fs::remove_dir_all(place.path(dir)).unwrap();
            }
        }
    }
}

#[test]
fn every_process_reads_only_the_parts_that_its_ranks_hold() {
    let place = crate::place();
    for (model, mesh) in [("gpt", "fsdp=2"), ("mlp", "tp=2"), ("gpt", "dp=2")] {
        let save = ["--set", "checkpoint.sharded=true", "--checkpoint-every", "4"];
        let whole = run(&place, &launch(2, model, mesh, &[&save[..], &["--checkpoint-dir", "run"]].concat()))
            .losses();
        let folder = place.path("run/step-00000004");
        let state = fs::read(folder.join("state.json")).unwrap();
        let json: Value = serde_json::from_slice(&state).unwrap();
        // On the same mesh the ranks of process 0 hold what it wrote, and nothing of the other file.
        let tensors = json["shards"].as_object().unwrap().values();
        let parts = tensors.flat_map(|tensor| tensor["parts"].as_array().unwrap()).map(|part| &part["place"]);
        let of_first = parts.filter(|place| place["file"] == "shards-00000.safetensors");
        let own: u64 = of_first.map(|place| place["bytes"].as_u64().unwrap()).sum();
        let manifest = fs::read(folder.join("manifest.json")).unwrap();
        let files: Value = serde_json::from_slice(&manifest).unwrap();
        let files = files["files"].as_object().unwrap().iter();
        let of_tensors = files.filter(|(name, _)| name.ends_with(".safetensors"));
        let all: u64 = of_tensors.map(|(_, file)| file["bytes"].as_u64().unwrap()).sum();
        // What every process reads: the texts, and what the files of parts begin with.
        let heads = json["heads"].as_object().unwrap().values().map(|head| head["bytes"].as_u64().unwrap());
        let config = fs::metadata(folder.join("config.toml")).unwrap().len();
        let texts = (state.len() + manifest.len()) as u64 + config + heads.sum::<u64>();
        let resume = ["--resume", "run/step-00000004", "--checkpoint-dir", "more"];
        let resumed = run(&place, &launch(2, model, mesh, &resume));
        assert_eq!(resumed.losses(), whole[4..], "{model} {mesh}");
        let expected =
            format!("this process read {} bytes; the tensors of the checkpoint have {all}", own + texts);
        let is_told = |note: &Value| note["message"] == expected.as_str();
        assert!(resumed.of("note").iter().any(is_told), "{model} {mesh}: {expected}: {}", resumed.out);
        assert!(mesh == "dp=2" || own < all * 2 / 3, "{own} of {all}");
        // A part that is damaged is found by the process that reads it.
        let shards = folder.join("shards-00000.safetensors");
        let mut bytes = fs::read(&shards).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&shards, &bytes).unwrap();
        let elsewhere = ["--resume", "run/step-00000004", "--checkpoint-dir", "other"];
        run(&place, &launch(2, model, mesh, &elsewhere)).refuses("E312", &["shards-00000", "checksum"]);
        for dir in ["run", "more", "other"] {
            fs::remove_dir_all(place.path(dir)).unwrap();
        }
    }
}

/// When a process of a run is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// After some steps.
    Training,
    /// While it waits in a collective for the other process, which is stopped.
    Collective,
    /// While a checkpoint is written.
    Save,
}

/// Numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }
}

/// Whether a checkpoint is being written to a folder.
fn is_saving(dir: &Path) -> bool {
    let names = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names
        .into_iter()
        .any(|name| name.to_string_lossy().starts_with("step-") && name.to_string_lossy().contains(".tmp-"))
}

/// The id of a process of a launcher, which may be about to start it again.
fn appears(launcher: u32, index: usize) -> u32 {
    let begin = Instant::now();
    loop {
        if let Some(id) = process(launcher, index) {
            return id;
        }
        assert!(begin.elapsed() < 2 * SOON, "process {index} does not start");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kills processes of a run of `count` so many times; the run goes on to the losses of one that nobody disturbed.
fn kill_often(times: u64, seed: u64, count: usize, sharded: &str) {
    let place = crate::place();
    let mesh = &format!("dp={count}");
    let mut numbers = Numbers(seed);
    let saves = ["--checkpoint-every", "10", "--set", sharded, "--set", ENDLESS, "--checkpoint-dir", "run"];
    let arguments = with(launch(count, "mlp", mesh, &saves), &["--restarts", &times.to_string()]);
    let running = Running::start(&place, &arguments);
    let mut losses: Vec<Option<f64>> = Vec::new();
    let mut seen = |(step, loss): (u64, f64)| {
        let place = step as usize - 1;
        losses.resize(losses.len().max(place + 1), None);
        let before = losses[place].replace(loss);
        assert!(before.is_none_or(|before| before == loss), "another loss in step {step} after a restart");
    };
    let mut slowest = Duration::ZERO;
    for kill in 0..times {
        let moment = [Moment::Training, Moment::Collective, Moment::Save][numbers.below(3) as usize];
        let victim = numbers.below(count as u64) as usize;
        for _ in 0..=numbers.below(30) {
            seen(running.step().unwrap_or_else(|| panic!("seed {seed}, kill {kill}: the run has ended")));
        }
        let id = appears(running.child.id(), victim);
        let other = appears(running.child.id(), (victim + 1) % count);
        match moment {
            Moment::Training => std::thread::sleep(Duration::from_micros(numbers.below(3000))),
            Moment::Collective => {
                signal("-STOP", other);
                std::thread::sleep(Duration::from_millis(20));
            }
            Moment::Save => {
                let begin = Instant::now();
                while !is_saving(&place.path("run")) && begin.elapsed() < SOON {}
            }
        }
        let begin = Instant::now();
        signal("-KILL", id);
        if let Moment::Collective = moment {
            signal("-CONT", other);
        }
        let restart = loop {
            let Ok((at, line)) = running.err.recv_timeout(2 * SOON) else {
                panic!("seed {seed}, kill {kill}: {moment:?} of process {victim}: nothing happens");
            };
            if line.contains(&format!("process {victim} died: restart {} of {times}", kill + 1)) {
                break at.saturating_duration_since(begin);
            }
            assert!(!line.contains("error["), "seed {seed}, kill {kill}: {line}");
        };
        assert!(restart < SOON, "seed {seed}, kill {kill}: {moment:?} of process {victim} took {restart:?}");
        slowest = slowest.max(restart);
    }
    for _ in 0..30 {
        seen(running.step().expect("the run goes on"));
    }
    signal("-TERM", running.child.id());
    while let Some(step) = running.step() {
        seen(step);
    }
    let (code, said) = running.end();
    assert_eq!(code, Some(130), "{said}");
    println!(
        "{times} kills of {count} processes, seed {seed}: {} steps, the slowest end took {slowest:?}",
        losses.len()
    );
    // The folder is in order: checkpoints that are whole, and no remains.
    assert!(!is_saving(&place.path("run")));
    let verified = place.run(&["checkpoint", "verify", "run", "--json"]);
    assert_eq!(verified.code, Some(0), "{}", verified.out);
    // Nobody disturbs this one.
    let alone = Running::start(&place, &train_arguments("mlp", mesh, &[&saves[..7], &["alone"]].concat()));
    for expected in losses {
        let (step, loss) = alone.step().unwrap();
        assert!(expected.is_none_or(|expected| expected == loss), "seed {seed}: another loss in step {step}");
    }
}

#[test]
fn a_run_that_is_killed_ten_times_has_the_losses_of_one_that_is_not() {
    kill_often(5, 1, 2, "checkpoint.sharded=false");
    kill_often(5, 2, 3, "checkpoint.sharded=true");
}

/// The long form: `cargo test --workspace --test all -- --ignored two_hundred`.
#[test]
#[ignore = "takes minutes"]
fn a_run_that_is_killed_two_hundred_times_has_the_losses_of_one_that_is_not() {
    for seed in 10..18 {
        let sharded = ["checkpoint.sharded=false", "checkpoint.sharded=true"][seed as usize % 2];
        kill_often(25, seed, 2 + seed as usize % 3, sharded);
    }
}
