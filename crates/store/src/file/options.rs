//! How a FileStore is to be opened.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::Limits;
use rallypoint_core::client::Cancellation;

use super::FileStore;
use crate::error::Result;
use crate::options::setters;
use crate::store::DEFAULT_TIMEOUT;

/// What a [`FileStore`] may be told before it is opened.
///
/// ```no_run
/// # use std::time::Duration;
/// # use rallypoint_store::FileStoreOptions;
/// # fn main() -> rallypoint_store::Result<()> {
/// let store = FileStoreOptions::new("/scratch/job-7/store").num_workers(4).timeout(Duration::from_secs(30)).open()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FileStoreOptions {
    pub(super) path: PathBuf,
    pub(super) num_workers: Option<u64>,
    pub(super) timeout: Option<Duration>,
    pub(super) shared: bool,
    pub(super) run_id: Option<String>,
    pub(super) limits: Limits,
    pub(super) cancellation: Option<Arc<dyn Cancellation>>,
}

impl FileStoreOptions {
    /// A file at this path, of this user alone, that nobody removes.
    pub fn new(path: impl Into<PathBuf>) -> FileStoreOptions {
        FileStoreOptions {
            path: path.into(),
            num_workers: None,
            timeout: Some(DEFAULT_TIMEOUT),
            shared: false,
            run_id: None,
            limits: Limits::default(),
            cancellation: None,
        }
    }

    setters! {
        /// How many must have closed the file before the last one out removes it. All who share the file should say the same.
        num_workers: Option<u64>;
        /// How long opening and every later operation may take; `None` for without end.
        timeout: Option<Duration>;
        /// Whether to use a file that belongs to another user or that others may write to. Whoever can write to it decides
        /// what this process reads. A file that isn't there is made for this user alone (mode 0600) all the same.
        shared: bool;
        /// The longest key and value that are taken for such.
        limits: Limits;
        /// Sets what ends calls early, from opening the store on.
        cancellation: Option<Arc<dyn Cancellation>>;
    }

    /// Refuses a file that an earlier run left behind.
    ///
    /// The first one to open a file without any user's keys writes the run's name into it; a file that names another
    /// run, or that holds keys but names none, is then [`FileFault::Stale`](crate::FileFault::Stale). Torch's processes
    /// neither write nor check the name, so in a job that mixes both one of ours must come first.
    pub fn run_id(mut self, run_id: impl Into<String>) -> FileStoreOptions {
        self.run_id = Some(run_id.into());
        self
    }

    /// Opens it.
    pub fn open(self) -> Result<FileStore> {
        FileStore::with_options(self)
    }
}
