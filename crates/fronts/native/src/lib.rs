//! The native REST front under /v1: parses, calls the service, renders.
