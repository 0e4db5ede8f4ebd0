//! A request of very many keys that is carried out in steps, with others' requests between them, is as good as one that
//! was carried out all at once at one moment: nobody is told anything else, and the same is left.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rallypoint_core::Limits;
use rallypoint_core::store::{ClientId, Engine, Output};
use rallypoint_core::wire::{KeyList, PairList, Reply, Request, RequestDecoder};

/// Who asks for the long one; the others have smaller numbers.
const LONG: u32 = 4;

/// What another client does between two steps.
#[derive(Debug, Clone)]
enum Ask {
    Set(u8, u8),
    Get(u8),
    Add(u8),
    Delete(u8),
    Append(u8, u8),
    CompareSet(u8, u8, u8),
    Check(Vec<u8>),
    MultiGet(Vec<u8>),
    MultiSet(Vec<(u8, u8)>),
    Wait(Vec<u8>),
    NumKeys,
    ListKeys,
    Push(u8),
    Pop(u8),
    Leave,
}

/// What happens next.
#[derive(Debug, Clone)]
enum Event {
    Work,
    Other(u32, Ask),
}

#[derive(Debug, Clone)]
enum Long {
    Check(Vec<u8>),
    MultiGet(Vec<u8>),
    MultiSet(Vec<(u8, u8)>),
    Wait(Vec<u8>),
}

fn name(key: u8) -> Vec<u8> {
    format!("/key/{key}").into_bytes()
}

fn text(value: u8) -> Vec<u8> {
    // Of different lengths, so that some are put over others and some in their place. All are numbers.
    "7".repeat(1 + usize::from(value) % 5).into_bytes()
}

/// Calls `ask` with the request.
fn with_request<T>(ask: &Ask, then: impl FnOnce(Option<Request<'_>>) -> T) -> T {
    let names = |keys: &[u8]| keys.iter().map(|key| name(*key)).collect::<Vec<_>>();
    match ask {
        Ask::Set(key, value) => then(Some(Request::Set { key: &name(*key), value: text(*value)[..].into() })),
        Ask::Get(key) => then(Some(Request::Get { key: &name(*key) })),
        Ask::Add(key) => then(Some(Request::Add { key: &name(*key), delta: 1 })),
        Ask::Delete(key) => then(Some(Request::DeleteKey { key: &name(*key) })),
        Ask::Append(key, value) => {
            then(Some(Request::Append { key: &name(*key), value: text(*value)[..].into() }))
        }
        Ask::CompareSet(key, expected, desired) => then(Some(Request::CompareSet {
            key: &name(*key),
            expected: &text(*expected),
            desired: text(*desired)[..].into(),
        })),
        Ask::Check(keys) | Ask::MultiGet(keys) | Ask::Wait(keys) => {
            let names = names(keys);
            let slices: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
            let keys = KeyList::new(&slices);
            then(Some(match ask {
                Ask::Check(_) => Request::Check { keys },
                Ask::MultiGet(_) => Request::MultiGet { keys },
                _ => Request::Wait { keys },
            }))
        }
        Ask::MultiSet(pairs) => {
            let pairs: Vec<_> = pairs.iter().map(|(key, value)| (name(*key), text(*value))).collect();
            let slices: Vec<(&[u8], &[u8])> =
                pairs.iter().map(|(key, value)| (&key[..], &value[..])).collect();
            then(Some(Request::MultiSet { pairs: PairList::new(&slices) }))
        }
        Ask::NumKeys => then(Some(Request::NumKeys)),
        Ask::ListKeys => then(Some(Request::ListKeys)),
        Ask::Push(key) => then(Some(Request::QueuePush { key: &name(*key), value: b"i"[..].into() })),
        Ask::Pop(key) => then(Some(Request::QueuePop { key: &name(*key) })),
        Ask::Leave => then(None),
    }
}

impl Long {
    fn ask(&self) -> Ask {
        match self.clone() {
            Long::Check(keys) => Ask::Check(keys),
            Long::MultiGet(keys) => Ask::MultiGet(keys),
            Long::MultiSet(pairs) => Ask::MultiSet(pairs),
            Long::Wait(keys) => Ask::Wait(keys),
        }
    }

    fn len(&self) -> usize {
        match self {
            Long::Check(keys) | Long::MultiGet(keys) | Long::Wait(keys) => keys.len(),
            Long::MultiSet(pairs) => pairs.len(),
        }
    }
}

/// An engine, and what it has told whom.
struct Told {
    engine: Engine,
    told: BTreeMap<u32, Vec<Result<Reply, String>>>,
    generations: [u32; LONG as usize + 1],
}

impl Told {
    fn new() -> Told {
        let mut limits = Limits::default();
        limits.turn_keys = 1;
        let engine = Engine::new(limits, 1, Some(b"identity"));
        Told { engine, told: BTreeMap::new(), generations: [1; LONG as usize + 1] }
    }

    fn id(&self, client: u32) -> ClientId {
        ClientId::new(client, self.generations[client as usize])
    }

    fn ask(&mut self, client: u32, ask: &Ask) {
        let id = self.id(client);
        with_request(ask, |request| match request {
            Some(request) => self.engine.handle_request(id, request),
            None => {
                self.engine.handle_disconnect(id);
                self.generations[client as usize] += 1;
            }
        });
        self.note();
    }

    fn note(&mut self) {
        while let Some(output) = self.engine.poll_output() {
            let (client, what) = match output {
                Output::Reply { client, mut reply } => {
                    if let Reply::Keys(keys) = &mut reply {
                        keys.sort();
                    }
                    (client, Ok(reply))
                }
                Output::Close { client, reason } => (client, Err(reason.to_string())),
            };
            self.told.entry(client.index() as u32).or_default().push(what);
        }
        self.engine.assert_consistent();
    }

    fn begin(&mut self, long: &Long) {
        let mut bytes = Vec::new();
        with_request(&long.ask(), |request| request.expect("it asks something").encode(&mut bytes));
        let frame = RequestDecoder::default().next(&mut &bytes[..], &Limits::default());
        let frame = frame.expect("it is one").expect("it is whole");
        assert!(self.engine.is_long(&frame));
        self.engine.begin(self.id(LONG), frame);
        assert_eq!(self.engine.works_for(), Some(self.id(LONG)));
    }
}

fn keys(least: usize, most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0..24u8, least..most)
}

fn pairs(least: usize, most: usize) -> impl Strategy<Value = Vec<(u8, u8)>> {
    prop::collection::vec((0..24u8, any::<u8>()), least..most)
}

fn ask() -> impl Strategy<Value = Ask> {
    let key = || 0..24u8;
    prop_oneof![
        3 => (key(), any::<u8>()).prop_map(|(key, value)| Ask::Set(key, value)),
        2 => key().prop_map(Ask::Get),
        1 => key().prop_map(Ask::Add),
        3 => key().prop_map(Ask::Delete),
        1 => (key(), any::<u8>()).prop_map(|(key, value)| Ask::Append(key, value)),
        2 => (key(), any::<u8>(), any::<u8>()).prop_map(|(key, old, new)| Ask::CompareSet(key, old, new)),
        1 => keys(0, 6).prop_map(Ask::Check),
        1 => keys(0, 6).prop_map(Ask::MultiGet),
        1 => pairs(0, 6).prop_map(Ask::MultiSet),
        2 => keys(1, 4).prop_map(Ask::Wait),
        1 => Just(Ask::NumKeys),
        1 => Just(Ask::ListKeys),
        1 => key().prop_map(Ask::Push),
        1 => key().prop_map(Ask::Pop),
        1 => Just(Ask::Leave),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![Just(Event::Work), (0..LONG, ask()).prop_map(|(client, ask)| Event::Other(client, ask))]
}

fn long() -> impl Strategy<Value = Long> {
    prop_oneof![
        keys(4, 30).prop_map(Long::Check),
        keys(4, 30).prop_map(Long::MultiGet),
        pairs(4, 30).prop_map(Long::MultiSet),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn in_steps_it_is_what_it_is_at_once(
        before in prop::collection::vec((0..LONG, ask()), 0..30),
        wait in prop::option::of(keys(1, 4)),
        long in long(),
        events in prop::collection::vec(event(), 0..60),
    ) {
        let (mut in_steps, mut at_once) = (Told::new(), Told::new());
        let both = |in_steps: &mut Told, at_once: &mut Told, client, ask: &Ask| {
            // Who waits can't ask. In steps it may wait a little longer.
            if !in_steps.engine.is_blocked(in_steps.id(client)) {
                in_steps.ask(client, ask);
                at_once.ask(client, ask);
            }
        };
        for (client, ask) in &before {
            both(&mut in_steps, &mut at_once, *client, ask);
        }
        // What a wait has seen is there for the long one, too.
        if let Some(keys) = &wait {
            let (setter, asks) = (0, keys.iter().map(|key| Ask::Set(*key, 1)));
            asks.for_each(|ask| both(&mut in_steps, &mut at_once, setter, &ask));
            both(&mut in_steps, &mut at_once, LONG, &Ask::Wait(keys.clone()));
            both(&mut in_steps, &mut at_once, setter, &Ask::Delete(keys[0]));
        }
        if in_steps.engine.is_blocked(in_steps.id(LONG)) {
            return Ok(());
        }
        in_steps.begin(&long);
        let steps_to_sort = long.len() / 2 + 1;
        let mut steps = 0;
        let work = |in_steps: &mut Told, at_once: &mut Told, steps: &mut usize| {
            if in_steps.engine.works_for().is_some() {
                in_steps.engine.work();
                in_steps.note();
                *steps += 1;
                if *steps == steps_to_sort {
                    at_once.ask(LONG, &long.ask());
                }
            }
        };
        for event in &events {
            match event {
                Event::Work => work(&mut in_steps, &mut at_once, &mut steps),
                Event::Other(client, ask) => both(&mut in_steps, &mut at_once, *client, ask),
            }
        }
        while in_steps.engine.works_for().is_some() {
            work(&mut in_steps, &mut at_once, &mut steps);
        }
        for client in 0..=LONG {
            both(&mut in_steps, &mut at_once, client, &Ask::MultiGet((0..24).collect()));
            both(&mut in_steps, &mut at_once, client, &Ask::ListKeys);
        }
        prop_assert_eq!(&in_steps.told, &at_once.told);
        for store in [&mut in_steps, &mut at_once] {
            // What is told is held.
            store.told.clear();
            while store.engine.has_work() {
                store.engine.work();
            }
            // One look at as many as there are may pass one by.
            (0..3).for_each(|_| store.engine.tidy());
        }
        prop_assert_eq!(in_steps.engine.snapshot(), at_once.engine.snapshot());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    /// A wait in steps may see a key later than one at once would, and so miss one that is deleted again. What stays is
    /// seen by both.
    #[test]
    fn a_wait_in_steps_ends_when_each_of_its_keys_has_come(
        before in prop::collection::vec((0..LONG, ask()), 0..30),
        keys in keys(4, 30),
        events in prop::collection::vec(event(), 0..60),
        end in 0..4,
    ) {
        let mut store = Told::new();
        for (client, ask) in before.iter().filter(|(_, ask)| !matches!(ask, Ask::Push(_))) {
            if !store.engine.is_blocked(store.id(*client)) {
                store.ask(*client, ask);
            }
        }
        store.begin(&Long::Wait(keys.clone()));
        for event in &events {
            match event {
                Event::Work => {
                    store.engine.work();
                    store.note();
                }
                Event::Other(_, Ask::Delete(_) | Ask::Push(_)) => {}
                Event::Other(client, ask) if !store.engine.is_blocked(store.id(*client)) => store.ask(*client, ask),
                Event::Other(..) => {}
            }
        }
        let stop = Ok(Reply::Stop);
        let told = |store: &Told| store.told.get(&LONG).cloned().unwrap_or_default();
        let waiter = store.id(LONG);
        match end {
            0 => {
                let was_told = told(&store);
                store.engine.handle_request(waiter, Request::CancelWait);
                store.note();
                let last = Ok(Reply::Canceled);
                prop_assert_eq!(told(&store), [was_told, vec![last]].concat());
            }
            1 => store.ask(LONG, &Ask::Leave),
            _ => {
                while store.engine.works_for().is_some() {
                    store.engine.work();
                    store.note();
                }
                let missing: Vec<u8> =
                    keys.iter().copied().filter(|key| store.engine.value_of(&name(*key)).is_none()).collect();
                prop_assert_eq!(told(&store), if missing.is_empty() { vec![stop.clone()] } else { vec![] });
                // Somebody who is not blocked, whoever that is.
                let setter = 3;
                store.ask(setter, &Ask::Leave);
                store.ask(setter, &Ask::MultiSet(missing.iter().map(|key| (*key, 1)).collect()));
                prop_assert_eq!(told(&store), vec![stop]);
                store.ask(setter, &Ask::Delete(keys[0]));
                store.ask(LONG, &Ask::Get(keys[0]));
                let Some(Ok(Reply::Value(value))) = told(&store).pop() else { panic!("a value") };
                prop_assert!(!value.is_empty(), "what it has seen is there for it");
            }
        }
        prop_assert!(!store.engine.is_blocked(waiter));
        prop_assert_eq!(store.engine.works_for(), None);
    }
}

#[test]
fn a_wait_for_more_than_may_be_awaited_is_refused_and_leaves_nothing_behind() {
    let mut limits = Limits::default();
    (limits.turn_keys, limits.awaited_per_client) = (1, 10);
    let mut store = Told { engine: Engine::new(limits, 1, None), ..Told::new() };
    store.ask(0, &Ask::Set(0, 1));
    store.begin(&Long::Wait((0..20).collect()));
    while store.engine.works_for().is_some() {
        store.engine.work();
        store.note();
    }
    assert!(matches!(&store.told[&LONG][..], [Err(why)] if why.contains("10")), "{:?}", store.told);
    assert_eq!((store.engine.snapshot().awaited, store.engine.snapshot().blocked), (0, 0));
}

#[test]
fn what_is_much_to_store_is_stored_in_steps_too() {
    let mut store = Told { engine: Engine::new(Limits::default(), 1, None), ..Told::new() };
    let names: Vec<Vec<u8>> = (0..100).map(name).collect();
    let value = vec![b'7'; 60_000];
    let pairs: Vec<(&[u8], &[u8])> = names.iter().map(|name| (&name[..], &value[..])).collect();
    let mut bytes = Vec::new();
    Request::MultiSet { pairs: PairList::new(&pairs) }.encode(&mut bytes);
    let frame = RequestDecoder::default().next(&mut &bytes[..], &Limits::default()).unwrap().unwrap();
    assert!(store.engine.is_long(&frame));
    store.engine.begin(store.id(LONG), frame);
    let mut steps = 0;
    while store.engine.works_for().is_some() {
        store.engine.work();
        steps += 1;
    }
    store.note();
    assert!(steps > 15, "{steps} steps for 6 MB");
    assert_eq!((store.told.len(), store.engine.snapshot().keys), (0, 100));
    assert!(names.iter().all(|name| store.engine.value_of(name).is_some_and(|held| **held == *value)));
}

#[test]
fn letting_go_of_what_a_long_wait_has_seen_takes_its_time_too() {
    let mut store = Told::new();
    store.ask(0, &Ask::MultiSet((0..24).map(|key| (key, 1)).collect()));
    store.ask(1, &Ask::Wait((0..24).collect()));
    assert!(!store.engine.has_work());
    store.ask(1, &Ask::Get(0));
    let mut steps = 0;
    while store.engine.has_work() {
        assert_eq!((store.engine.works_for(), store.engine.work()), (None, None));
        steps += 1;
    }
    assert_eq!(steps, 24);
}

#[test]
fn a_client_that_is_gone_has_written_all_or_nothing_and_is_told_nothing() {
    for steps in 0..30 {
        for long in [Long::MultiSet((0..20).map(|key| (key, 1)).collect()), Long::MultiGet((0..20).collect())]
        {
            let mut store = Told::new();
            store.begin(&long);
            (0..steps).for_each(|_| _ = store.engine.work());
            let was_answered = store.engine.works_for().is_none();
            store.ask(LONG, &Ask::Leave);
            // Who comes in its place is another, and so is what it waits for.
            store.ask(LONG, &Ask::Wait(vec![3]));
            let is_written = matches!(long, Long::MultiSet(_)) && steps > 20 / 2;
            let told = store.told.remove(&LONG).unwrap_or_default();
            let was_answered = was_answered && matches!(long, Long::MultiGet(_));
            assert_eq!(
                told.len(),
                usize::from(was_answered) + usize::from(is_written),
                "after {steps} steps"
            );
            store.ask(0, &Ask::Check((0..20).collect()));
            assert_eq!(store.told[&0], [Ok(Reply::Checked(is_written))], "after {steps} steps");
            while store.engine.works_for().is_some() {
                store.engine.work();
                store.note();
            }
            assert_eq!(store.engine.snapshot().keys, if is_written { 20 } else { 0 }, "after {steps} steps");
            assert_eq!(store.engine.is_blocked(store.id(LONG)), !is_written);
        }
    }
}

#[test]
fn what_may_not_be_written_is_refused_as_a_whole() {
    let mut store = Told::new();
    let names: Vec<Vec<u8>> = (0..20).map(name).chain([b"rallypoint/x".to_vec()]).collect();
    let pairs: Vec<(&[u8], &[u8])> = names.iter().map(|name| (&name[..], &b"v"[..])).collect();
    let mut bytes = Vec::new();
    Request::MultiSet { pairs: PairList::new(&pairs) }.encode(&mut bytes);
    let frame = RequestDecoder::default().next(&mut &bytes[..], &Limits::default()).unwrap().unwrap();
    store.engine.begin(store.id(LONG), frame);
    while store.engine.works_for().is_some() {
        store.engine.work();
    }
    store.note();
    assert!(matches!(&store.told[&LONG][..], [Err(why)] if why.contains("rallypoint/x")), "{:?}", store.told);
    assert_eq!(store.engine.snapshot().keys, 0);
}

#[test]
fn a_store_that_is_nearly_full_takes_all_of_it_or_nothing() {
    let mut limits = Limits::default();
    (limits.turn_keys, limits.keys) = (1, 21);
    for (first, fits) in [(0, true), (1, true), (2, false)] {
        let mut store = Told { engine: Engine::new(limits.clone(), 1, None), ..Told::new() };
        store.ask(0, &Ask::MultiSet((0..20).map(|key| (key, 1)).collect()));
        store.begin(&Long::MultiSet((first..first + 20).map(|key| (key, 2)).collect()));
        while store.engine.works_for().is_some() {
            store.engine.work();
            store.ask(1, &Ask::Set(0, 3));
        }
        store.note();
        assert_eq!(store.told.contains_key(&LONG), !fits, "{:?}", store.told);
        assert_eq!(store.engine.snapshot().keys, if fits { 20 + usize::from(first) } else { 20 });
        assert!(!store.told.contains_key(&1), "{:?}", store.told);
    }
}
