//! Many large requests at once: those who send on all get through, and those who don't are in nobody's way.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rallypoint_core::wire::{MAGIC, Request};
use rallypoint_store::{Limits, Listen, ServerOptions, TcpStoreServer};

const MIB: usize = 1 << 20;

fn server(stall: &str) -> TcpStoreServer {
    let mut limits = Limits::default();
    limits.set("input_total", "8MiB").unwrap();
    limits.set("input_stall", stall).unwrap();
    TcpStoreServer::start(ServerOptions { listen: vec![Listen::at("127.0.0.1", 0)], limits: Some(limits) })
        .unwrap()
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
    let mut bytes = Vec::new();
    Request::Set { key: &[b'/', who], value: vec![who; 2 * MIB][..].into() }.encode(&mut bytes);
    Request::Ping { nonce: 7 }.encode(&mut bytes);
    bytes
}

fn is_answered(stream: &mut TcpStream) -> bool {
    let mut nonce = [0; 4];
    stream.read_exact(&mut nonce).is_ok() && nonce == 7u32.to_le_bytes()
}

#[test]
fn more_uploads_than_there_is_room_for_all_get_through() {
    let server = server("20s");
    let uploads = (0..16).map(|who| {
        let mut stream = connect(&server);
        std::thread::spawn(move || {
            // In pieces, so that all are under way together.
            for piece in upload(who).chunks(100_000) {
                stream.write_all(piece).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
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
    let mut other = connect(&server);
    other.write_all(&upload(9)).unwrap();
    assert!(is_answered(&mut other));
    assert!(server.stats().slow_input >= 1);
    // It held next to nothing, and may take its time.
    small.write_all(&upload(8)[1000..]).unwrap();
    assert!(is_answered(&mut small));
}
