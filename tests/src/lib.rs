//! Real servers, real sandboxes: the kernel, API, attack and fault suites.
