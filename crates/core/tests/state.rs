//! Tests of the codec of the rendezvous state, with pickles of real torch, with equivalent forms of a pickle, and with
//! input that must be refused.

#[path = "state/assembly.rs"]
mod assembly;
#[path = "state/bounds.rs"]
mod bounds;
#[path = "state/forms.rs"]
mod forms;
#[path = "state/properties.rs"]
mod properties;
#[path = "state/refusals.rs"]
mod refusals;
#[path = "state/seeds.rs"]
mod seeds;
