//! `rallypoint store` performs one operation on a TCPStore, which can be that of a running torch job.

mod outcome;
mod state;

use std::ffi::OsString;
use std::io::{IsTerminal, Read};
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use rallypoint_core::{Quantity, counted};
use rallypoint_rendezvous::Connecting;
use rallypoint_store::{Endpoint, Exchange, Store, StoreError, TcpStore, TcpStoreOptions};

use crate::log::LogArgs;
use crate::wait_indicator::WaitIndicator;
use crate::{exit_code, live_line, log, output};
use outcome::Outcome;

const EXAMPLES: &str = "  \
  rallypoint store --endpoint node0:29400 ping
  rallypoint store -e node0:29400 list
  rallypoint store -e node0:29400 set epoch 17
  rallypoint store -e node0:29400 get epoch
  rallypoint store -e node0:29400 --json get epoch
  cat model.cfg | rallypoint store -e node0:29400 set config -
  rallypoint store -e node0:29400 --timeout 5min wait rank0/ready rank1/ready
  rallypoint store -e node0:29400 clear --prefix my-job/";

/// Read and write a store: ours, or that of a running torch job
///
/// Write keys as programs do, without the slash that torch puts before each key on the wire.
#[derive(Debug, Args)]
#[command(after_help = exit_code::help_with_examples("store", EXAMPLES))]
pub(crate) struct StoreArgs {
    /// Server of the store
    #[arg(
        short,
        long,
        value_name = "HOST:PORT",
        env = "RALLYPOINT_ENDPOINT",
        global = true,
        help_heading = "Connection"
    )]
    endpoint: Option<Endpoint>,
    /// Timeout for connecting and the operation together (250ms, 10s, 5min; 0 for none)
    #[arg(
        short,
        long,
        value_name = "TIME",
        default_value = "10s",
        value_parser = Duration::parse,
        global = true,
        help_heading = "Connection"
    )]
    timeout: Duration,
    /// Print the result, or the error of the operation, as one line of JSON; errors also go to standard error as text
    #[arg(long, global = true, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    log: LogArgs,
    #[command(subcommand)]
    operation: Operation,
}

#[derive(Debug, Subcommand)]
enum Operation {
    /// Print the value of a key
    ///
    /// On a terminal, the state of a rendezvous (`torch.rendezvous.RUN_ID`) is decoded.
    Get {
        /// Key to read
        key: String,
        /// Wait until the key is present
        #[arg(long)]
        wait: bool,
        /// Print the bytes unchanged, without a newline at the end
        #[arg(long)]
        raw: bool,
    },
    /// Store a value
    Set {
        /// Key to write
        key: String,
        /// Value; `-` or nothing reads it from standard input
        #[arg(allow_hyphen_values = true)]
        value: Option<OsString>,
    },
    /// Add to a number and print the sum
    Add {
        /// Key of the number
        key: String,
        /// Number to add; can be negative
        #[arg(default_value_t = 1, allow_negative_numbers = true)]
        delta: i64,
    },
    /// Compare and set: store DESIRED if the value is EXPECTED
    Cas {
        /// Key to write
        key: String,
        /// Expected value; an empty one also matches an absent key; `-` reads it from standard input
        #[arg(allow_hyphen_values = true)]
        expected: OsString,
        /// New value; `-` reads it from standard input; only one of EXPECTED and DESIRED can be `-`
        #[arg(allow_hyphen_values = true)]
        desired: OsString,
    },
    /// Append bytes to a value
    Append {
        /// Key to write
        key: String,
        /// Bytes to append; `-` or nothing reads them from standard input
        #[arg(allow_hyphen_values = true)]
        value: Option<OsString>,
    },
    /// Print which keys are present
    Check {
        /// Keys to check
        #[arg(required = true)]
        keys: Vec<String>,
    },
    /// Wait until all keys are present
    Wait {
        /// Keys to wait for
        #[arg(required = true)]
        keys: Vec<String>,
    },
    /// Delete keys and print how many there were
    Delete {
        /// Keys to delete
        #[arg(required = true)]
        keys: Vec<String>,
    },
    /// Delete all keys with a prefix and print how many there were
    ///
    /// The keys of a c10d rendezvous start with `torch.rendezvous.RUN_ID` and `rallypoint.rendezvous/RUN_ID/`. Queues
    /// are not deleted.
    Clear {
        /// Prefix of the keys; an empty prefix ('') deletes every key of the store
        #[arg(long, allow_hyphen_values = true)]
        prefix: String,
    },
    /// Print the names of all keys, sorted
    List {
        /// Prefix of the keys
        #[arg(default_value = "")]
        prefix: String,
    },
    /// Print the number of keys
    Count,
    /// Append an item to a queue
    Push {
        /// Key of the queue
        key: String,
        /// Item; `-` or nothing reads it from standard input
        #[arg(allow_hyphen_values = true)]
        value: Option<OsString>,
    },
    /// Remove the first item of a queue and print it
    Pop {
        /// Key of the queue
        key: String,
        /// Wait until there is an item
        #[arg(long)]
        wait: bool,
        /// Print the bytes unchanged, without a newline at the end
        #[arg(long)]
        raw: bool,
    },
    /// Print the number of items in a queue
    Len {
        /// Key of the queue
        key: String,
    },
    /// Wait at a barrier until WORLD_SIZE clients have arrived
    Barrier {
        /// Key of the barrier; the same for all clients
        key: String,
        /// Number of clients
        #[arg(value_parser = clap::value_parser!(u64).range(1..=i64::MAX as u64))]
        world_size: u64,
    },
    /// Print the identity of the server and the time of one round trip
    Ping,
}

pub(crate) fn run(args: StoreArgs) -> ExitCode {
    let StoreArgs { endpoint, timeout, json, log, operation } = args;
    log::start(&log);
    let Some(endpoint) = endpoint else {
        output::write_stderr(
            "rallypoint store: no endpoint; use --endpoint HOST:PORT, or set RALLYPOINT_ENDPOINT",
        );
        return ExitCode::from(exit_code::USAGE);
    };
    if let Operation::Cas { expected, desired, .. } = &operation
        && expected == "-"
        && desired == "-"
    {
        let error = StoreError::InvalidArgument("only one of EXPECTED and DESIRED can be `-`".into());
        return outcome::print_error(&error, &endpoint, json);
    }
    if std::io::stderr().is_terminal() {
        live_line::clear_on_interrupt();
    }
    let deadline = Deadline { started: Instant::now(), timeout };
    let outcome = connect(&endpoint, &deadline).and_then(|store| perform(&store, operation, &deadline));
    match outcome {
        Ok(outcome) => outcome.print(json),
        Err(error) => outcome::print_error(&error, &endpoint, json),
    }
}

/// The timeout of a whole command, which covers connecting and the operation.
struct Deadline {
    started: Instant,
    timeout: Duration,
}

impl Deadline {
    /// Returns the remaining time, or `None` if there is no timeout. A timeout of 0 means none.
    fn remaining(&self) -> Option<Duration> {
        let timeout = Some(self.timeout).filter(|timeout| !timeout.is_zero());
        timeout.map(|timeout| timeout.saturating_sub(self.started.elapsed()))
    }
}

fn connect(endpoint: &Endpoint, deadline: &Deadline) -> Result<TcpStore, StoreError> {
    if endpoint.port == 0 {
        return Err(StoreError::InvalidArgument(format!("{endpoint}: port 0 is not the port of a server")));
    }
    let waiting = WaitIndicator::show(format!("connecting to {endpoint}"));
    // Opening the store would retry until the deadline if the name does not resolve. Such a name is most likely
    // misspelled, so fail here without retries.
    endpoint.resolve_within(deadline.remaining())?;
    let options = TcpStoreOptions::new(endpoint.clone()).timeout(deadline.remaining());
    let mut logged = None;
    TcpStore::open_reporting(options, &mut |fault| {
        let is_due = deadline.started.elapsed() >= Connecting::LOG_GRACE;
        if !waiting.is_on_terminal() && is_due && logged.as_ref() != Some(fault) {
            tracing::info!("connecting to {endpoint}: {fault}\nhint: {}", fault.hint());
            logged = Some(fault.clone());
        }
        waiting.show_fault(fault);
    })
}

fn perform(store: &TcpStore, operation: Operation, deadline: &Deadline) -> Result<Outcome, StoreError> {
    store.set_timeout(deadline.remaining());
    Ok(match operation {
        Operation::Get { key, wait, raw } => {
            if !wait && !store.check(&[&key])? {
                return Ok(Outcome::Absent { key });
            }
            let _waiting = WaitIndicator::show(format!("waiting for {key}"));
            match store.get(&key) {
                Ok(value) => Outcome::Value { value, key, raw },
                // The key was deleted after the check.
                Err(error) if error.awaited().is_some() && !wait => Outcome::Absent { key },
                Err(error) => return Err(error),
            }
        }
        Operation::Set { key, value } => {
            store.set(&key, &read_value(value)?)?;
            Outcome::Done { key }
        }
        Operation::Add { key, delta } => Outcome::Number { name: "value", number: store.add(&key, delta)? },
        Operation::Cas { key, expected, desired } => {
            let (expected, desired) = (read_value(Some(expected))?, read_value(Some(desired))?);
            let outcome = store.compare_exchange(&key, &expected, &desired)?;
            match outcome {
                Exchange::Stored => Outcome::Done { key },
                Exchange::Mismatch(value) => Outcome::OtherValue { key, value },
                Exchange::Absent => Outcome::Absent { key },
            }
        }
        Operation::Append { key, value } => {
            store.append(&key, &read_value(value)?)?;
            Outcome::Done { key }
        }
        Operation::Check { keys } => {
            let states = keys.into_iter().map(|key| {
                store.set_timeout(deadline.remaining());
                Ok((store.check(&[&key])?, key))
            });
            Outcome::Presence(states.collect::<Result<_, StoreError>>()?)
        }
        Operation::Wait { keys } => {
            let keys: Vec<_> = keys.iter().map(String::as_str).collect();
            let _waiting = WaitIndicator::show(format!("waiting for {}", keys.join(", ")));
            store.wait(&keys)?;
            Outcome::Waited
        }
        Operation::Delete { keys } => {
            let mut count = 0;
            for key in &keys {
                store.set_timeout(deadline.remaining());
                count += u64::from(store.delete_key(key)?);
            }
            Outcome::Deleted { count }
        }
        Operation::Clear { prefix } => {
            let keys = keys_with_prefix(store, &prefix)?;
            let mut count = 0;
            for key in &keys {
                store.set_timeout(deadline.remaining());
                count += u64::from(store.delete_key(key).inspect_err(|_| {
                    let all = counted(keys.len(), "key");
                    output::write_stderr(&format!(
                        "rallypoint store: deleted {count} of {all} before the error"
                    ));
                })?);
            }
            Outcome::Cleared { count }
        }
        Operation::List { prefix } => Outcome::Keys(keys_with_prefix(store, &prefix)?),
        Operation::Count => Outcome::Number { name: "keys", number: store.num_keys()? as i64 },
        Operation::Push { key, value } => {
            store.queue_push(&key, &read_value(value)?)?;
            Outcome::Done { key }
        }
        Operation::Pop { key, wait, raw } => {
            let _waiting = WaitIndicator::show(format!("waiting for an item in {key}"));
            let popped = if wait { store.queue_pop(&key) } else { store.try_queue_pop(&key) };
            match popped {
                Ok(value) => Outcome::Value { key, value, raw },
                Err(StoreError::QueueEmpty { key }) => Outcome::Empty { key },
                Err(error) => return Err(error),
            }
        }
        Operation::Len { key } => Outcome::Number { name: "items", number: store.queue_len(&key)? as i64 },
        Operation::Barrier { key, world_size } => {
            let _waiting = WaitIndicator::show(format!("waiting for {world_size} clients at barrier {key}"));
            store.barrier(&key, world_size)?;
            Outcome::Waited
        }
        Operation::Ping => Outcome::Pong { time: store.ping()?, identity: store.server_identity() },
    })
}

/// Returns the keys of the store that start with `prefix`, sorted.
fn keys_with_prefix(store: &TcpStore, prefix: &str) -> Result<Vec<String>, StoreError> {
    let mut keys = store.list_keys()?;
    keys.retain(|key| key.starts_with(prefix));
    keys.sort();
    Ok(keys)
}

/// Returns a value from the command line, or reads it from standard input if it is `-` or missing.
fn read_value(value: Option<OsString>) -> Result<Vec<u8>, StoreError> {
    match value {
        Some(value) if value != "-" => Ok(value.into_vec()),
        _ => {
            let mut bytes = Vec::new();
            std::io::stdin().lock().read_to_end(&mut bytes).map_err(|error| {
                StoreError::InvalidArgument(format!(
                    "the value could not be read from standard input: {error}"
                ))
            })?;
            Ok(bytes)
        }
    }
}
