//! Invariants read off the history of an engine, without a model: what was asked, and which client was answered what.

use std::collections::{BTreeMap, BTreeSet};

use rallypoint_core::store::{Answer, ClientId, Engine, EngineOptions};
use rallypoint_core::wire::Reply;

use crate::operation::{Operation, Text};
use crate::scenario::{SLOTS, Turn};

/// One thing that happened, and what came of it.
#[derive(Debug)]
pub(crate) struct Step {
    slot: usize,
    /// The request; `None` if the client disconnected.
    asked: Option<Operation>,
    /// The replies and their receivers.
    answers: Vec<(usize, Reply)>,
}

/// Carries out turns on an engine. A client that is blocked cancels or disconnects, and skips everything else.
pub(crate) fn of(turns: &[Turn]) -> Vec<Step> {
    let mut engine = Engine::new(EngineOptions::default(), ());
    let (mut history, mut blocked) = (Vec::new(), [false; SLOTS]);
    for turn in turns {
        let slot = turn.slot;
        let ends = turn.hangs_up.then_some(None);
        for asked in turn.operations.iter().map(Some).chain(ends) {
            let asked = asked.filter(|operation| !matches!(operation, Operation::Garbage(_)));
            if blocked[slot] && asked.is_some_and(|operation| *operation != Operation::CancelWait) {
                continue;
            }
            let client = ClientId::new(slot as u32);
            let mut answers = Vec::new();
            blocked[slot] = false;
            match asked {
                Some(operation) => {
                    match operation.with_request(|request| engine.handle_request(client, request)) {
                        Some(Ok(Answer::Reply(reply))) => answers.push((slot, reply)),
                        Some(Ok(Answer::Blocked)) => blocked[slot] = true,
                        _ => {}
                    }
                }
                None => engine.handle_disconnect(client),
            }
            while let Some(client) = engine.poll_woken() {
                blocked[client.index()] = false;
                answers.push((client.index(), Reply::Stop));
            }
            engine.check_invariants();
            history.push(Step { slot, asked: asked.cloned(), answers });
        }
    }
    history
}

/// Items come out once, in the order they went in, and a push wakes at most one waiter.
pub(crate) fn assert_queues_are_fair(history: &[Step]) {
    let mut pushed: BTreeMap<&Text, Vec<&[u8]>> = BTreeMap::new();
    let mut taken: BTreeMap<&Text, usize> = BTreeMap::new();
    // Clients that were woken and have done nothing since. If one then does something else, it hands its item on.
    let mut woken: BTreeSet<usize> = BTreeSet::new();
    for step in history {
        let hands_on = usize::from(woken.remove(&step.slot));
        woken.extend(step.answers.iter().map(|(slot, _)| *slot).filter(|slot| *slot != step.slot));
        match &step.asked {
            Some(Operation::QueuePush(queue, item)) => {
                pushed.entry(queue).or_default().push(item);
                assert!(step.answers.len() <= 1 + hands_on, "one push woke {:?}", step.answers);
            }
            Some(Operation::QueuePop(queue)) => {
                let [(_, Reply::Popped { before, item }), ..] = &step.answers[..] else { panic!("{step:?}") };
                let pushed = pushed.entry(queue).or_default();
                let taken = taken.entry(queue).or_default();
                assert_eq!(*before as usize, pushed.len() - *taken);
                assert_eq!(item.as_deref(), pushed.get(*taken).copied());
                *taken += usize::from(item.is_some());
            }
            _ => {}
        }
    }
}

/// A barrier releases as many clients as it is for, all different and still connected.
pub(crate) fn assert_barriers_count_the_living(history: &[Step]) {
    let mut rounds: BTreeMap<(&Text, i64), BTreeSet<usize>> = BTreeMap::new();
    for step in history {
        let Some(Operation::Barrier(key, world_size)) = &step.asked else {
            // A client that does anything else has left its barrier.
            rounds.values_mut().for_each(|round| {
                round.remove(&step.slot);
            });
            continue;
        };
        let round = rounds.entry((key, *world_size)).or_default();
        assert!(round.insert(step.slot), "client {} is at the barrier twice", step.slot);
        let stopped = step.answers.iter().filter(|(_, reply)| *reply == Reply::Stop);
        let stopped: Vec<usize> = stopped.map(|(slot, _)| *slot).collect();
        match round.len() as i64 == *world_size {
            true => {
                assert_eq!(stopped.len(), round.len(), "each is let go once");
                assert_eq!(BTreeSet::from_iter(stopped), std::mem::take(round));
            }
            false => assert_eq!(stopped, []),
        }
    }
}
