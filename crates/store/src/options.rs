//! A macro for option builders.

/// Defines builder methods, each of which sets the field with its name and returns the options.
#[macro_export]
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)*) => {
        $($(#[$doc])*
        pub fn $name(mut self, $name: impl Into<$type>) -> Self {
            self.$name = $name.into();
            self
        })*
    };
}
