//! Rows R08–R11 in docs/internals/robustness.md: legal but expensive requests, and thousands of random frames.

use std::time::{Duration, Instant};

use rallypoint_core::wire::{KeyList, MAGIC, Op, PairList, Reply, Request};

use crate::harness::{
    Client, HEAP_BYTES, KIB, LatencyProbe, MIB, Server, assert_latency_unaffected, exclusive, is_soak,
    message, scaled,
};

#[test]
fn r08_a_request_sent_byte_by_byte_costs_linear_cpu_time() {
    let _exclusive = exclusive();
    let mut server = Server::start();
    let keys: Vec<String> = (0..131_072).map(|n| format!("/key/{n}")).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
    let frame = message(Request::Wait { keys: KeyList::new(&keys) });
    let (start_of_frame, mut end) = frame.split_at(frame.len() - 6_000);
    let mut attacker = server.connect();
    attacker.send(start_of_frame);
    server.wait_until_idle();
    let mut spent = Vec::new();
    assert_latency_unaffected(&server, Duration::from_millis(1), || {
        let before = server.process().cpu();
        let start = Instant::now();
        // The attacker sends at most 500 bytes per second.
        for byte in &end[..250] {
            attacker.send(&[*byte]);
            std::thread::sleep(Duration::from_millis(2));
        }
        end = &end[250..];
        spent.push((server.process().cpu() - before).as_secs_f64() / start.elapsed().as_secs_f64());
    });
    // The CPU time includes the requests of the latency probes. A parser that starts again with each byte would use
    // one CPU completely.
    let least = spent.iter().copied().fold(f64::INFINITY, f64::min);
    println!("{:.1} % of a CPU", least * 100.0);
    assert!(least < 0.4, "{spent:?} of a CPU");
    drop(attacker);
    server.assert_healthy();
}

/// Sets `count` keys to values of 16 bytes in one request. Returns the CPU time of the server and the total time.
fn multi_set(server: &Server, count: usize) -> (Duration, Duration) {
    let keys: Vec<String> = (0..count).map(|n| format!("/key/{n}")).collect();
    let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (key.as_bytes(), &[7; 16][..])).collect();
    let frame = message(Request::MultiSet { pairs: PairList::new(&pairs) });
    let mut client = server.connect();
    let (before, start) = (server.process().cpu(), Instant::now());
    client.send(&frame);
    client.ping();
    (server.process().cpu() - before, start.elapsed())
}

#[test]
fn r09_the_largest_multi_set_takes_at_most_500_ms_and_linear_cpu_time() {
    let _exclusive = exclusive();
    let mut server = Server::start();
    let runs: Vec<_> =
        (0..5).map(|_| (multi_set(&server, 131_072 / 16).0, multi_set(&server, 131_072))).collect();
    let few = runs.iter().map(|(few, _)| *few).min().expect("five runs");
    let all = runs.iter().map(|(_, (all, _))| *all).min().expect("five runs");
    let took = runs.iter().map(|(_, (_, took))| *took).min().expect("five runs");
    println!("CPU time: {few:?} for 8,192 keys, {all:?} for 131,072 keys, which took {took:?}");
    assert!(took < Duration::from_millis(500), "{took:?}");
    // Sixteen times as many keys may cost more than sixteen times as much CPU time, because they don't fit into the
    // CPU caches. Quadratic work would cost 256 times as much.
    assert!(all < few * 128, "CPU time: {few:?} for 8,192 keys, {all:?} for 131,072 keys");
    server.assert_healthy_with_stored(131_072 * 200);
}

fn pairs_with_value<'a>(keys: &'a [String], value: &'a [u8]) -> Vec<(&'a [u8], &'a [u8])> {
    keys.iter().map(|key| (key.as_bytes(), value)).collect()
}

/// Time for which one request of the maximum size may delay other clients. The server carries it out in one turn. A
/// debug build takes longer.
pub(crate) const LARGE_REQUEST_GRACE: Duration =
    Duration::from_millis(if cfg!(debug_assertions) { 100 } else { 50 });

#[test]
fn r09_large_multi_sets_delay_other_clients_by_at_most_the_grace() {
    let _exclusive = exclusive();
    let mut server = Server::start();
    let large = vec![5; 4 * MIB];
    let frame = message(Request::MultiSet { pairs: PairList::new(&[(b"/1", &large), (b"/2", &large)]) });
    let keys: Vec<String> = (0..10_000).map(|n| format!("/key/{n}")).collect();
    let many = pairs_with_value(&keys, &[7; 16]);
    let many = message(Request::MultiSet { pairs: PairList::new(&many) });
    let middling = pairs_with_value(&keys[..150], &large[..60 * KIB]);
    let middling = message(Request::MultiSet { pairs: PairList::new(&middling) });
    let mut client = server.connect();
    assert_latency_unaffected(&server, LARGE_REQUEST_GRACE, || {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(500) {
            for frame in [&frame, &many, &middling] {
                client.send(frame);
                client.ping();
            }
        }
    });
    drop(client);
    server.assert_healthy_with_stored(2 * large.len() + 10_000 * 200 + 150 * 60 * KIB + HEAP_BYTES);
}

/// A client sends requests with the maximum number of keys, one after the other. No other client sees a MULTI_SET
/// that is only partly applied.
#[test]
fn r09_requests_with_the_maximum_number_of_keys_delay_other_clients_by_at_most_the_grace() {
    let _exclusive = exclusive();
    let mut server = Server::start();
    let names: Vec<String> = (0..131_072).map(|n| format!("/key/{n}")).collect();
    let keys: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    let set = |value: &[u8]| {
        let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (*key, value)).collect();
        message(Request::MultiSet { pairs: PairList::new(&pairs) })
    };
    let sets = [set(&[7; 16]), set(&[8; 16])];
    let keys = KeyList::new(&keys);
    let mut client = server.connect();
    client.send(&sets[0]);
    client.ping();
    assert_latency_unaffected(&server, LARGE_REQUEST_GRACE, || {
        let mut other = server.connect();
        for set in sets.iter().rev() {
            client.send(set);
            let Reply::Values(seen) = other.request(Request::MultiGet { keys }) else { panic!() };
            assert!(seen.iter().all(|value| *value == seen[0]), "a client saw half of a multi_set");
            client.ping();
            assert_eq!(client.request(Request::Check { keys }), Reply::Checked(true));
            assert_eq!(client.request(Request::Wait { keys }), Reply::Stop);
            let Reply::Values(seen) = client.request(Request::MultiGet { keys }) else { panic!() };
            assert!(seen.len() == keys.len() && seen.iter().all(|value| value.len() == 16));
        }
    });
    drop(client);
    server.assert_healthy_with_stored(131_072 * 200 + HEAP_BYTES);
}

/// The server serves the connections in turns, so that no client waits forever.
#[test]
fn r09_many_clients_with_large_requests_are_all_answered() {
    let _exclusive = exclusive();
    let mut server = Server::start();
    let names: Vec<String> = (0..20_000).map(|n| format!("/key/{n}")).collect();
    let keys: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    let set = message(Request::MultiSet { pairs: PairList::new(&pairs_with_value(&names, &[7; 16])) });
    let keys = KeyList::new(&keys);
    let [get, check, wait] =
        [Request::MultiGet { keys }, Request::Check { keys }, Request::Wait { keys }].map(message);
    let start_client = || {
        let (address, all) = (server.address(), [&set[..], &get, &wait, &check, &set, &check].concat());
        std::thread::spawn(move || {
            let mut client = Client::connect(address);
            client.send(&all);
            client.send(&message(Request::Ping { nonce: 7 }));
            client.shutdown_write();
            client.bytes(20_000 * 24);
            assert_eq!(client.bytes(3), [0; 3], "the wait and both checks");
            assert_eq!(client.bytes(4), 7u32.to_le_bytes());
        })
    };
    let threads: Vec<_> = (0..12).map(|_| start_client()).collect();
    for (n, thread) in threads.into_iter().enumerate() {
        assert!(thread.join().is_ok(), "client {n} is not answered");
    }
    server.assert_healthy_with_stored(20_000 * 200 + HEAP_BYTES);
}

#[test]
fn one_connection_that_never_pauses_delays_no_other_client() {
    let _exclusive = exclusive();
    let mut server = Server::start();
    let set = message(Request::Set { key: b"/k", value: (&b"v"[..]).into() });
    let small =
        [message(Request::Ping { nonce: 1 }), message(Request::CancelWait), message(Request::NumKeys), set];
    for request in small {
        let bytes = request.repeat(256 * KIB / request.len());
        assert_latency_unaffected(&server, Duration::from_millis(5), || {
            let mut client = server.connect();
            let (start, mut at, mut sent) = (Instant::now(), 0, 0);
            while start.elapsed() < Duration::from_millis(400) {
                let taken = client.send_nonblocking(&bytes[at..]);
                (at, sent) = ((at + taken) % bytes.len(), sent + taken);
                client.discard_replies();
            }
            println!("{} MiB of requests of {} bytes", sent / MIB, request.len());
        });
    }
    server.assert_healthy();
}

/// A small random number generator (splitmix64). It produces the same numbers on every machine.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn bytes(&mut self, max_len: usize) -> Vec<u8> {
        let len = self.below(max_len + 1);
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// Returns a random, well-formed request.
    fn request(&mut self) -> Vec<u8> {
        let key = format!("/fuzz/{}", self.below(16));
        let (key, value) = (key.as_bytes(), self.bytes(16));
        let value = value[..].into();
        let number = self.next() as i64;
        let pairs = [(key, &b"1"[..]), (b"/fuzz/other", b"2")];
        let keys = [key, b"/fuzz/other"];
        message(match Op::ALL[self.below(Op::ALL.len())] {
            Op::Validate => Request::Validate { magic: number as u32 },
            Op::Set => Request::Set { key, value },
            Op::CompareSet => Request::CompareSet { key, expected: b"1".into(), desired: value },
            Op::Get => Request::Get { key },
            Op::Add => Request::Add { key, delta: number },
            Op::Check => Request::Check { keys: KeyList::new(&keys) },
            Op::Wait => Request::Wait { keys: KeyList::new(&keys) },
            Op::NumKeys => Request::NumKeys,
            Op::DeleteKey => Request::DeleteKey { key },
            Op::Append => Request::Append { key, value: (&b"+"[..]).into() },
            Op::MultiGet => Request::MultiGet { keys: KeyList::new(&keys) },
            Op::MultiSet => Request::MultiSet { pairs: PairList::new(&pairs) },
            Op::CancelWait => Request::CancelWait,
            Op::Ping => Request::Ping { nonce: number as u32 },
            Op::QueuePush => Request::QueuePush { key, value: (&b"i"[..]).into() },
            Op::QueuePop => Request::QueuePop { key },
            Op::QueueLen => Request::QueueLen { key },
            Op::ListKeys => Request::ListKeys,
            Op::Barrier => Request::Barrier { key, world_size: number % 4 },
            Op::Message => Request::Message { message: value },
        })
    }

    /// Returns the bytes that one connection sends. In most cases they contain a malformed request.
    fn frame(&mut self) -> Vec<u8> {
        let mut bytes = message(Request::Validate { magic: MAGIC });
        match self.below(6) {
            0 => return self.bytes(64),
            1 => bytes.extend(self.bytes(64)),
            2 => bytes.extend(self.request()),
            3 => {
                let request = self.request();
                bytes.extend(&request[..self.below(request.len())]);
            }
            4 => {
                let mut request = self.request();
                let at = self.below(request.len());
                request[at] = self.next() as u8;
                bytes.extend(request);
            }
            _ => {
                // An opcode is followed by a random length or count.
                bytes.push(self.below(20) as u8);
                bytes.extend((self.next() >> self.below(64)).to_le_bytes());
                bytes.extend(self.bytes(32));
            }
        }
        bytes
    }
}

/// Sends `frames` random frames, each over its own connection, with a pause after each.
fn fuzz(server: &Server, seed: u64, frames: usize, pause: Duration) {
    let mut rng = Rng(seed);
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..frames {
        let mut client = server.dial();
        // Sending fails if the server closes the connection first.
        let _ = client.try_send(&rng.frame());
        match rng.below(4) {
            0 => client.reset(),
            1 => client.shutdown_write(),
            2 => drop(client),
            // Up to 64 connections stay open, many of them with an incomplete request.
            _ => {
                clients.push(client);
                if clients.len() > 64 {
                    clients.swap_remove(rng.below(64));
                }
            }
        }
        if pause > Duration::ZERO {
            std::thread::sleep(pause);
        }
    }
}

/// The maximum size of the log in bytes.
const MAX_LOG_BYTES: usize = MIB;

#[test]
fn r10_fuzzed_frames_without_a_pause_do_not_stop_the_service() {
    let _exclusive = exclusive();
    let mut server = Server::start();
    let frames = scaled(20_000, 1_000_000);
    let seeds = [1, 2];
    let probe = LatencyProbe::connect_continuously(server.address());
    let start = Instant::now();
    std::thread::scope(|scope| {
        for seed in seeds {
            let server = &server;
            scope.spawn(move || fuzz(server, seed, frames / seeds.len(), Duration::ZERO));
        }
    });
    let took = start.elapsed();
    let latencies = probe.finish();
    let growth = server.memory_growth();
    println!(
        "{frames} frames in {took:?}; {} probes, median {:?}, worst {:?}; memory grew by {} KiB, log {} B",
        latencies.len(),
        latencies[latencies.len() / 2],
        latencies[latencies.len() - 1],
        growth / KIB,
        server.log_len()
    );
    // `finish` has checked that every probe was served. A probe may take more than a second: if the accept queue of
    // the server is full, the client's kernel retries after 1 s.
    let slow = latencies[latencies.len() * 95 / 100];
    assert!(slow < Duration::from_secs(3), "the 95th percentile of the probes is {slow:?}");
    assert!(growth < 16 * MIB, "{growth}");
    assert!(server.log_len() < MAX_LOG_BYTES, "{}", server.log_len());
    server.assert_healthy();
}

#[test]
fn r11_fuzzed_frames_at_a_steady_rate_delay_no_other_client() {
    let _exclusive = exclusive();
    let mut server = Server::start();
    // The soak test sends about 57 frames per second, which is the rate of the same test against torch. The short
    // test sends up to 1,000 frames per second.
    let (frames, pause) = if is_soak() { (5_169, 17) } else { (500, 1) };
    let mut seed = 10;
    assert_latency_unaffected(&server, Duration::from_millis(2), || {
        seed += 1;
        fuzz(&server, seed, frames, Duration::from_millis(pause));
    });
    assert!(server.memory_growth() < 16 * MIB, "{}", server.memory_growth());
    assert!(server.log_len() < MAX_LOG_BYTES, "{}", server.log_len());
    server.assert_healthy();
}
