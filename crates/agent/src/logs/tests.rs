//! Tests where the output of workers goes, and that none of it is lost.

use std::io::Write;
use std::time::Duration;

use rallypoint_testkit::{WAIT_TIMEOUT, eventually_or};

use super::*;
use crate::config::{LogDir, PerRank, Streams};
use crate::environment::tests::config;
use crate::formation::tests::formation;

/// Only a failing test takes this long.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(60);

const BOTH: Streams = Streams { stdout: true, stderr: true };

fn logs(dir: &Path, workers: u32, change: impl Fn(&mut LogsConfig)) -> Logs {
    let mut config = config(workers);
    config.logs.dir = LogDir::At(dir.to_owned());
    change(&mut config.logs);
    Logs::with_show(&config, |_, _| true).unwrap()
}

fn tree(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            found.push(path.strip_prefix(root).unwrap().to_string_lossy().into_owned());
            if path.is_dir() {
                directories.push(path);
            }
        }
    }
    found.sort();
    found
}

fn write(fd: &Option<OwnedFd>, text: &str) {
    let mut file = File::from(fd.as_ref().unwrap().try_clone().unwrap());
    file.write_all(text.as_bytes()).unwrap();
}

#[test]
fn directories_have_torchs_names_and_an_earlier_start_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut logs = logs(dir.path(), 2, |logs| logs.redirects = PerRank::Some([(0, BOTH)].into()));
    for text in ["first\n", "second\n"] {
        logs.start(&formation());
        let streams = logs.worker(0).unwrap();
        assert!(logs.worker(1).unwrap().stdout.is_none());
        write(&streams.stdout, text);
        assert!(streams.error_file.unwrap().ends_with("attempt_1/0/error.json"));
    }
    let run = logs.directory().path().unwrap();
    let name = run.file_name().unwrap().to_string_lossy().into_owned();
    assert!(name.starts_with("run_") && name.len() == 12, "{name}");
    let files = ["0", "0/stderr.log", "0/stdout.log", "1"];
    let mut expected = vec!["attempt_1".to_owned(), "attempt_1.1".into()];
    expected.extend(files.map(|file| format!("attempt_1/{file}")));
    expected.extend(files.map(|file| format!("attempt_1.1/{file}")));
    expected.sort();
    assert_eq!(tree(run), expected);
    assert_eq!(std::fs::read_to_string(run.join("attempt_1.1/0/stdout.log")).unwrap(), "first\n");
    assert_eq!(std::fs::read_to_string(run.join("attempt_1/0/stdout.log")).unwrap(), "second\n");
}

#[test]
fn an_unusable_log_dir_is_an_error_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let mut config = config(1);
    config.logs.dir = LogDir::At(file.clone());
    let error = Logs::create(&config).err().unwrap().to_string();
    assert_eq!(error, format!("log_dir: {} is a file", file.display()));
    config.logs.dir = LogDir::At(file.join("below"));
    assert!(Logs::create(&config).err().unwrap().to_string().starts_with("cannot create"));
}

#[test]
fn a_run_id_with_slashes_becomes_one_directory_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(1);
    config.logs.dir = LogDir::At(dir.path().into());
    config.rendezvous.run_id = "../a/b".into();
    let logs = Logs::create(&config).unwrap();
    assert_eq!(logs.directory().path().unwrap().parent(), Some(dir.path()));
}

#[test]
fn a_temporary_directory_is_removed_if_it_is_empty() {
    for written in [false, true] {
        let mut logs = Logs::create(&config(2)).unwrap();
        let temporary = logs.directory.path().unwrap().parent().unwrap().to_owned();
        logs.start(&formation());
        let worker = logs.worker(1).unwrap();
        if written {
            std::fs::write(worker.error_file.unwrap(), "{}").unwrap();
        }
        assert!(logs.finish(FLUSH_TIMEOUT, || false));
        drop(logs);
        assert_eq!(temporary.exists(), written);
        let _ = std::fs::remove_dir_all(temporary);
    }
}

/// Returns the contents of the filter's file: the lines of standard output that the tail has shown and that match.
fn shown(logs: &Logs) -> String {
    std::fs::read_to_string(logs.directory().path().unwrap().join("attempt_1/filtered_stdout.log")).unwrap()
}

#[test]
fn every_teed_line_is_shown_whole_with_its_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let mut logs = logs(dir.path(), 3, |logs| {
        logs.tee = PerRank::All(Streams { stdout: true, stderr: false });
        logs.stdout_filters = vec!["".into()];
        logs.prefix_template = Some("${role_name}/${rank}/${local_rank} $x|".into());
        logs.shown_ranks = Some(vec![0, 2]);
    });
    logs.start(&formation());
    let streams: Vec<_> = (0..3).map(|rank| logs.worker(rank).unwrap()).collect();
    std::thread::scope(|scope| {
        for worker in &streams {
            scope.spawn(move || {
                for n in 0..2000 {
                    // Write each line in two halves, so that the reader finds unterminated lines.
                    write(&worker.stdout, &format!("line {n}"));
                    write(&worker.stdout, " end\n");
                }
                write(&worker.stdout, "no newline");
            });
        }
    });
    assert!(logs.finish(FLUSH_TIMEOUT, || false));
    let shown = shown(&logs);
    for (rank, global) in [(0, 4), (2, 6)] {
        let prefix = format!("trainer/{global}/{rank} $x|");
        let lines: Vec<_> = shown.lines().filter_map(|line| line.strip_prefix(prefix.as_str())).collect();
        let expected: Vec<_> =
            (0..2000).map(|n| format!("line {n} end")).chain(["no newline".into()]).collect();
        assert_eq!(lines, expected);
    }
    assert_eq!(shown.lines().count(), 2 * 2001);
}

#[test]
fn lines_wait_for_a_slow_reader_and_unread_lines_are_reported() {
    // The reader reads nothing while this mutex is locked.
    static READER: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(1);
    (config.logs.dir, config.logs.tee) = (LogDir::At(dir.path().into()), PerRank::All(BOTH));
    let mut logs = Logs::with_show(&config, |_, _| {
        drop(READER.lock());
        true
    })
    .unwrap();
    let stalled_reader = READER.lock().unwrap();
    logs.start(&formation());
    let worker = logs.worker(0).unwrap();
    write(&worker.stdout, "one\ntwo\nthree\n");
    assert!(!logs.finish(Duration::from_millis(50), || false));
    let mut calls = 0;
    let should_stop = || {
        calls += 1;
        calls > 10
    };
    assert!(!logs.finish(FLUSH_TIMEOUT, should_stop), "the caller does not want to wait");
    // The next start does not wait for the reader.
    logs.start(&formation());
    write(&logs.worker(0).unwrap().stdout, "four\n");
    drop(stalled_reader);
    assert!(logs.finish(FLUSH_TIMEOUT, || false));
    // Every write fails if the reader has exited.
    let mut logs = Logs::with_show(&config, |_, _| false).unwrap();
    logs.start(&formation());
    write(&logs.worker(0).unwrap().stdout, "one\ntwo\n");
    assert!(!logs.finish(FLUSH_TIMEOUT, || false));
}

#[test]
fn lines_are_shown_while_the_worker_runs() {
    let dir = tempfile::tempdir().unwrap();
    let mut logs = logs(dir.path(), 1, |logs| {
        logs.tee = PerRank::All(BOTH);
        logs.stdout_filters = vec!["want".into(), "also".into()];
    });
    logs.start(&formation());
    let worker = logs.worker(0).unwrap();
    write(&worker.stdout, "not this\nI want this\nand also this\nwan");
    let expected = "[trainer0]:I want this\n[trainer0]:and also this\n";
    eventually_or(WAIT_TIMEOUT, || format!("{:?}", shown(&logs)), || shown(&logs) == expected);
    assert!(logs.finish(FLUSH_TIMEOUT, || false));
    assert_eq!(shown(&logs), expected);
}

#[test]
fn the_last_lines_of_stderr_are_available_wherever_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let mut logs = logs(dir.path(), 3, |logs| {
        logs.redirects = PerRank::Some([(1, BOTH)].into());
        logs.shown_ranks = Some(vec![2]);
    });
    logs.start(&formation());
    let streams: Vec<_> = (0..3).map(|rank| logs.worker(rank).unwrap()).collect();
    for (rank, worker) in streams.iter().enumerate() {
        write(&worker.stderr, &format!("a\nworker {rank} failed"));
        let lines = vec!["a".to_owned(), format!("worker {rank} failed")];
        assert_eq!(logs.last_lines(rank as u32), (lines, rank == 2));
    }
    // `finish` does not wait for processes that still have the worker's end of the pipe open.
    assert!(logs.finish(FLUSH_TIMEOUT, || false));
}

#[test]
fn without_a_directory_nothing_is_written() {
    let mut config = config(1);
    config.logs.dir = LogDir::Nowhere;
    config.logs.tee = PerRank::All(BOTH);
    let mut logs = Logs::create(&config).unwrap();
    assert!(logs.directory().path().is_none());
    logs.start(&formation());
    let worker = logs.worker(0).unwrap();
    assert!(worker.stdout.is_none() && worker.error_file.is_none());
    write(&worker.stderr, "");
}

#[test]
fn an_error_writing_filtered_lines_is_reported_and_all_lines_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stdout.log");
    std::fs::write(&path, "one\ntwo\n").unwrap();
    let (error, full) = (FirstError::default(), PathBuf::from("/dev/full"));
    let file = File::options().write(true).open(&full).unwrap();
    let filter = Arc::new(Filter { file, path: full, wanted: vec!["o".into()], error: error.clone() });
    let tail = Tail::start(Console::Out, |_, _| true).unwrap();
    let (file, prefix, lines) = (File::open(&path).unwrap(), b"0:".to_vec(), Lines::default());
    tail.follow(Source::File { file, prefix, lines, filter: Some(filter) });
    assert!(tail.wait(&tail.flush(true), FLUSH_TIMEOUT, || false));
    let text = error.get().unwrap();
    assert!(text.starts_with("cannot write \"/dev/full\": No space left on device"), "{text}");
}

#[test]
fn output_is_passed_through_if_its_file_cannot_be_created() {
    let dir = tempfile::tempdir().unwrap();
    let mut logs = logs(dir.path(), 2, |logs| {
        logs.redirects = PerRank::Some([(0, BOTH)].into());
        logs.shown_ranks = Some(vec![]);
    });
    logs.start(&formation());
    // Replace the worker's directory with a file, so that no log file can be created in it.
    let own = logs.directory().path().unwrap().join("attempt_1/0");
    std::fs::remove_dir(&own).unwrap();
    std::fs::write(&own, "").unwrap();
    assert!(logs.worker(0).unwrap().stdout.is_none(), "the worker inherits the agent's stream");
    assert!(logs.last_lines(0).1, "stderr has no file, so it is shown although `shown_ranks` is empty");
    assert!(logs.worker(1).unwrap().stdout.is_some(), "the output of other ranks is not shown");
    let text = logs.error().unwrap();
    assert!(text.starts_with("cannot create") && text.contains("0/stdout.log"), "{text}");
}
