//! The embedded engine: launcher, namespaces, overlay, cgroups, seccomp, pool.
