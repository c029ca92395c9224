//! Lost and torn files of a stopped embedded store: what can be derived from the events is made
//! again, or the server refuses to start or to go on and names the file. It never counts wrong.

use super::kills::{Plan, examine, kill_rounds};
use super::server::Place;
use std::fs;
use std::path::{Path, PathBuf};

/// Something that happens to files of a store.
struct Accident {
    name: &'static str,
    happen: fn(&Path),
}

/// Files beside the database that SQLite makes again, or whose end a crash may have torn.
const BESIDE_THE_DATABASE: [Accident; 4] = [
    Accident { name: "nothing", happen: |_| {} },
    Accident {
        name: "the index of the log is lost",
        happen: |store| fs::remove_file(store.join("counterfoil.db-shm")).unwrap(),
    },
    Accident {
        name: "the index of the log is wrong",
        happen: |store| fs::write(store.join("counterfoil.db-shm"), [0xA5; 32_768]).unwrap(),
    },
    Accident {
        name: "the log ends with a torn page",
        happen: |store| {
            let log = store.join("counterfoil.db-wal");
            let bytes = fs::read(&log).unwrap();
            let torn = [&bytes[..], &bytes[bytes.len() - 3_000..]].concat();
            fs::write(log, torn).unwrap();
        },
    },
];

const RUN_FILES: [Accident; 6] = [
    Accident { name: "a run is lost", happen: |store| fs::remove_file(run_file(store)).unwrap() },
    Accident { name: "half a run is lost", happen: |store| cut(&run_file(store), 2) },
    Accident { name: "a run is empty", happen: |store| fs::write(run_file(store), []).unwrap() },
    Accident {
        name: "a byte in the middle of a run is wrong",
        happen: |store| {
            let path = run_file(store);
            let mut bytes = fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
            fs::write(path, bytes).unwrap();
        },
    },
    Accident {
        name: "every run is lost",
        happen: |store| run_files(store).iter().for_each(|run| fs::remove_file(run).unwrap()),
    },
    Accident {
        name: "every run lacks its end",
        happen: |store| run_files(store).iter().for_each(|run| cut(run, 3)),
    },
];

/// In the order of their names.
fn run_files(store: &Path) -> Vec<PathBuf> {
    let folder = fs::read_dir(store.join("keys")).expect("there are run files");
    let paths = folder.map(|entry| entry.unwrap().path());
    let mut runs: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "run")).collect();
    assert!(!runs.is_empty(), "there are run files");
    runs.sort();
    runs
}

/// The largest, which is the one with the most to lose.
fn run_file(store: &Path) -> PathBuf {
    run_files(store).into_iter().max_by_key(|run| fs::metadata(run).unwrap().len()).unwrap()
}

/// Leaves all but the last of so many parts of a file.
fn cut(path: &Path, parts: usize) {
    let bytes = fs::read(path).unwrap();
    fs::write(path, &bytes[..bytes.len() - bytes.len() / parts]).unwrap();
}

/// Lets each accident happen to a copy of a store that was killed under traffic.
async fn survive(accidents: &[Accident]) {
    let place = Place::sqlite();
    let plan = Plan { rounds: 4, servers: 1, restarts_database: false, failpoints: "" };
    let model = kill_rounds(&place, &plan).await.unwrap_or_else(|wrong| panic!("{wrong:#?}"));
    for accident in accidents {
        let copy = copy_of(&place);
        let Place::Directory(directory) = &copy else { panic!("an embedded store") };
        (accident.happen)(directory.path());
        match examine(&copy, model.clone()).await {
            Ok(_) => println!("{}: nothing is wrong", accident.name),
            Err(wrong) if is_refusal(&wrong) => println!("{}: {}", accident.name, wrong[0]),
            Err(wrong) => panic!("{}: {wrong:#?}", accident.name),
        }
    }
}

/// The server ended, and its last sentence is about run files.
fn is_refusal(wrong: &[String]) -> bool {
    let [said] = wrong else { return false };
    let sentence = said.lines().rfind(|line| line.starts_with("counterfoil: "));
    sentence.is_some_and(|sentence| sentence.contains("keys"))
}

fn copy_of(place: &Place) -> Place {
    let (Place::Directory(from), copy) = (place, Place::sqlite()) else { panic!("embedded") };
    let Place::Directory(to) = &copy else { panic!("embedded") };
    copy_folder(from.path(), to.path());
    copy
}

fn copy_folder(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&to).unwrap();
            copy_folder(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_beside_the_database_are_made_again() {
    survive(&BESIDE_THE_DATABASE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_and_torn_run_files_are_made_again_or_refused() {
    survive(&RUN_FILES).await;
}
