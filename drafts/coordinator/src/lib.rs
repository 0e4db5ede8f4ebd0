//! Draft.
#![allow(missing_docs)]
pub mod coordinator;
pub mod job;
pub mod message;
pub mod node;
pub mod participant;
pub mod plan;
pub mod replica;
pub mod service;
pub mod terms;
