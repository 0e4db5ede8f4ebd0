//! The `rallypoint` command: what people type. The work is done in the crates below it.

mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Elastic rendezvous for distributed training.
#[derive(Debug, Parser)]
#[command(name = "rallypoint", version, max_term_width = 110, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::ServeArgs),
}

fn main() -> ExitCode {
    start_log();
    match Cli::parse().command {
        Command::Serve(args) => serve::run(args),
    }
}

/// Logs go to standard error; `RALLYPOINT_LOG` says how much (`warn`, `info`, `debug`).
fn start_log() {
    use tracing_subscriber::EnvFilter;
    let level = EnvFilter::try_from_env("RALLYPOINT_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(level).with_writer(std::io::stderr).with_target(false).init();
}
