//! Tests of which files a store refuses: by owner, mode, file type and run id.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use rallypoint_store::{FileFault, Store, StoreError};

use super::fixture::{TestFile, record};

fn mode(file: &TestFile) -> u32 {
    fs::metadata(file.path()).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_new_file_has_mode_0600() {
    for shared in [false, true] {
        let file = TestFile::new();
        let store = file.options().shared(shared).open().unwrap();
        assert_eq!(mode(&file), 0o600);
        fs::remove_file(file.path()).unwrap();
        store.set("k", b"v").unwrap();
        assert_eq!(mode(&file), 0o600, "the recreated file");
    }
}

#[test]
fn a_file_that_other_users_can_write_is_refused_unless_shared() {
    for bits in [0o620, 0o602, 0o666] {
        let file = TestFile::with(&record("/k", "v"));
        fs::set_permissions(file.path(), Permissions::from_mode(bits)).unwrap();
        let before = file.bytes();
        let error = file.options().open().unwrap_err();
        assert!(matches!(error, StoreError::File { fault: FileFault::Refused(_), .. }), "{error}");
        assert!(error.to_string().contains(&format!("{bits:04o}")), "{error}");
        assert_eq!(file.bytes(), before);
        let shared = file.options().shared(true).open().unwrap();
        assert_eq!(shared.get("k").unwrap(), b"v");
    }
}

#[test]
fn a_file_that_becomes_writable_for_other_users_is_refused() {
    let file = TestFile::new();
    let store = file.open();
    store.set("k", b"v").unwrap();
    fs::set_permissions(file.path(), Permissions::from_mode(0o666)).unwrap();
    assert!(matches!(store.get("k"), Err(StoreError::File { fault: FileFault::Refused(_), .. })));
    assert!(matches!(store.set("k", b"w"), Err(StoreError::File { fault: FileFault::Refused(_), .. })));
}

#[test]
fn a_file_with_torchs_mode_0644_is_accepted() {
    let file = TestFile::with(&record("/k", "v"));
    fs::set_permissions(file.path(), Permissions::from_mode(0o644)).unwrap();
    assert_eq!(file.open().get("k").unwrap(), b"v");
}

#[test]
fn a_file_of_another_user_is_refused_unless_shared() {
    let file = TestFile::with(&record("/k", "v"));
    if chown(file.path(), Some(12_345), None).is_err() {
        // Only root can change the owner. A unit test of `file/lock.rs` covers this rule without root.
        return;
    }
    let error = file.options().open().unwrap_err();
    assert!(
        matches!(&error, StoreError::File { fault: FileFault::Refused(reason), .. } if reason.contains("12345")),
        "{error}"
    );
    file.options().shared(true).open().unwrap();
}

#[test]
fn a_symbolic_link_is_not_followed() {
    let file = TestFile::new();
    let target = file.path().with_file_name("target");
    for exists in [false, true] {
        if exists {
            fs::write(&target, record("/k", "v")).unwrap();
        }
        let _ = fs::remove_file(file.path());
        symlink(&target, file.path()).unwrap();
        for shared in [false, true] {
            let error = file.options().shared(shared).open().unwrap_err();
            assert!(
                matches!(&error, StoreError::File { fault: FileFault::Refused(reason), .. } if reason.contains("link")),
                "{error}"
            );
        }
    }
    assert_eq!(fs::read(&target).unwrap(), record("/k", "v"));
}

#[test]
fn a_file_of_an_earlier_run_is_refused_only_if_a_run_id_is_given() {
    let file = TestFile::with(&[record("refcount/", "0"), record("/k", "old")].concat());
    let before = file.bytes();
    let error = file.options().run_id("run 2".to_owned()).open().unwrap_err();
    let expected = "refused: it already has keys and no run id, so run \"run 2\" does not use it; delete it if its run has ended";
    assert!(error.to_string().ends_with(expected), "{error}");
    assert_eq!(file.bytes(), before);
    assert_eq!(file.open().get("k").unwrap(), b"old");
}

#[test]
fn a_file_belongs_to_the_first_run_that_opens_it() {
    let file = TestFile::new();
    let first = file.options().run_id("run 1".to_owned()).open().unwrap();
    first.set("k", b"v").unwrap();
    assert_eq!(file.options().run_id("run 1".to_owned()).open().unwrap().get("k").unwrap(), b"v");
    assert_eq!(file.open().get("k").unwrap(), b"v");
    let before = file.bytes();
    let error = file.options().run_id("run 2".to_owned()).open().unwrap_err();
    assert!(
        error.to_string().contains("refused: it belongs to run \"run 1\", so run \"run 2\" does not use it;"),
        "{error}"
    );
    assert_eq!(file.bytes(), before);
    assert_eq!(first.list_keys().unwrap(), ["k"]);
}

#[test]
fn a_file_that_another_run_replaced_is_refused() {
    let file = TestFile::new();
    let first = file.options().run_id("run 1".to_owned()).open().unwrap();
    first.set("k", b"1").unwrap();
    fs::remove_file(file.path()).unwrap();
    let second = file.options().run_id("run 2".to_owned()).open().unwrap();
    second.set("k", b"2").unwrap();
    let before = file.bytes();
    for error in [first.get("k").unwrap_err(), first.set("k", b"1").unwrap_err()] {
        assert!(error.to_string().contains("it belongs to run \"run 2\""), "{error}");
    }
    assert_eq!(file.bytes(), before);
    assert_eq!(second.get("k").unwrap(), b"2");
}

#[test]
fn a_recreated_file_gets_the_run_id_again() {
    let file = TestFile::new();
    let store = file.options().run_id("run 1".to_owned()).open().unwrap();
    fs::remove_file(file.path()).unwrap();
    store.set("k", b"v").unwrap();
    assert_eq!(
        file.records(),
        [("run_id/", "run 1"), ("/k", "v")].map(|(key, value)| (key.into(), value.into()))
    );
}
