//! A store server inside a program of your own, and workers that share a queue of tasks over it. The workers are threads
//! here; they could be other processes, other machines, or Python with torch's `TCPStore`.

use rallypoint_store::{Result, Store, StoreError, TcpStore, TcpStoreServer};

fn work(port: u16) -> Result<()> {
    let store = TcpStore::connect("127.0.0.1", port)?;
    store.add("workers", 1)?;
    loop {
        match store.try_queue_pop("tasks") {
            Ok(task) => store.append("log", &[&task[..], b" done\n"].concat())?,
            Err(StoreError::QueueEmpty { .. }) => return store.barrier("finished", 4),
            Err(error) => return Err(error),
        }
        store.add("done", 1)?;
    }
}

fn main() -> Result<()> {
    // Port 0 is any free one. Dropping the server stops it.
    let server = TcpStoreServer::bind("127.0.0.1", 0)?;
    let store = TcpStore::connect("127.0.0.1", server.port())?;
    let port = server.port();
    for task in 1..=6 {
        store.queue_push("tasks", format!("task {task}").as_bytes())?;
    }
    let workers: Vec<_> = (0..3).map(|_| std::thread::spawn(move || work(port))).collect();
    store.barrier("finished", 4)?;
    for worker in workers {
        worker.join().expect("a worker panicked")?;
    }
    println!("{} workers, {} items done", store.add("workers", 0)?, store.add("done", 0)?);
    Ok(())
}
