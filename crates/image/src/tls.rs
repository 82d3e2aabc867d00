//! The TLS provider of the process, which reqwest and object_store use.

/// Sets the provider of the process, unless it has one.
pub(crate) fn set_provider() {
    // An error means that another part of the process, or an earlier call, has set one.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
