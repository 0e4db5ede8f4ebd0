//! Invariants read off what happened, without a model: what was asked, who was answered what, over which connection.

use std::collections::{BTreeMap, BTreeSet};

use rallypoint_core::Limits;
use rallypoint_core::wire::{Reply, ReplyDecoder, ReplyKind};

use crate::operation::{Operation, Text};
use crate::server::{Step, Transcript};

/// One reply for each request that has one, in order, with nothing between; a cancelled wait shares its cancel's.
pub(crate) fn assert_answered_in_order(transcript: &Transcript) {
    let mut replies = &transcript.replies[..];
    let mut decoder = ReplyDecoder::default();
    for (at, asked) in transcript.asked.iter().enumerate() {
        let is_last = at + 1 == transcript.asked.len();
        if is_last && transcript.was_refused {
            break;
        }
        let Some(kind) = asked.with_request(|request| request.reply_kind()).flatten() else { continue };
        if let Operation::Wait(_) | Operation::Barrier(..) = asked {
            match (replies.first(), transcript.asked.get(at + 1)) {
                (Some(0), _) => replies = &replies[1..],
                (Some(1), Some(Operation::CancelWait)) => {}
                (None, None) => {}
                other => panic!("{asked:?} was answered {other:?}"),
            }
            continue;
        }
        let reply = decoder.next(kind, &mut replies, &Limits::default());
        let reply = reply.expect("a reply of this kind").unwrap_or_else(|| panic!("no reply to {asked:?}"));
        if let ReplyKind::Waited(_) = kind {
            assert_eq!(reply, Reply::Canceled);
        }
    }
    assert_eq!(replies, [], "replies that nobody asked for");
}

/// Requests are carried out in the order they were sent; only a cancel may go before others.
pub(crate) fn assert_carried_out_in_order(transcript: &Transcript, sent: &[Operation]) {
    let no_cancels = |operations: &[Operation]| -> Vec<Operation> {
        operations.iter().filter(|operation| **operation != Operation::CancelWait).cloned().collect()
    };
    let (asked, sent) = (no_cancels(&transcript.asked), no_cancels(sent));
    assert!(sent.starts_with(&asked), "sent {sent:?}, carried out {asked:?}");
}

/// Items come out once, in the order they went in, and a push wakes at most one waiter.
pub(crate) fn assert_queues_are_fair(history: &[Step]) {
    let mut pushed: BTreeMap<&Text, Vec<&[u8]>> = BTreeMap::new();
    let mut taken: BTreeMap<&Text, usize> = BTreeMap::new();
    // Woken, and nothing done since: one who then does something else hands its place on.
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

/// A barrier lets go of as many as it is for, all different and still there, as soon as they are.
pub(crate) fn assert_barriers_count_the_living(history: &[Step]) {
    let mut rounds: BTreeMap<(&Text, i64), BTreeSet<usize>> = BTreeMap::new();
    for step in history {
        let Some(Operation::Barrier(key, world_size)) = &step.asked else {
            // Whatever else a client does, it is at no barrier while it does it.
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
