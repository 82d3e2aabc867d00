//! Templates: what a sandbox starts from, and how one is made.
