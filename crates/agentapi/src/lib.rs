//! The agent's protocol: messages, a client over any byte stream, version negotiation.
