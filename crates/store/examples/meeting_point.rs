//! The processes of a job find each other: one serves the store, each says where it is, all learn where the others are.
//! The ranks are threads here; torch's `create_c10d_store` and `synchronize` could be any of them.

use std::time::Duration;

use rallypoint_store::{C10dStoreOptions, Result, create_c10d_store, free_port, synchronize};

const WORLD_SIZE: u64 = 3;

fn join(rank: u64, port: u16) -> Result<()> {
    let timeout = Duration::from_secs(60);
    let store = create_c10d_store(
        &C10dStoreOptions::new("127.0.0.1", Some(port))
            .is_server(rank == 0)
            .world_size(WORLD_SIZE)
            .timeout(timeout),
    )?;
    let own = format!("node{rank}:{}", 5000 + rank);
    // Rank 0 returns last, so the server outlives every read. A time-out would say which ranks are missing.
    let all = synchronize(&store, own.as_bytes(), rank, WORLD_SIZE, "addresses", timeout)?;
    let all: Vec<_> = all.iter().map(|address| String::from_utf8_lossy(address)).collect();
    println!("rank {rank} knows {all:?}");
    Ok(())
}

fn main() -> Result<()> {
    let port = free_port()?;
    let ranks: Vec<_> = (0..WORLD_SIZE).map(|rank| std::thread::spawn(move || join(rank, port))).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("a rank panicked"))
}
