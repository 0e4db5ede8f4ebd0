//! One turn at the file: to look, to look until something is there, to change it, to leave it. What is sought and what is
//! changed is said by the operations; here is the order of locks, and what may be done under which.

use std::sync::MutexGuard;
use std::time::Duration;

use rallypoint_core::client::{Awaited, Failure};
use rallypoint_core::record::{Admission, Record, Replay};
use rallypoint_core::wire::Op;

use super::FileStore;
use super::call::{Call, Pace};
use super::place::Access;
use super::view::View;
use crate::error::{FileFault, FileObstacle, Result, StoreError};

impl FileStore {
    pub(super) fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().expect("nothing panics while it holds the view")
    }

    /// Looks at what the file holds now.
    pub(super) fn look<T>(&self, call: &Call, see: impl FnOnce(&View) -> T) -> Result<T> {
        if let Some(metadata) = self.place.glimpse()? {
            let view = self.view();
            if view.covers(&metadata) {
                self.admit(view.replay())?;
                return Ok(see(&view));
            }
        }
        let locked = self.place.lock(Access::Read, call)?;
        let mut view = self.view();
        view.refresh(&locked, &self.place, &self.options.limits, call)?;
        self.admit(view.replay())?;
        Ok(see(&view))
    }

    /// Looks until there is what is sought, or the time is up.
    pub(super) fn await_keys<T>(
        &self,
        call: &Call,
        keys: &[Box<[u8]>],
        seek: impl Fn(&Replay) -> Option<T>,
    ) -> Result<T> {
        let mut pace = Pace::for_keys();
        let mut sought_in = None;
        loop {
            let looked = self.look(call, |view| {
                // Thousands of keys are not sought again where they were not found.
                if sought_in != Some(view.edition()) {
                    sought_in = Some(view.edition());
                    if let Some(found) = seek(view.replay()) {
                        return Ok(Some(found));
                    }
                }
                if call.is_over() { Err(self.timed_out(call, keys, view, None)) } else { Ok(None) }
            });
            let found = match looked {
                // What was seen before still tells more than that it can't be seen now. But of a file that is gone, no key
                // is there.
                Err(StoreError::FileTimeout { obstacle, .. })
                    if sought_in.is_some() && obstacle != FileObstacle::Missing =>
                {
                    return Err(self.timed_out(call, keys, &self.view(), Some(obstacle)));
                }
                looked => looked??,
            };
            if let Some(found) = found {
                return Ok(found);
            }
            // When the time is up there is one more look, and that one ends it.
            pace.pause(call);
        }
    }

    fn timed_out(
        &self,
        call: &Call,
        keys: &[Box<[u8]>],
        view: &View,
        obstacle: Option<FileObstacle>,
    ) -> StoreError {
        let mut context = call.context(self.place.path());
        if let Some(obstacle) = obstacle {
            context.peer.push_str(&format!(" (as it was seen last; at the end {obstacle})"));
        }
        if view.torn() > 0 {
            context.peer.push_str(&format!(" (its last {} bytes are a torn record)", view.torn()));
        }
        let present = keys.iter().map(|key| view.replay().value(key).is_some()).collect();
        context.failed(Failure::Timeout(Awaited::Keys(Some(present))))
    }

    /// Decides on what the file holds now, and writes the records that follow before anybody else can write.
    pub(super) fn change<T>(
        &self,
        call: &Call,
        decide: impl FnOnce(&Replay) -> Result<(Vec<Record>, T)>,
    ) -> Result<T> {
        // Torch's delete is the one writer that waits for a missing file rather than making it.
        let access = if call.op == Op::DeleteKey { Access::Write } else { Access::Create };
        let locked = self.place.lock(access, call)?;
        let mut view = self.view();
        view.refresh(&locked, &self.place, &self.options.limits, call)?;
        let claim = self.admit(view.replay())?;
        view.cut_torn_tail(&locked, &self.place)?;
        let (mut records, result) = decide(view.replay())?;
        records.splice(0..0, claim);
        view.append(&locked, &self.place, records)?;
        Ok(result)
    }

    /// Refuses a file of another run; the record that makes it ours, if it is nobody's yet.
    fn admit(&self, replay: &Replay) -> Result<Option<Record>> {
        let Some(run_id) = &self.options.run_id else { return Ok(None) };
        match replay.admit(run_id) {
            Admission::Ours => Ok(None),
            Admission::Claim(record) => Ok(Some(record)),
            Admission::Stale(found) => Err(StoreError::File {
                path: self.place.path().to_owned(),
                fault: FileFault::Stale { run_id: run_id.clone(), found },
            }),
        }
    }

    /// Signs out of the file, and removes it if this was the last one. If the file is gone or is another one now, this
    /// instance is not counted in it and there is nothing to do.
    pub(super) fn leave(&self, timeout: Option<Duration>) -> Result<()> {
        if !self.view().joined {
            return Ok(());
        }
        let call = self.begin(Op::Add, &["cleanup/", "refcount/"], timeout);
        let mut pace = Pace::for_lock();
        let locked = loop {
            match self.place.try_lock(Access::Write)? {
                Ok(locked) => break locked,
                Err(FileObstacle::Missing) => return Ok(()),
                Err(obstacle) if !pace.pause(&call) => return Err(call.gave_up(self.place.path(), obstacle)),
                Err(_) => {}
            }
        };
        let mut view = self.view();
        view.refresh(&locked, &self.place, &self.options.limits, &call)?;
        if !view.joined {
            return Ok(());
        }
        view.cut_torn_tail(&locked, &self.place)?;
        let leaving = view.replay().leave(self.options.num_workers);
        let leaving =
            leaving.map_err(|held| self.refused("refcount/", Failure::NotANumber { delta: -1, held }))?;
        view.append(&locked, &self.place, leaving.records.into())?;
        view.joined = false;
        // Still under the lock: who waits for it finds the file gone, and not its end written to nowhere.
        if leaving.last { self.place.remove() } else { Ok(()) }
    }
}
