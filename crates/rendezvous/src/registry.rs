//! The registry of backends, which creates a handler from the name of its backend.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use crate::dynamic::create_dynamic_handler;
use crate::error::{RendezvousError, Result};
use crate::fixed::create_static_handler;
use crate::handler::RendezvousHandler;
use crate::native::{NATIVE_BACKEND, create_native_handler};
use crate::parameters::{EMPTY_BACKEND, RendezvousParameters};

/// A function that creates a handler of one backend.
pub type RendezvousHandlerCreator =
    Arc<dyn Fn(&RendezvousParameters) -> Result<Box<dyn RendezvousHandler>> + Send + Sync>;

/// A registry of backends. [`RendezvousHandlerRegistry::default`] contains `c10d` and `static`.
pub struct RendezvousHandlerRegistry {
    creators: RwLock<BTreeMap<String, RendezvousHandlerCreator>>,
}

impl RendezvousHandlerRegistry {
    /// Creates a registry without backends.
    pub fn empty() -> RendezvousHandlerRegistry {
        RendezvousHandlerRegistry { creators: RwLock::default() }
    }

    /// Adds a backend. Registering the same creator again has no effect.
    ///
    /// # Errors
    ///
    /// Fails with [`RendezvousError::Parameters`] if the name is empty or is registered with another creator.
    pub fn register(&self, backend: &str, creator: RendezvousHandlerCreator) -> Result<()> {
        if backend.is_empty() {
            return Err(RendezvousError::parameter(EMPTY_BACKEND));
        }
        let mut creators = self.creators.write().unwrap_or_else(PoisonError::into_inner);
        match creators.get(backend) {
            Some(current) if !Arc::ptr_eq(current, &creator) => Err(RendezvousError::parameter(format!(
                "The rendezvous backend '{backend}' cannot be registered as it is already registered with another creator."
            ))),
            Some(_) => Ok(()),
            None => {
                creators.insert(backend.into(), creator);
                Ok(())
            }
        }
    }

    /// Creates a handler of the backend that `parameters` name.
    ///
    /// # Errors
    ///
    /// Fails with [`RendezvousError::Parameters`] if the backend is not registered, with `BackendMismatch` if the
    /// creator returns a handler of another backend, and with any error of the creator.
    pub fn create_handler(&self, parameters: &RendezvousParameters) -> Result<Box<dyn RendezvousHandler>> {
        let creator = {
            let creators = self.creators.read().unwrap_or_else(PoisonError::into_inner);
            creators.get(&parameters.backend).cloned().ok_or_else(|| {
                let registered: Vec<_> = creators.keys().map(String::as_str).collect();
                RendezvousError::parameter(format!(
                    "The rendezvous backend '{}' is not registered. Did you forget to call `register`? Registered are: {}",
                    parameters.backend,
                    registered.join(", ")
                ))
            })?
        };
        let handler = creator(parameters)?;
        match handler.backend() == parameters.backend {
            true => Ok(handler),
            false => Err(RendezvousError::BackendMismatch {
                found: handler.backend().into(),
                wanted: parameters.backend.clone(),
            }),
        }
    }

    /// Returns the names of all backends.
    pub fn backends(&self) -> Vec<String> {
        self.creators.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }
}

/// Creates a registry with the backends `c10d` and `static`.
impl Default for RendezvousHandlerRegistry {
    fn default() -> RendezvousHandlerRegistry {
        let registry = RendezvousHandlerRegistry::empty();
        for (name, creator) in [
            ("c10d", Arc::new(create_dynamic_handler) as RendezvousHandlerCreator),
            ("static", Arc::new(create_static_handler) as RendezvousHandlerCreator),
            (NATIVE_BACKEND, Arc::new(create_native_handler) as RendezvousHandlerCreator),
        ] {
            registry.register(name, creator).expect("the names differ");
        }
        registry
    }
}

/// Returns the registry of this process.
pub fn rendezvous_handler_registry() -> &'static RendezvousHandlerRegistry {
    static REGISTRY: LazyLock<RendezvousHandlerRegistry> = LazyLock::new(RendezvousHandlerRegistry::default);
    &REGISTRY
}

#[cfg(test)]
mod tests {
    use super::*;

    struct StubHandler;

    impl RendezvousHandler for StubHandler {
        fn backend(&self) -> &str {
            "stub"
        }
        fn run_id(&self) -> &str {
            "run"
        }
        fn next_rendezvous(&self) -> Result<crate::RendezvousInfo> {
            Err(RendezvousError::GracefulExit { run_id: "run".into() })
        }
        fn set_closed(&self) -> Result<()> {
            Ok(())
        }
        fn membership(&self) -> Result<crate::Membership> {
            Ok(crate::Membership::default())
        }
    }

    fn creator() -> RendezvousHandlerCreator {
        Arc::new(|_| Ok(Box::new(StubHandler)))
    }

    fn parameters(backend: &str) -> RendezvousParameters {
        RendezvousParameters::new(backend, "", "run", 1, 1).unwrap()
    }

    #[test]
    fn a_third_party_backend_can_be_registered_and_used() {
        let registry = RendezvousHandlerRegistry::default();
        registry.register("stub", creator()).unwrap();
        assert_eq!(registry.backends(), ["c10d", "rallypoint", "static", "stub"]);
        assert_eq!(registry.create_handler(&parameters("stub")).unwrap().run_id(), "run");
    }

    #[test]
    fn a_second_creator_for_a_name_is_refused_and_the_same_creator_is_accepted() {
        let registry = RendezvousHandlerRegistry::empty();
        let first = creator();
        registry.register("x", Arc::clone(&first)).unwrap();
        registry.register("x", first).unwrap();
        let error = registry.register("x", creator()).unwrap_err().to_string();
        assert!(error.contains("'x' cannot be registered"), "{error}");
        assert!(registry.register("", creator()).unwrap_err().to_string().contains("non-empty"));
    }

    #[test]
    fn the_error_for_an_unknown_backend_lists_the_registered_ones() {
        let error = RendezvousHandlerRegistry::default().create_handler(&parameters("etcd")).err().unwrap();
        assert!(error.to_string().contains("'etcd' is not registered"), "{error}");
        assert!(error.to_string().contains("c10d, rallypoint, static"), "{error}");
    }

    #[test]
    fn a_handler_of_another_backend_is_refused() {
        let registry = RendezvousHandlerRegistry::empty();
        registry.register("other", creator()).unwrap();
        let error = registry.create_handler(&parameters("other")).err().unwrap().to_string();
        assert_eq!(error, "The rendezvous backend 'stub' does not match the requested backend 'other'.");
    }
}
