//! NETLINK_ROUTE messages for interface queues: a token bucket at the root, or none.

use super::{Batch, F_ACK, F_CREATE, F_REPLACE};

const NEWQDISC: u16 = 36;
const DELQDISC: u16 = 37;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TBF_PARMS: u16 = 1;
const TBF_RATE64: u16 = 4;
const TBF_BURST: u16 = 6;
const ROOT: u32 = 0xffff_ffff;
const HANDLE: u32 = 0x0001_0000;
const ETHERNET: u8 = 1;

/// LIMIT: bytes of a burst. With less than two full packets nothing would pass at all.
const BURST_MIN: u64 = 4 << 10;
const BURST_MAX: u64 = 1 << 20;
/// LIMIT: queued bytes before packets are dropped.
const QUEUE_MIN: u64 = 32 << 10;
const QUEUE_MAX: u64 = 4 << 20;

/// Limits the bytes per second out of an interface.
pub(crate) fn limit_rate(batch: &mut Batch, index: u32, bytes_per_s: u64) {
    batch.message(NEWQDISC, F_ACK | F_CREATE | F_REPLACE, &header(index, HANDLE));
    batch.attr_name(TCA_KIND, "tbf");
    let burst = (bytes_per_s / 50).clamp(BURST_MIN, BURST_MAX);
    let queue = (bytes_per_s / 5).clamp(QUEUE_MIN, QUEUE_MAX);
    let options = batch.open(TCA_OPTIONS);
    batch.attr(TBF_PARMS, &parameters(bytes_per_s, narrow(queue)));
    batch.attr(TBF_BURST, &narrow(burst).to_ne_bytes());
    if bytes_per_s > u64::from(u32::MAX) {
        batch.attr(TBF_RATE64, &bytes_per_s.to_ne_bytes());
    }
    batch.close(options);
}

/// Removes the limit. Fails if there is none; the caller ignores that.
pub(crate) fn unlimit_rate(batch: &mut Batch, index: u32) {
    batch.message(DELQDISC, F_ACK, &header(index, 0));
}

fn narrow(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn header(index: u32, handle: u32) -> [u8; 20] {
    let mut header = [0; 20];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&handle.to_ne_bytes());
    header[12..16].copy_from_slice(&ROOT.to_ne_bytes());
    header
}

/// `struct tc_tbf_qopt`: rate, no peak rate, and the length of the queue. The burst is passed in bytes in a separate
/// attribute.
fn parameters(bytes_per_s: u64, queue: u32) -> [u8; 36] {
    let mut parameters = [0; 36];
    // With the link type Ethernet the kernel computes the transmission times itself and needs no table.
    parameters[1] = ETHERNET;
    parameters[8..12].copy_from_slice(&narrow(bytes_per_s).to_ne_bytes());
    parameters[24..28].copy_from_slice(&queue.to_ne_bytes());
    parameters
}
