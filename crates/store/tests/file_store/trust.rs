//! Whose file it is: who may read and write it, and which run it belongs to.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use rallypoint_store::{FileFault, Store, StoreError};

use super::bed::{Bed, record};

fn mode(bed: &Bed) -> u32 {
    fs::metadata(bed.path()).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_new_file_is_for_its_owner_alone() {
    for shared in [false, true] {
        let bed = Bed::new();
        let store = bed.options().shared(shared).open().unwrap();
        assert_eq!(mode(&bed), 0o600);
        fs::remove_file(bed.path()).unwrap();
        store.set("k", b"v").unwrap();
        assert_eq!(mode(&bed), 0o600, "made anew");
    }
}

#[test]
fn a_file_that_others_may_write_to_is_refused_unless_shared() {
    for bits in [0o620, 0o602, 0o666] {
        let bed = Bed::with(&record("/k", "v"));
        fs::set_permissions(bed.path(), Permissions::from_mode(bits)).unwrap();
        let before = bed.bytes();
        let error = bed.options().open().unwrap_err();
        assert!(matches!(error, StoreError::File { fault: FileFault::Refused(_), .. }), "{error}");
        assert!(error.to_string().contains(&format!("{bits:04o}")), "{error}");
        assert_eq!(bed.bytes(), before);
        let shared = bed.options().shared(true).open().unwrap();
        assert_eq!(shared.get("k").unwrap(), b"v");
    }
}

#[test]
fn a_file_that_becomes_writable_to_others_is_refused_from_then_on() {
    let bed = Bed::new();
    let store = bed.open();
    store.set("k", b"v").unwrap();
    fs::set_permissions(bed.path(), Permissions::from_mode(0o666)).unwrap();
    assert!(matches!(store.get("k"), Err(StoreError::File { fault: FileFault::Refused(_), .. })));
    assert!(matches!(store.set("k", b"w"), Err(StoreError::File { fault: FileFault::Refused(_), .. })));
}

#[test]
fn torchs_own_mode_is_accepted() {
    let bed = Bed::with(&record("/k", "v"));
    fs::set_permissions(bed.path(), Permissions::from_mode(0o644)).unwrap();
    assert_eq!(bed.open().get("k").unwrap(), b"v");
}

#[test]
fn a_file_of_another_user_is_refused_unless_shared() {
    let bed = Bed::with(&record("/k", "v"));
    if chown(bed.path(), Some(12_345), None).is_err() {
        // Only root can give a file away; the rule itself is tested beside the code.
        return;
    }
    let error = bed.options().open().unwrap_err();
    assert!(
        matches!(&error, StoreError::File { fault: FileFault::Refused(why), .. } if why.contains("12345")),
        "{error}"
    );
    bed.options().shared(true).open().unwrap();
}

#[test]
fn a_symbolic_link_is_not_followed() {
    let bed = Bed::new();
    let target = bed.path().with_file_name("target");
    for there in [false, true] {
        if there {
            fs::write(&target, record("/k", "v")).unwrap();
        }
        let _ = fs::remove_file(bed.path());
        symlink(&target, bed.path()).unwrap();
        for shared in [false, true] {
            let error = bed.options().shared(shared).open().unwrap_err();
            assert!(
                matches!(&error, StoreError::File { fault: FileFault::Refused(why), .. } if why.contains("link")),
                "{error}"
            );
        }
    }
    assert_eq!(fs::read(&target).unwrap(), record("/k", "v"));
}

#[test]
fn an_earlier_runs_keys_are_seen_unless_a_run_is_named() {
    let bed = Bed::with(&[record("refcount/", "0"), record("/k", "old")].concat());
    let before = bed.bytes();
    let error = bed.options().run_id("run 2".to_owned()).open().unwrap_err();
    let expected = "refused: it holds keys already and names no run, so run \"run 2\" does not use it; remove it if its run is over";
    assert!(error.to_string().ends_with(expected), "{error}");
    assert_eq!(bed.bytes(), before);
    assert_eq!(bed.open().get("k").unwrap(), b"old");
}

#[test]
fn a_file_belongs_to_the_first_run_that_opens_it() {
    let bed = Bed::new();
    let one = bed.options().run_id("run 1".to_owned()).open().unwrap();
    one.set("k", b"v").unwrap();
    assert_eq!(bed.options().run_id("run 1".to_owned()).open().unwrap().get("k").unwrap(), b"v");
    assert_eq!(bed.open().get("k").unwrap(), b"v");
    let before = bed.bytes();
    let error = bed.options().run_id("run 2".to_owned()).open().unwrap_err();
    assert!(
        error.to_string().contains("refused: it belongs to run \"run 1\", so run \"run 2\" does not use it;"),
        "{error}"
    );
    assert_eq!(bed.bytes(), before);
    assert_eq!(one.list_keys().unwrap(), ["k"]);
}

#[test]
fn a_file_that_another_run_put_in_its_place_is_noticed() {
    let bed = Bed::new();
    let one = bed.options().run_id("run 1".to_owned()).open().unwrap();
    one.set("k", b"1").unwrap();
    fs::remove_file(bed.path()).unwrap();
    let two = bed.options().run_id("run 2".to_owned()).open().unwrap();
    two.set("k", b"2").unwrap();
    let before = bed.bytes();
    for error in [one.get("k").unwrap_err(), one.set("k", b"1").unwrap_err()] {
        assert!(error.to_string().contains("it belongs to run \"run 2\""), "{error}");
    }
    assert_eq!(bed.bytes(), before);
    assert_eq!(two.get("k").unwrap(), b"2");
}

#[test]
fn a_file_made_anew_by_a_write_is_claimed_again() {
    let bed = Bed::new();
    let store = bed.options().run_id("run 1".to_owned()).open().unwrap();
    fs::remove_file(bed.path()).unwrap();
    store.set("k", b"v").unwrap();
    assert_eq!(
        bed.records(),
        [("run_id/", "run 1"), ("/k", "v")].map(|(key, value)| (key.into(), value.into()))
    );
}
