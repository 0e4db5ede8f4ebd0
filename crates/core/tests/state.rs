//! The codec of the rendezvous state: the bytes of real torch, the equivalent forms of a pickle, and the inputs that
//! must be refused.

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
