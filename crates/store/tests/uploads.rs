//! Many large requests at once: those who send on all get through, and those who don't are in nobody's way.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use rallypoint_core::wire::{MAGIC, Request};
use rallypoint_store::{Limits, Listen, ServerOptions, TcpStoreServer};

const MIB: usize = 1 << 20;

fn server(stall: &str) -> TcpStoreServer {
    server_with_room("8MiB", stall)
}

fn server_with_room(total: &str, stall: &str) -> TcpStoreServer {
    let mut limits = Limits::default();
    limits.set("input_total", total).unwrap();
    limits.set("input_stall", stall).unwrap();
    let listen = vec![Listen::at("127.0.0.1", 0)];
    TcpStoreServer::start(ServerOptions::new(listen).limits(limits)).unwrap()
}

fn connect(server: &TcpStoreServer) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut hello = Vec::new();
    Request::Validate { magic: MAGIC }.encode(&mut hello);
    stream.write_all(&hello).unwrap();
    stream
}

/// A SET of 2 MiB with a PING behind it.
fn upload(who: u8) -> Vec<u8> {
    upload_of(2 * MIB, who)
}

fn upload_of(len: usize, who: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    Request::Set { key: &[b'/', who], value: vec![who; len][..].into() }.encode(&mut bytes);
    Request::Ping { nonce: 7 }.encode(&mut bytes);
    bytes
}

/// Lets the server read what it was sent: each answer is to a question that came after, and one large request has a turn
/// between two of them.
fn let_it_read(server: &TcpStoreServer) {
    let mut stream = connect(server);
    let mut ping = Vec::new();
    Request::Ping { nonce: 7 }.encode(&mut ping);
    for _ in 0..200 {
        stream.write_all(&ping).unwrap();
        assert!(is_answered(&mut stream));
    }
}

fn is_answered(stream: &mut TcpStream) -> bool {
    let mut nonce = [0; 4];
    stream.read_exact(&mut nonce).is_ok() && nonce == 7u32.to_le_bytes()
}

#[test]
fn more_uploads_than_there_is_room_for_all_get_through() {
    let server = server("20s");
    let all_begun = Arc::new(Barrier::new(16));
    let uploads = (0..16).map(|who| {
        let (mut stream, all_begun) = (connect(&server), Arc::clone(&all_begun));
        std::thread::spawn(move || {
            // All are under way together. So much can be sent whether it is read or not.
            let bytes = upload(who);
            let (front, rest) = bytes.split_at(100_000);
            stream.write_all(front).unwrap();
            all_begun.wait();
            rest.chunks(100_000).for_each(|piece| stream.write_all(piece).unwrap());
            is_answered(&mut stream)
        })
    });
    let uploads: Vec<_> = uploads.collect();
    assert!(uploads.into_iter().all(|upload| upload.join().unwrap()));
    assert_eq!(server.stats().slow_input, 0);
}

#[test]
fn uploads_that_stop_make_room_for_one_that_goes_on() {
    let server = server("200ms");
    let mut stopped: Vec<_> = (0..4).map(|_| connect(&server)).collect();
    for (who, stream) in stopped.iter_mut().enumerate() {
        let bytes = upload(who as u8);
        stream.write_all(&bytes[..bytes.len() - 100]).unwrap();
    }
    let mut small = connect(&server);
    small.write_all(&upload(8)[..1000]).unwrap();
    let_it_read(&server);
    let mut other = connect(&server);
    other.write_all(&upload(9)).unwrap();
    assert!(is_answered(&mut other));
    assert!(server.stats().slow_input >= 1);
    // It held next to nothing, and may take its time.
    small.write_all(&upload(8)[1000..]).unwrap();
    assert!(is_answered(&mut small));
}

#[test]
fn who_streams_one_large_request_after_the_other_does_not_keep_its_place() {
    let server = server("20s");
    // Two uploads hold most of the budget of 6 MiB. The server has read what has come of them, and waits for their ends.
    let size = 2 * MIB + 100_000;
    let mut others: Vec<_> = (0..2).map(|_| connect(&server)).collect();
    others[0].write_all(&upload_of(size, 0)[..2 * MIB - 50_000]).unwrap();
    others[1].write_all(&upload_of(size, 1)[..2 * MIB]).unwrap();
    let_it_read(&server);
    others[0].write_all(&upload_of(size, 0)[2 * MIB - 50_000..2 * MIB + 10_000]).unwrap();
    let_it_read(&server);
    let mut streamer = connect(&server);
    let mut replies = streamer.try_clone().unwrap();
    let (answered, enough) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let bytes = upload_of(3 * MIB / 2, 9);
            let (front, back) = bytes.split_at(MIB);
            streamer.write_all(front).unwrap();
            // Never between two requests.
            while !enough.load(Ordering::Relaxed) {
                streamer.write_all(&[back, front].concat()).unwrap();
            }
            streamer.write_all(back).unwrap();
            streamer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        scope.spawn(|| {
            while is_answered(&mut replies) {
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
        let start = Instant::now();
        while answered.load(Ordering::Relaxed) < 3 && start.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        for (who, stream) in others.iter_mut().enumerate() {
            let bytes = upload_of(size, who as u8);
            stream.write_all(&bytes[2 * MIB + [10_000, 0][who]..]).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        }
        let got_through: Vec<bool> = others.iter_mut().map(is_answered).collect();
        enough.store(true, Ordering::Relaxed);
        assert_eq!(got_through, [true; 2]);
    });
    assert!(answered.load(Ordering::Relaxed) > 3);
    assert_eq!(server.stats().slow_input, 0);
}

#[test]
fn one_that_goes_on_waits_for_many_that_have_stopped_about_as_long_as_for_one() {
    let stall = Duration::from_secs(2);
    let server = server_with_room("32MiB", "2s");
    // Nearly as many as there is room for, all under way together. Each stops with a part of it still to be read.
    let stopped: Vec<_> = (0..14).map(|_| connect(&server)).collect();
    let go = std::sync::Barrier::new(stopped.len() + 1);
    std::thread::scope(|scope| {
        for (who, mut stream) in stopped.into_iter().enumerate() {
            let go = &go;
            scope.spawn(move || {
                let bytes = upload(who as u8);
                stream.write_all(&bytes[..100_000]).unwrap();
                go.wait();
                // It may be cut off by now.
                let _ = stream.write_all(&bytes[100_000..bytes.len() - 100]);
                let _ = stream.read(&mut [0]);
            });
        }
        go.wait();
        let_it_read(&server);
        let start = Instant::now();
        let mut honest = connect(&server);
        honest.write_all(&upload(99)).unwrap();
        assert!(is_answered(&mut honest));
        let took = start.elapsed();
        println!("waited {took:?}, {} were cut off", server.stats().slow_input);
        assert!(took < 2 * stall, "{took:?}");
        drop(server);
    });
}
