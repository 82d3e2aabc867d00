//! A Java keystore (JKS) of trusted certificates, as Debian's `ca-certificates-java` writes it. Every Java since 1.2 reads it.

use atoll_outbound::Authority;
use sha1::{Digest, Sha1};

const MAGIC: u32 = 0xfeed_feed;
const VERSION: u32 = 2;
const TRUSTED: u32 = 2;
/// Every Java opens its store of authorities with this password; it protects nothing.
const PASSWORD: &str = "changeit";
/// Part of the format.
const SALT: &[u8] = b"Mighty Aphrodite";

/// The bytes of a store. The same certificates give the same bytes.
pub(super) fn of(authorities: &[Authority]) -> Vec<u8> {
    let mut store = Vec::new();
    let count = u32::try_from(authorities.len()).unwrap_or(u32::MAX);
    store.extend([MAGIC, VERSION, count].into_iter().flat_map(u32::to_be_bytes));
    for (number, authority) in authorities.iter().enumerate() {
        store.extend(TRUSTED.to_be_bytes());
        push_text(&mut store, &format!("atoll-{number}"));
        store.extend(0_u64.to_be_bytes());
        push_text(&mut store, "X.509");
        store.extend(u32::try_from(authority.der().len()).unwrap_or(u32::MAX).to_be_bytes());
        store.extend(authority.der());
    }
    let mut sum = Sha1::new();
    PASSWORD.encode_utf16().for_each(|unit| sum.update(unit.to_be_bytes()));
    sum.update(SALT);
    sum.update(&store);
    store.extend(sum.finalize());
    store
}

fn push_text(to: &mut Vec<u8>, text: &str) {
    to.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    to.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_closed_by_its_sum() {
        let empty = of(&[]);
        assert_eq!(hex::encode(&empty[..12]), "feedfeed0000000200000000");
        // The sum that every Java expects of an empty store with this password.
        assert_eq!(hex::encode(&empty[12..]), "e2686e45fb43dfa4d992dd41ceb6b21c6330d792");
    }
}
