//! Measures the latencies of well-behaved clients while other clients attack the server.
//!
//! A busy machine delays all clients. So each measurement has a control: clients of the same kind use an idle server at
//! the same time. Only the difference between the latencies of the two servers counts.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rallypoint_core::wire::{Reply, Request};

use super::{Client, Server};

/// Connects to a server with the handshake, sets a value and gets it. Returns the total time.
pub(crate) fn probe(address: SocketAddr) -> io::Result<Duration> {
    let start = Instant::now();
    let mut client = Client::try_connect(address)?;
    let value = start.elapsed().as_nanos().to_le_bytes();
    let key = b"/health";
    client.try_send(&super::message(Request::Set { key, value: value[..].into() }))?;
    let reply = client.try_request(Request::Get { key })?;
    let took = start.elapsed();
    match reply {
        Reply::Value(got) if *got == value => Ok(took),
        // Another probe may have set its own value between the SET and the GET.
        Reply::Value(got) if got.len() == value.len() => Ok(took),
        other => Err(io::Error::other(format!("{other:?}"))),
    }
}

/// A client that sends requests continuously, on a thread of its own.
pub(crate) struct LatencyProbe {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Duration>>,
}

impl LatencyProbe {
    /// Starts a thread that sends about 1,000 pings per second over one connection.
    pub(crate) fn ping_continuously(address: SocketAddr) -> LatencyProbe {
        let mut client = Client::connect(address);
        LatencyProbe::spawn(Duration::from_millis(1), move || {
            let start = Instant::now();
            client.ping();
            start.elapsed()
        })
    }

    /// Starts a thread that calls [`probe`] about 100 times per second, each time over a new connection.
    pub(crate) fn connect_continuously(address: SocketAddr) -> LatencyProbe {
        LatencyProbe::spawn(Duration::from_millis(10), move || probe(address).expect("a probe is served"))
    }

    /// Starts a thread that calls `measure` repeatedly, with a pause between two calls.
    fn spawn(pause: Duration, mut measure: impl FnMut() -> Duration + Send + 'static) -> LatencyProbe {
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut times = Vec::new();
            loop {
                times.push(measure());
                if stopped.load(Ordering::Relaxed) {
                    return times;
                }
                std::thread::sleep(pause);
            }
        });
        LatencyProbe { stop, thread }
    }

    /// Stops the probe and returns its latencies, sorted. Panics if a request was not answered.
    pub(crate) fn finish(self) -> Vec<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        let mut times = self.thread.join().expect("every request was answered");
        times.sort();
        times
    }
}

/// Returns the percentile of sorted latencies: the latency that `percent` percent of the requests do not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

/// The sorted latencies on one server: of pings over one connection, and of calls of [`probe`].
#[derive(Debug)]
struct Latencies {
    pings: Vec<Duration>,
    probes: Vec<Duration>,
}

impl Latencies {
    /// Returns whether the latencies exceed those of an idle server by less than `bound`. Compares the given
    /// percentile of the pings and the median of the probes. The bound for the probes is at least 5 ms.
    fn is_within(&self, bound: Duration, idle: &Latencies, percent: usize) -> bool {
        percentile(&self.pings, percent) < bound + percentile(&idle.pings, percent)
            && percentile(&self.probes, 50)
                < bound.max(Duration::from_millis(5)) + percentile(&idle.probes, 50)
    }

    fn summary(&self) -> String {
        let [ping, slow_ping] = [50, 99].map(|percent| percentile(&self.pings, percent));
        let probe = percentile(&self.probes, 50);
        format!("{} pings, median {ping:?}, p99 {slow_ping:?}; probes, median {probe:?}", self.pings.len())
    }
}

/// Checks that `attack` delays no other client: while it runs, the 99th percentile of the pings exceeds that of an idle
/// server by less than `bound`, and the median of the probes by less than `bound` or 5 ms, whichever is longer. One of
/// six runs must pass.
pub(crate) fn assert_latency_unaffected(server: &Server, bound: Duration, mut attack: impl FnMut()) {
    const RUNS: usize = 6;
    let idle = Server::start();
    let mut report = String::new();
    for _ in 0..RUNS {
        let start_probes = |server: &Server| {
            (
                LatencyProbe::ping_continuously(server.address()),
                LatencyProbe::connect_continuously(server.address()),
            )
        };
        let (start, cpu_wait) = (Instant::now(), server.process().cpu_wait());
        let both = [start_probes(server), start_probes(&idle)];
        attack();
        let [attacked, control] =
            both.map(|(pings, probes)| Latencies { pings: pings.finish(), probes: probes.finish() });
        // Other programs may use the CPU. The bound grows with the share of the time for which the server waits for a
        // CPU. If that share is above 10 %, the median of the pings is compared instead of the 99th percentile.
        let cpu_wait = (server.process().cpu_wait() - cpu_wait).as_secs_f64() / start.elapsed().as_secs_f64();
        let percent = if cpu_wait > 0.1 { 50 } else { 99 };
        let allowed = bound.div_f64(1.0 - cpu_wait.min(0.9));
        report += &format!(
            "\n  attacked: {}\n  idle:     {}\n  the attacked server waited for a CPU {:.0} % of the time",
            attacked.summary(),
            control.summary(),
            cpu_wait * 100.0
        );
        if attacked.is_within(allowed, &control, percent) {
            return println!("other clients were not delayed:{report}");
        }
    }
    panic!("other clients waited more than {bound:?} longer than on the idle server:{report}");
}
