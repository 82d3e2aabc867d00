//! The router namespace, veths, nftables elements, DNS forwarding and dialling into sandboxes.
