//! Limits of a stream that carries many connections into a sandbox (`atoll-agent --connections`); both ends use them.

/// LIMIT: connections of one stream at a time.
pub const CONNECTIONS_MAX: u32 = 256;
/// LIMIT: bytes of one connection that its reader has not taken yet.
pub const WINDOW: u32 = 256 << 10;
/// The windows of all connections together, so that connections whose readers stand still never stop the others.
pub const CONNECTION_WINDOW: u32 = CONNECTIONS_MAX * WINDOW;
