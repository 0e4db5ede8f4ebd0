//! Tests of concurrent uploads: active uploads all complete, and stalled ones do not block them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use rallypoint_core::wire::{MAGIC, Request};
use rallypoint_store::{Limits, Listen, ServerOptions, TcpStoreServer};

const MIB: usize = 1 << 20;

fn server(stall_timeout: &str) -> TcpStoreServer {
    server_with_limits("8MiB", stall_timeout)
}

fn server_with_limits(input_total: &str, stall_timeout: &str) -> TcpStoreServer {
    let mut limits = Limits::default();
    limits.set("input_total", input_total).unwrap();
    limits.set("input_stall", stall_timeout).unwrap();
    let listen = vec![Listen::at("127.0.0.1", 0)];
    TcpStoreServer::start(ServerOptions::new(listen).limits(limits)).unwrap()
}

fn connect(server: &TcpStoreServer) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut validate = Vec::new();
    Request::Validate { magic: MAGIC }.encode(&mut validate);
    stream.write_all(&validate).unwrap();
    stream
}

/// Returns the bytes of a SET with a value of 2 MiB, followed by a PING.
fn upload(id: u8) -> Vec<u8> {
    upload_of_len(2 * MIB, id)
}

fn upload_of_len(len: usize, id: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    Request::Set { key: &[b'/', id], value: vec![id; len][..].into() }.encode(&mut bytes);
    Request::Ping { nonce: 7 }.encode(&mut bytes);
    bytes
}

/// Gives the server time to read the uploads that it has admitted.
///
/// This function sends 200 PINGs, one after the other. Between two replies, the server gives one upload a turn.
fn let_server_read(server: &TcpStoreServer) {
    let mut stream = connect(server);
    let mut ping = Vec::new();
    Request::Ping { nonce: 7 }.encode(&mut ping);
    for _ in 0..200 {
        stream.write_all(&ping).unwrap();
        assert!(is_answered(&mut stream));
    }
}

/// Reads the reply to a PING. Returns `false` if it does not arrive.
fn is_answered(stream: &mut TcpStream) -> bool {
    let mut nonce = [0; 4];
    stream.read_exact(&mut nonce).is_ok() && nonce == 7u32.to_le_bytes()
}

#[test]
fn uploads_beyond_the_upload_budget_all_complete() {
    let server = server("20s");
    let all_started = Arc::new(Barrier::new(16));
    let uploads = (0..16).map(|id| {
        let (mut stream, all_started) = (connect(&server), Arc::clone(&all_started));
        std::thread::spawn(move || {
            // No upload continues until all have started. 100,000 bytes fit into the socket buffers even if the server
            // does not read them.
            let bytes = upload(id);
            let (front, rest) = bytes.split_at(100_000);
            stream.write_all(front).unwrap();
            all_started.wait();
            rest.chunks(100_000).for_each(|piece| stream.write_all(piece).unwrap());
            is_answered(&mut stream)
        })
    });
    let uploads: Vec<_> = uploads.collect();
    assert!(uploads.into_iter().all(|upload| upload.join().unwrap()));
    assert_eq!(server.stats().slow_input, 0);
}

#[test]
fn stalled_uploads_are_closed_in_favor_of_an_active_upload() {
    let server = server("200ms");
    let mut stalled: Vec<_> = (0..4).map(|_| connect(&server)).collect();
    for (id, stream) in stalled.iter_mut().enumerate() {
        let bytes = upload(id as u8);
        stream.write_all(&bytes[..bytes.len() - 100]).unwrap();
    }
    let mut small = connect(&server);
    small.write_all(&upload(8)[..1000]).unwrap();
    let_server_read(&server);
    let mut other = connect(&server);
    other.write_all(&upload(9)).unwrap();
    assert!(is_answered(&mut other));
    assert!(server.stats().slow_input >= 1);
    // Only 1,000 bytes of this request had arrived. It was not an upload yet, so its connection was not closed.
    small.write_all(&upload(8)[1000..]).unwrap();
    assert!(is_answered(&mut small));
}

#[test]
fn a_client_that_streams_uploads_does_not_starve_other_uploads() {
    let server = server("20s");
    // Two uploads use 4.2 MiB of the upload budget of 6 MiB, which is three quarters of `input_total`. The server reads
    // about 2 MiB of each and waits for the rest.
    let size = 2 * MIB + 100_000;
    let mut pending: Vec<_> = (0..2).map(|_| connect(&server)).collect();
    pending[0].write_all(&upload_of_len(size, 0)[..2 * MIB - 50_000]).unwrap();
    pending[1].write_all(&upload_of_len(size, 1)[..2 * MIB]).unwrap();
    let_server_read(&server);
    pending[0].write_all(&upload_of_len(size, 0)[2 * MIB - 50_000..2 * MIB + 10_000]).unwrap();
    let_server_read(&server);
    let mut streamer = connect(&server);
    let mut replies = streamer.try_clone().unwrap();
    let (replies_received, is_done) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let bytes = upload_of_len(3 * MIB / 2, 9);
            let (front, back) = bytes.split_at(MIB);
            streamer.write_all(front).unwrap();
            // Each write ends within a request, so the connection always has an upload.
            while !is_done.load(Ordering::Relaxed) {
                streamer.write_all(&[back, front].concat()).unwrap();
            }
            streamer.write_all(back).unwrap();
            streamer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        scope.spawn(|| {
            while is_answered(&mut replies) {
                replies_received.fetch_add(1, Ordering::Relaxed);
            }
        });
        let start = Instant::now();
        while replies_received.load(Ordering::Relaxed) < 3 && start.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        for (id, stream) in pending.iter_mut().enumerate() {
            let bytes = upload_of_len(size, id as u8);
            stream.write_all(&bytes[2 * MIB + [10_000, 0][id]..]).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        }
        let completed: Vec<bool> = pending.iter_mut().map(is_answered).collect();
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(completed, [true; 2]);
    });
    assert!(replies_received.load(Ordering::Relaxed) > 3);
    assert_eq!(server.stats().slow_input, 0);
}

#[test]
fn an_active_upload_waits_less_than_two_stall_timeouts_for_14_stalled_uploads() {
    let stall_timeout = Duration::from_secs(2);
    let server = server_with_limits("32MiB", "2s");
    // Each client stops 100 bytes before the end of its upload of 2 MiB. The upload budget of 24 MiB suffices for 11 of
    // the 14 uploads. The other three wait, and so does the active upload.
    let stalled: Vec<_> = (0..14).map(|_| connect(&server)).collect();
    let start_barrier = std::sync::Barrier::new(stalled.len() + 1);
    std::thread::scope(|scope| {
        for (id, mut stream) in stalled.into_iter().enumerate() {
            let start_barrier = &start_barrier;
            scope.spawn(move || {
                let bytes = upload(id as u8);
                stream.write_all(&bytes[..100_000]).unwrap();
                start_barrier.wait();
                // These calls fail if the server has closed the connection.
                let _ = stream.write_all(&bytes[100_000..bytes.len() - 100]);
                let _ = stream.read(&mut [0]);
            });
        }
        start_barrier.wait();
        let_server_read(&server);
        let start = Instant::now();
        let mut active = connect(&server);
        active.write_all(&upload(99)).unwrap();
        assert!(is_answered(&mut active));
        let took = start.elapsed();
        println!("waited {took:?}, the server closed {} uploads", server.stats().slow_input);
        assert!(took < 2 * stall_timeout, "{took:?}");
        drop(server);
    });
}
