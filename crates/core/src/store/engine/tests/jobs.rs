//! Expiry of idle jobs.

use std::time::Duration;

use super::*;

const IDLE: Duration = Duration::from_secs(60);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn set<'a>(key: &'a str) -> Request<'a> {
    Request::Set { key: key.as_bytes(), value: b"v"[..].into() }
}

/// A store in which jobs expire.
fn store() -> Store {
    let mut store = Store::new();
    store.0.expire_jobs_after(IDLE);
    store
}

/// Expires jobs at this time; returns run id, number of keys and idle seconds of each.
fn expired(store: &mut Store, seconds: u64) -> Vec<(String, usize, u64)> {
    store.0.set_time(at(seconds));
    let jobs = store.0.expire_idle_jobs();
    store.0.assert_consistent();
    let text = |job: super::super::ExpiredJob| {
        (String::from_utf8(job.run_id).unwrap(), job.keys, job.idle.as_secs())
    };
    jobs.into_iter().map(text).collect()
}

#[test]
fn the_keys_of_an_idle_job_are_deleted_and_no_others() {
    let mut store = store();
    let push = Request::QueuePush { key: b"/torch.rendezvous.old.3/queue", value: b"item"[..].into() };
    for request in [
        set("/torch.rendezvous.old.3/MASTER_ADDR"),
        set("/rallypoint.rendezvous/old/announced/3"),
        push,
        set("/torch.rendezvous.new.0/k"),
        set("/mine/k"),
        set("/torch.rendezvous.old"),
    ] {
        // The last one is refused, because its value is not a rendezvous state.
        store.ask(1, request);
    }
    store.tell(1, set("/torch.rendezvous.old.3/k"));
    store.leave(1);
    store.0.set_time(at(30));
    store.tell(2, set("/torch.rendezvous.new.0/k"));
    store.leave(2);
    assert_eq!(expired(&mut store, 59), []);
    assert_eq!(expired(&mut store, 61), [("old".into(), 4, 61)]);
    assert_eq!(expired(&mut store, 89), []);
    assert_eq!(expired(&mut store, 1_000), [("new".into(), 1, 970)]);
    assert_eq!(
        store.reply(3, Request::NumKeys),
        Reply::Number(1),
        "a key outside of every job never expires"
    );
    let shot = store.0.snapshot();
    assert_eq!((shot.keys, shot.queue_items), (1, 0));
    assert!(!store.0.has_jobs());
}

#[test]
fn a_job_is_in_use_while_a_client_reads_writes_or_waits_for_its_keys() {
    let key = &b"/torch.rendezvous.job.0/k"[..];
    let (one, two) = ([key], [b"/other", key]);
    let wait = Request::Wait { keys: KeyList::new(&one) };
    let check = Request::Check { keys: KeyList::new(&two) };
    for request in
        [Request::Get { key }, check, wait, Request::Add { key, delta: 1 }, Request::QueueLen { key }]
    {
        let mut store = store();
        store.ask(1, Request::Add { key, delta: 1 });
        store.leave(1);
        store.0.set_time(at(50));
        store.ask(2, request);
        // Requests without a rendezvous key leave the connection with its job.
        store.ask(2, set("/other"));
        store.ask(2, Request::Ping { nonce: 1 });
        assert_eq!(expired(&mut store, 100_000), [], "{request:?}: its client is there");
        store.leave(2);
        assert_eq!(expired(&mut store, 100_059), [], "{request:?}");
        assert_eq!(expired(&mut store, 100_060).len(), 1, "{request:?}");
    }
}

#[test]
fn a_connection_counts_for_the_job_it_named_last() {
    let mut store = store();
    store.tell(1, set("/torch.rendezvous.a.0/k"));
    store.tell(1, set("/torch.rendezvous.b.0/k"));
    assert_eq!(expired(&mut store, 60), [("a".into(), 1, 60)]);
    assert_eq!(expired(&mut store, 600), []);
    // Another client takes over the slot.
    store.0.handle_request(ClientId::new(1, 77), Request::Ping { nonce: 1 });
    store.outputs();
    assert_eq!(expired(&mut store, 660), [("b".into(), 1, 60)]);
}

#[test]
fn a_job_comes_back_after_it_has_expired() {
    let mut store = store();
    store.tell(1, set("/torch.rendezvous.job.0/k"));
    store.leave(1);
    assert_eq!(expired(&mut store, 60).len(), 1);
    store.tell(2, set("/torch.rendezvous.job.0/k"));
    store.leave(2);
    assert_eq!(expired(&mut store, 119), []);
    assert_eq!(expired(&mut store, 120), [("job".into(), 1, 60)]);
}

#[test]
fn reads_of_absent_keys_add_no_jobs() {
    let mut store = store();
    for number in 0..1_000 {
        store.reply(1, Request::Get { key: format!("/torch.rendezvous.{number}").as_bytes() });
    }
    assert!(!store.0.has_jobs());
}

#[test]
fn jobs_take_room_like_keys_even_where_those_are_deleted_again() {
    let limits = Limits { store_bytes: 20_000, ..Limits::default() };
    let mut store = Store::with(limits);
    store.0.expire_jobs_after(IDLE);
    let names: Vec<String> = (0..1_000).map(|number| format!("/torch.rendezvous.{number}.0/k")).collect();
    let refused = names.iter().find(|name| {
        let refused = !store.ask(1, set(name)).is_empty();
        store.ask(1, Request::DeleteKey { key: name.as_bytes() });
        refused
    });
    assert!(refused.is_some(), "the table of jobs grows without bound");
    store.leave(1);
    assert_eq!(expired(&mut store, 60), [], "they have no keys any more");
    store.tell(2, set("/k"));
}

#[test]
fn many_sets_in_a_row_use_their_job() {
    let mut store = store();
    let names: Vec<String> = (0..10).map(|number| format!("/torch.rendezvous.{number}.0/k")).collect();
    let sets = names.iter().map(|name| (name.as_bytes(), &b"v"[..]));
    assert_eq!(store.0.handle_sets(id(1), sets), 10);
    store.leave(1);
    assert_eq!(expired(&mut store, 60).len(), 10);
}
