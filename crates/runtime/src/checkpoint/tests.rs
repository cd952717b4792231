//! Tests of checkpoints: contents, crashes at every operation, full disks, damage, and folders
//! shared by runs.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use partita_comm::World;
use proptest::prelude::*;

use super::*;

pub(super) fn checkpoint(step: u64) -> Checkpoint {
    let tensor = |name: &str, value: f32| {
        let bytes = [value, 2.0 * value, -value].iter().flat_map(|x| x.to_le_bytes()).collect();
        (name.to_string(), TensorData::new(DType::F32, vec![3, 1], bytes))
    };
    let value = step as f32;
    Checkpoint {
        tensors: [
            tensor("layers.0.weight", value),
            tensor("head.weight", value + 0.5),
            tensor("optimizer.m.layers.0.weight", value * 0.1),
        ]
        .into_iter()
        .collect(),
        step,
        meta: [("seed", "42"), ("run", "one")].map(|(key, value)| (key.into(), value.into())).into(),
        beside: BTreeMap::new(),
    }
}

/// A file system that fails after a number of operations or bytes.
#[derive(Default)]
struct Faulty {
    /// The process dies in this operation, counted from 0; nothing works afterwards.
    dies_at: Option<usize>,
    /// The free space in bytes.
    room: Option<Cell<usize>>,
    done: Cell<usize>,
    log: RefCell<Vec<String>>,
}

impl Faulty {
    fn operation(&self, what: &str, path: &Path) -> io::Result<bool> {
        let now = self.done.replace(self.done.get() + 1);
        if self.dies_at.is_some_and(|at| now > at) {
            return Err(io::Error::other("dead"));
        }
        let name = path.file_name().unwrap().to_string_lossy();
        self.log.borrow_mut().push(format!("{what} {}", name.split(UNFINISHED).next().unwrap()));
        Ok(self.dies_at == Some(now))
    }

    /// Runs a whole operation, or only half of it if the process dies in it.
    fn run<T>(
        &self,
        what: &str,
        path: &Path,
        whole: impl FnOnce() -> io::Result<T>,
        half: impl FnOnce(),
    ) -> io::Result<T> {
        if self.operation(what, path)? {
            half();
            return Err(io::Error::other("dead"));
        }
        whole()
    }
}

impl Storage for Faulty {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.run("create", path, || FileStorage.create_folder(path), || ())
    }
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        if let Some(room) = &self.room {
            let fits = bytes.len().min(room.get());
            room.set(room.get() - fits);
            if fits < bytes.len() {
                fs::write(path, &bytes[..fits])?;
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
        }
        let half = || drop(fs::write(path, &bytes[..bytes.len() / 2]));
        self.run("write", path, || FileStorage.write(path, bytes), half)
    }
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.run("sync", path, || FileStorage.sync_folder(path), || ())
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.run("rename to", to, || FileStorage.rename(from, to), || ())
    }
    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        FileStorage.list(folder)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        let half = || {
            if let Ok(names) = FileStorage.list(path) {
                let _ = fs::remove_file(path.join(&names[0]));
            }
        };
        self.run("remove", path, || FileStorage.remove(path), half)
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        FileStorage.read(path)
    }
}

/// The names in a folder without the lock file.
fn names(dir: &Path) -> Vec<String> {
    let mut names = FileStorage.list(dir).unwrap();
    names.retain(|name| name != "lock");
    names
}

/// Saves to the folder of the checkpoint's run, which keeps `keep` checkpoints.
pub(super) fn save(storage: &dyn Storage, dir: &Path, saved: &Checkpoint, keep: usize) -> Result<PathBuf> {
    RunFolder::reopen(dir, &saved.meta, keep)?.save(storage, saved.clone())
}

fn latest_checkpoint(dir: &Path) -> Option<Checkpoint> {
    latest(dir).unwrap().map(|path| load(&path).unwrap())
}

#[test]
fn every_element_type_comes_back_bit_for_bit_and_in_order() {
    let mut saved = Checkpoint { step: 7, ..Checkpoint::default() };
    for (i, dtype) in DType::ALL.into_iter().enumerate() {
        let fill = |count: usize| (0..count * dtype.size_bytes()).map(|b| (b * 37 + i) as u8).collect();
        saved.tensors.insert(format!("z{}.{dtype}", 20 - i), TensorData::new(dtype, vec![2, 3], fill(6)));
        saved.tensors.insert(format!("optimizer.m.{dtype}"), TensorData::new(dtype, vec![], fill(1)));
    }
    saved.tensors.insert("empty".into(), TensorData::new(DType::F32, vec![0, 4], vec![]));
    saved.meta.insert("run".into(), "one".into());
    saved.meta.insert("config".into(), "width = 3\n\"quoted\" \u{e9}".into());
    let dir = tempfile::tempdir().unwrap();
    let path = save(&FileStorage, dir.path(), &saved, 2).unwrap();
    assert_eq!(path, dir.path().join("step-00000007"));
    let loaded = load(&path).unwrap();
    assert_eq!(loaded, saved);
    assert!(loaded.tensors.keys().eq(saved.tensors.keys()));
    assert_eq!(load(dir.path()).unwrap(), saved);
}

#[test]
fn the_model_file_is_plain_safetensors_with_untouched_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(&FileStorage, dir.path(), &checkpoint(3), 1).unwrap();
    let bytes = fs::read(path.join(MODEL_FILE)).unwrap();
    // Read by the format's definition: length of the header, JSON, data.
    let header_bytes = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    assert_eq!(header_bytes % 8, 0);
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header_bytes]).unwrap();
    let mut keys: Vec<&String> = header.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(keys, ["head.weight", "layers.0.weight"]);
    let entry = &header["layers.0.weight"];
    assert_eq!((entry["dtype"].as_str(), entry["shape"].to_string()), (Some("F32"), "[3,1]".to_string()));
    let start = 8 + header_bytes + entry["data_offsets"][0].as_u64().unwrap() as usize;
    assert_eq!(bytes[start..start + 4], 3f32.to_le_bytes());
    let weights = import_weights(&path.join(MODEL_FILE)).unwrap();
    assert_eq!(weights["head.weight"], checkpoint(3).tensors["head.weight"]);
}

#[test]
fn a_kill_at_any_operation_leaves_a_whole_checkpoint() {
    let mut survived = [false; 2];
    for dies_at in 0.. {
        let dir = tempfile::tempdir().unwrap();
        save(&FileStorage, dir.path(), &checkpoint(1), 2).unwrap();
        save(&FileStorage, dir.path(), &checkpoint(2), 2).unwrap();
        let storage = Faulty { dies_at: Some(dies_at), ..Faulty::default() };
        let result = save(&storage, dir.path(), &checkpoint(3), 1);
        let found = latest_checkpoint(dir.path()).expect("one was there before");
        assert!(found == checkpoint(2) || found == checkpoint(3), "killed in operation {dies_at}");
        survived[(found.step - 2) as usize] = true;
        if result.is_ok() {
            assert_eq!(found, checkpoint(3));
        }
        for path in list(dir.path()).unwrap() {
            load(&path).expect("no half-written or half-removed folder carries a step's name");
        }
        // The next save cleans up.
        save(&FileStorage, dir.path(), &checkpoint(4), 1).unwrap();
        assert_eq!(latest_checkpoint(dir.path()), Some(checkpoint(4)));
        assert_eq!(names(dir.path()), ["latest", "step-00000004"]);
        if storage.done.get() <= dies_at {
            assert!(dies_at >= 13, "create, 4 writes, 2 folder syncs, 2 renames, .. were all reached");
            break;
        }
    }
    assert_eq!(survived, [true, true]);
}

#[test]
fn a_kill_during_the_first_save_leaves_nothing_or_all() {
    for dies_at in 0..13 {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let storage = Faulty { dies_at: Some(dies_at), ..Faulty::default() };
        let _ = save(&storage, &run, &checkpoint(1), 1);
        assert!(latest_checkpoint(&run).is_none_or(|found| found == checkpoint(1)), "operation {dies_at}");
    }
}

#[test]
fn files_are_on_the_disk_before_they_are_named_and_named_before_announced() {
    let dir = tempfile::tempdir().unwrap();
    let storage = Faulty::default();
    save(&storage, dir.path(), &checkpoint(5), 1).unwrap();
    let run = dir.path().file_name().unwrap().to_string_lossy();
    let expected = [
        "create step-00000005".to_string(),
        "write model.safetensors".to_string(),
        "write optimizer.safetensors".to_string(),
        "write state.json".to_string(),
        "write manifest.json".to_string(),
        "sync step-00000005".to_string(),
        "rename to step-00000005".to_string(),
        format!("sync {}", run.split(UNFINISHED).next().unwrap()),
        "write latest".to_string(),
        "rename to latest".to_string(),
    ];
    assert_eq!(storage.log.borrow()[..10], expected);
}

#[test]
fn a_full_disk_loses_nothing_and_says_so() {
    let whole: usize = {
        let dir = tempfile::tempdir().unwrap();
        let path = save(&FileStorage, dir.path(), &checkpoint(2), 1).unwrap();
        names(&path).iter().map(|n| fs::metadata(path.join(n)).unwrap().len() as usize).sum()
    };
    for room in (0..whole).step_by(17) {
        let dir = tempfile::tempdir().unwrap();
        save(&FileStorage, dir.path(), &checkpoint(1), 1).unwrap();
        let storage = Faulty { room: Some(Cell::new(room)), ..Faulty::default() };
        let error = save(&storage, dir.path(), &checkpoint(2), 1).unwrap_err();
        assert_eq!(error.code, "E315");
        assert!(error.message.contains("full") && error.notes[0].contains("step-00000001"), "{error}");
        assert_eq!(latest_checkpoint(dir.path()), Some(checkpoint(1)));
        assert_eq!(names(dir.path()), ["latest", "step-00000001"], "room is given back");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("run"), "a file where the folder should be").unwrap();
    let error = save(&FileStorage, &dir.path().join("run"), &checkpoint(1), 1).unwrap_err();
    assert_eq!((error.code, error.found.as_deref()), ("E315", Some("a file of this name")));
    let storage = Faulty { room: Some(Cell::new(9)), ..Faulty::default() };
    let error = save(&storage, &dir.path().join("new"), &checkpoint(1), 1).unwrap_err();
    assert_eq!((error.code, error.notes[0].as_str()), ("E315", "there is no earlier checkpoint"));
}

#[test]
fn the_newest_are_kept_and_a_step_can_be_saved_again() {
    let dir = tempfile::tempdir().unwrap();
    for step in [1, 2, 10, 3] {
        save(&FileStorage, dir.path(), &checkpoint(step), 2).unwrap();
    }
    // Step 3 was saved last: a run that went back.
    assert_eq!(names(dir.path()), ["latest", "step-00000003", "step-00000010"]);
    assert_eq!(latest_checkpoint(dir.path()), Some(checkpoint(3)));
    let mut again = checkpoint(3);
    again.meta.insert("note".into(), "again".into());
    let path = save(&FileStorage, dir.path(), &again, 1).unwrap();
    assert_eq!(names(dir.path()), ["latest", "step-00000003.1"]);
    assert_eq!(load(&path).unwrap(), again);
    // An invalid pointer falls back to the highest step.
    fs::write(dir.path().join(LATEST_FILE), "step-000").unwrap();
    assert_eq!(latest_checkpoint(dir.path()), Some(again));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_file_cut_anywhere_is_named_with_its_sizes(file in 0usize..4, share in 0.0..1.0f64) {
        let dir = tempfile::tempdir().unwrap();
        save(&FileStorage, dir.path(), &checkpoint(1), 2).unwrap();
        let path = save(&FileStorage, dir.path(), &checkpoint(2), 2).unwrap();
        let name = [MODEL_FILE, OPTIMIZER_FILE, STATE_FILE, MANIFEST_FILE][file];
        let bytes = fs::read(path.join(name)).unwrap();
        let length = (bytes.len() as f64 * share) as usize;
        fs::write(path.join(name), &bytes[..length]).unwrap();
        let error = load(&path).unwrap_err();
        prop_assert_eq!(error.code, "E312");
        prop_assert!(error.at.as_ref().unwrap().ends_with(name));
        let found = format!("{length} bytes");
        prop_assert!(error.found.as_ref().unwrap().starts_with(&found), "{}", error);
        if name != MANIFEST_FILE {
            let expected = format!("{} bytes", bytes.len());
            prop_assert_eq!(error.expected.as_deref(), Some(expected.as_str()));
        }
        prop_assert!(error.notes[0].contains("step-00000001"));
    }

    #[test]
    fn one_wrong_byte_is_noticed(place in 0.0..1.0f64, flip in 1u8..) {
        let dir = tempfile::tempdir().unwrap();
        let path = save(&FileStorage, dir.path(), &checkpoint(2), 2).unwrap().join(MODEL_FILE);
        let mut bytes = fs::read(&path).unwrap();
        let place = (bytes.len() as f64 * place) as usize;
        bytes[place] ^= flip;
        fs::write(&path, bytes).unwrap();
        prop_assert_eq!(load(dir.path()).unwrap_err().code, "E312");
    }
}

#[test]
fn what_is_not_a_checkpoint_is_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(latest(&dir.path().join("nowhere")).unwrap(), None);
    let path = save(&FileStorage, dir.path(), &checkpoint(2), 1).unwrap();
    let error = load(&dir.path().join("step-00000009")).unwrap_err();
    assert_eq!(error.code, "E311");
    assert!(error.notes[0].contains("step-00000002"), "{error}");
    fs::remove_file(path.join(MODEL_FILE)).unwrap();
    assert_eq!(load(&path).unwrap_err().code, "E312");

    fs::remove_file(path.join(STATE_FILE)).unwrap();
    fs::remove_file(path.join(MANIFEST_FILE)).unwrap();
    for foreign in [path.clone(), path.join(OPTIMIZER_FILE)] {
        let error = load(&foreign).unwrap_err();
        assert_eq!(error.code, "E313");
        assert!(error.help.as_ref().unwrap().contains("import"), "{error}");
    }
    assert!(import_weights(&path).unwrap().contains_key("optimizer.m.layers.0.weight"));
    let header = br#"{"w":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}      "#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[1, 2]].concat();
    let other: PathBuf = dir.path().join("other.safetensors");
    fs::write(&other, bytes).unwrap();
    assert_eq!(import_weights(&other).unwrap_err().code, "E313");
    assert_eq!(import_weights(&dir.path().join("none")).unwrap_err().code, "E311");
}

#[test]
fn names_and_shapes_that_differ_are_listed() {
    let saved = checkpoint(1);
    let mut expected: Vec<(String, DType, Vec<usize>)> =
        saved.tensors.iter().map(|(name, t)| (name.clone(), t.dtype, t.shape.clone())).collect();
    assert!(compare(&expected, &saved).is_ok());
    expected[0].0 = "layers.0.weights".into();
    expected[1].2 = vec![1, 3];
    expected[2].1 = DType::BF16;
    let error = compare(&expected, &saved).unwrap_err();
    assert_eq!(error.code, "E314");
    assert_eq!(error.found.as_deref(), Some("3 tensors: 1 missing, 1 extra, 2 different"));
    assert_eq!(
        error.notes,
        [
            "missing:\nlayers.0.weights: f32[3, 1]  (did you mean `layers.0.weight`?)",
            "different:\nhead.weight: expected f32[1, 3], found f32[3, 1]\noptimizer.m.layers.0.weight: expected bf16[3, 1], found f32[3, 1]",
            "extra:\nlayers.0.weight: f32[3, 1]",
        ]
    );
}

/// Steps with folders in a run's folder.
fn steps(dir: &Path) -> Vec<u64> {
    list(dir).unwrap().iter().map(|path| load(path).unwrap().step).collect()
}

#[test]
fn a_run_has_a_folder_of_its_own_and_removes_only_what_it_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let first = RunFolder::create(dir.path(), 2).unwrap();
    for step in 1..=3 {
        first.save(&FileStorage, Checkpoint { meta: BTreeMap::new(), ..checkpoint(step) }).unwrap();
    }
    assert_eq!(steps(dir.path()), [2, 3]);
    // While it writes, no other run may; afterwards its checkpoints keep other runs away.
    assert_eq!(RunFolder::create(dir.path(), 1).unwrap_err().code, "E330");
    assert_eq!(RunFolder::reopen(dir.path(), &checkpoint(3).meta, 1).unwrap_err().code, "E331");
    drop(first);
    let error = RunFolder::create(dir.path(), 1).unwrap_err();
    assert_eq!((error.code, error.found.as_deref()), ("E330", Some("2 checkpoints, up to step-00000003")));
    assert_eq!(steps(dir.path()), [2, 3]);

    // A resumed run owns its earlier checkpoints, and nothing else in the folder.
    fs::write(dir.path().join("notes.tmp-7"), "mine").unwrap();
    fs::create_dir(dir.path().join("step-00000009.tmp-7")).unwrap();
    save(&FileStorage, &dir.path().join("other"), &checkpoint(1), 1).unwrap();
    fs::rename(dir.path().join("other/step-00000001"), dir.path().join("step-00000001")).unwrap();
    // A checkpoint without a run name belongs to no run.
    save::write(&FileStorage, dir.path(), &Checkpoint { meta: BTreeMap::new(), ..checkpoint(0) }, 1).unwrap();
    fs::write(dir.path().join(LATEST_FILE), "step-00000003").unwrap();
    let resumed = RunFolder::reopen(dir.path(), &load(dir.path()).unwrap().meta, 1).unwrap();
    resumed.save(&FileStorage, checkpoint(4)).unwrap();
    assert_eq!(steps(dir.path()), [0, 1, 4]);
    let kept = ["latest", "notes.tmp-7", "other", "step-00000000", "step-00000001", "step-00000004"];
    assert_eq!(names(dir.path()), kept);
}

#[test]
fn a_new_run_in_the_default_place_takes_the_next_number_and_the_newest_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("runs/gpt");
    assert_eq!(newest_run(&base).unwrap(), None);
    let paths: Vec<PathBuf> = (1..=3)
        .map(|step| {
            let run = RunFolder::create_numbered(&base, 1).unwrap();
            run.save(&FileStorage, checkpoint(step)).unwrap();
            run.path().to_path_buf()
        })
        .collect();
    assert_eq!(paths, ["runs/gpt", "runs/gpt-2", "runs/gpt-3"].map(|name| dir.path().join(name)));
    assert_eq!(newest_run(&base).unwrap().as_ref(), Some(&paths[2]));
    // A folder without a checkpoint is free unless another run writes there.
    let fourth = RunFolder::create_numbered(&base, 1).unwrap();
    let fifth = RunFolder::create_numbered(&base, 1).unwrap();
    assert_eq!([fourth.path(), fifth.path()], ["runs/gpt-4", "runs/gpt-5"].map(|name| dir.path().join(name)));
    drop(fourth);
    assert!(RunFolder::create_numbered(&base, 1).unwrap().path().ends_with("gpt-4"));
    // Not the highest number, but the last one that was opened, whatever the clock said meanwhile.
    let second = load(&paths[1]).unwrap();
    RunFolder::reopen(&paths[1], &second.meta, 1).unwrap().save(&FileStorage, checkpoint(7)).unwrap();
    assert_eq!(newest_run(&base).unwrap().as_ref(), Some(&paths[1]));
    // Files of the others from the future.
    for other in [&paths[0], &paths[2]] {
        let state =
            fs::File::options().write(true).open(latest(other).unwrap().unwrap().join(STATE_FILE)).unwrap();
        state.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(1 << 20)).unwrap();
    }
    assert_eq!(newest_run(&base).unwrap().as_ref(), Some(&paths[1]));
    fs::create_dir(dir.path().join("runs/gpt-mine")).unwrap();
    assert_eq!(newest_run(&base).unwrap().as_ref(), Some(&paths[1]));
}

#[test]
fn a_path_leads_to_a_step_and_its_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(&FileStorage, dir.path(), &checkpoint(2), 1).unwrap();
    assert_eq!(find(dir.path()).unwrap(), path);
    assert_eq!(find(&path).unwrap(), path);
    assert_eq!(run_folder(&path), Some(dir.path()));
    assert_eq!(run_folder(Path::new("step-00000002")), Some(Path::new(".")));
    assert_eq!(run_folder(&dir.path().join("copy")), None);
    assert_eq!(find(&dir.path().join("nowhere")).unwrap(), dir.path().join("nowhere"));
}

#[test]
fn the_newest_whole_checkpoint_is_found_and_what_was_passed_over_is_told() {
    let dir = tempfile::tempdir().unwrap();
    assert!(newest_good(dir.path()).unwrap().is_none());
    let paths = [1, 2, 3].map(|step| save(&FileStorage, dir.path(), &checkpoint(step), 3).unwrap());
    let found = |found: Good| (found.path, found.passed.iter().map(|error| error.code).collect::<Vec<_>>());
    let newest = || newest_good(dir.path()).map(|good| found(good.unwrap()));
    let chosen = || find_good(dir.path()).map(found);
    assert_eq!(newest().unwrap(), (paths[2].clone(), vec![]));
    // `latest` names another one.
    fs::write(dir.path().join(LATEST_FILE), "step-00000002").unwrap();
    assert_eq!(newest().unwrap(), (paths[1].clone(), vec![]));
    fs::write(paths[1].join(STATE_FILE), "{}").unwrap();
    assert_eq!(newest().unwrap(), (paths[2].clone(), vec!["E312"]));
    assert_eq!(chosen().unwrap(), (paths[1].clone(), vec![]), "what `latest` names is not passed over");
    fs::write(paths[2].join(MODEL_FILE), "half").unwrap();
    fs::write(dir.path().join(LATEST_FILE), "step-00000009").unwrap();
    assert_eq!(chosen().unwrap(), (paths[0].clone(), vec!["E312"; 2]));
    fs::remove_file(paths[0].join(STATE_FILE)).unwrap();
    assert_eq!(chosen().unwrap_err().code, "E312");
    assert_eq!(found(find_good(&paths[1]).unwrap()), (paths[1].clone(), vec![]), "a checkpoint by its name");
}

/// A disk that waits for a message before each write; the message says whether there is room.
struct Slow {
    go: Mutex<Receiver<bool>>,
}

impl Storage for Slow {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        FileStorage.create_folder(path)
    }
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        match self.go.lock().unwrap().recv() {
            Ok(false) => Err(io::Error::from(io::ErrorKind::StorageFull)),
            _ => FileStorage.write(path, bytes),
        }
    }
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        FileStorage.sync_folder(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        FileStorage.rename(from, to)
    }
    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        FileStorage.list(folder)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        FileStorage.remove(path)
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        FileStorage.read(path)
    }
}

/// The parts of the checkpoint of a step, as if two ranks had them: rows 0, and rows 1 and 2.
pub(super) fn shards(step: u64) -> Vec<Shard> {
    let of = |(name, whole): (&String, &TensorData)| {
        [(0, 1), (1, 3)].map(|(start, end)| Shard {
            name: name.clone(),
            shape: whole.shape.clone(),
            offset: vec![start, 0],
            part: TensorData::new(DType::F32, vec![end - start, 1], whole.bytes[4 * start..4 * end].to_vec()),
        })
    };
    checkpoint(step).tensors.iter().flat_map(of).collect()
}

#[test]
fn a_checkpoint_is_written_while_its_run_goes_on() {
    let world = World::in_process(1, vec![]).unwrap();
    for of_shards in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let folder = Arc::new(RunFolder::reopen(dir.path(), &checkpoint(1).meta, 2).unwrap());
        let begin = |step: u64| {
            let (go, gone) = channel();
            let storage = Arc::new(Slow { go: Mutex::new(gone) });
            let saved = Checkpoint { beside: [("notes".into(), "mine".into())].into(), ..checkpoint(step) };
            let saved = if of_shards { Checkpoint { tensors: IndexMap::new(), ..saved } } else { saved };
            let shards = of_shards.then(|| shards(step));
            (Saving::begin(Some(&folder), &world, storage, saved, shards).unwrap(), go)
        };
        let (saving, go) = begin(1);
        assert!(!saving.is_written());
        assert_eq!(list(dir.path()).unwrap(), [] as [PathBuf; 0]);
        // What is not sent is as good as sent once the sender is gone.
        drop(go);
        let path = saving.finish(&world).unwrap();
        assert_eq!(load(&path).unwrap(), checkpoint(1));
        assert_eq!(fs::read_to_string(path.join("notes")).unwrap(), "mine");

        let (saving, go) = begin(2);
        go.send(false).unwrap();
        drop(go);
        let error = saving.finish(&world).unwrap_err();
        assert_eq!(error.code, "E315", "{error}");
        assert_eq!(latest_checkpoint(dir.path()), Some(checkpoint(1)));
        assert_eq!(names(dir.path()), ["latest", "step-00000001"]);

        // A run that ends without asking has written all the same, if it writes alone.
        let (saving, go) = begin(3);
        drop(go);
        drop(saving);
        assert_eq!(latest_checkpoint(dir.path()).unwrap().step, if of_shards { 1 } else { 3 });
    }
}

#[test]
fn parts_are_read_alone_and_what_an_index_claims_is_checked() {
    let (dir, world) = (tempfile::tempdir().unwrap(), World::in_process(1, vec![]).unwrap());
    let folder = Arc::new(RunFolder::create(dir.path(), 1).unwrap());
    let begin =
        Saving::begin(Some(&folder), &world, Arc::new(FileStorage), Checkpoint::default(), Some(shards(5)));
    let path = begin.unwrap().finish(&world).unwrap();
    let whole = &checkpoint(5).tensors["head.weight"];
    let region = |start: usize, rows: usize| (vec![start, 0], vec![rows, 1]);
    let opened = Opened::open(&path).unwrap();
    let before = opened.bytes_read();
    assert_eq!(opened.types().unwrap()["head.weight"], (DType::F32, &[3, 1][..]));
    for (start, rows, parts) in [(0, 1, 4), (1, 1, 8), (0, 3, 12), (2, 1, 8), (1, 0, 0)] {
        let before = opened.bytes_read();
        let read = opened.regions("head.weight", &[region(start, rows)]).unwrap();
        assert_eq!(read, [&whole.bytes[4 * start..4 * (start + rows)]]);
        assert_eq!(opened.bytes_read() - before, parts, "{rows} rows from {start}");
    }
    assert!(before > 0 && opened.bytes() > 36);
    let text = fs::read_to_string(path.join(STATE_FILE)).unwrap();
    let claims = [
        ("\"begin\": ", "\"begin\": 99999"),
        ("\"bytes\": 4", "\"bytes\": 8"),
        ("\"file\": \"", "\"file\": \"../"),
        ("\"checksum\": \"", "\"checksum\": \"0"),
        ("\"extents\": [", "\"extents\": [ 1,"),
        ("\"extents\": [", "\"extents\": [ 18446744073709551615, 1 ], \"old\": ["),
        ("\"offset\": [", "\"offset\": [ 18446744073709551615, 0 ], \"old\": ["),
    ];
    for (honest, claim) in claims {
        assert!(text.contains(honest), "{honest} in {text}");
        fs::write(path.join(STATE_FILE), text.replace(honest, claim)).unwrap();
        assert_eq!(load(&path).unwrap_err().at, Some(path.join(STATE_FILE).display().to_string()));
        // A program that writes a claim can write the manifest for it.
        damage_tests::sealed(&path);
        let read = Opened::open(&path).and_then(|opened| opened.regions("head.weight", &[region(0, 3)]));
        assert_eq!(read.unwrap_err().code, "E312", "{claim}");
    }
}
