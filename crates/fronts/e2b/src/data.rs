//! The data plane: what SDKs send to a sandbox's own ports.
