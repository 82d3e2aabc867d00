//! Measures the bars of DESIGN §8 beside the peers a user would pick.
fn main() {}
