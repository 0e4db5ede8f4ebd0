//! One node of a static rendezvous, for Python.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use rallypoint_rendezvous::{
    Config, RendezvousError, RendezvousHandler, RendezvousParameters, StaticRendezvousHandler,
};

use super::calls::{Maker, interruptible};
use super::exceptions::{raised, raised_by_static};
use super::logging::listen;
use super::{Round, to_round};
use crate::stores;

/// One node of a static rendezvous.
#[pyclass(frozen, module = "rallypoint._rallypoint")]
pub(super) struct StaticNode {
    handler: Arc<StaticRendezvousHandler>,
    master_addr: String,
    /// Whoever meets the others holds this.
    turn: Arc<Mutex<()>>,
    maker: Maker,
}

#[pymethods]
impl StaticNode {
    /// The node of this rank. Rank 0 hosts the store.
    #[new]
    fn new(
        py: Python<'_>,
        master_addr: &str,
        master_port: i64,
        rank: i64,
        world_size: i64,
        run_id: &str,
        timeout: i64,
    ) -> PyResult<StaticNode> {
        listen(py)?;
        let make = || -> Result<StaticRendezvousHandler, RendezvousError> {
            let host = match master_addr.contains(':') {
                true => format!("[{master_addr}]"),
                false => master_addr.to_owned(),
            };
            let nodes = u64::try_from(world_size).unwrap_or(0);
            let config = Config::from([("rank".into(), rank.into()), ("timeout".into(), timeout.into())]);
            let endpoint = format!("{host}:{master_port}");
            let parameters = RendezvousParameters::new("static", &endpoint, run_id, nodes, nodes)?;
            StaticRendezvousHandler::create(&parameters.with_config(config)?)
        };
        let handler = Arc::new(make().map_err(|error| raised(py, error))?);
        Ok(StaticNode {
            handler,
            master_addr: master_addr.to_owned(),
            turn: Arc::default(),
            maker: Maker::here(),
        })
    }

    /// Waits until all nodes are here.
    fn next_rendezvous<'py>(&self, py: Python<'py>) -> PyResult<Round<'py>> {
        self.maker.check()?;
        let (joining, turn) = (Arc::clone(&self.handler), Arc::clone(&self.turn));
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        let round = interruptible(
            py,
            || {
                // In this order: whoever lets the handler wait again looks at the flag after that.
                stop.store(true, Ordering::SeqCst);
                self.handler.interrupt();
            },
            drop,
            move || {
                let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                joining.resume();
                match stopped.load(Ordering::SeqCst) {
                    true => Err(RendezvousError::Interrupted { run_id: joining.run_id().into() }),
                    false => joining.next_rendezvous(),
                }
            },
        )?
        .map_err(|error| raised_by_static(py, error))?;
        let store = self.handler.store().expect("the nodes have met in it");
        let store = stores::adopt(py, store, self.master_addr.clone(), true)?;
        // A prefix over the object, not over what is below it: a forked child must be able to connect anew.
        let part = stores::part_of(&store, self.handler.run_id())?;
        Ok(to_round(round, part))
    }
}
