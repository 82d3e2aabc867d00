//! Where instances live: the Provider trait, its conformance suite, and a fake for tests.
