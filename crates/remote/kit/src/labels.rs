//! The labels of a vendor's object: which server it belongs to, which sandbox it is, and which instance.

use std::collections::BTreeMap;

use atoll_model::{InstanceId, SandboxId};

/// The label of the server that made an object. Letters and digits only.
pub const OWNER_LABEL: &str = "atoll.owner";
/// The label of the sandbox.
pub const SANDBOX_LABEL: &str = "atoll.sandbox";
const INSTANCE_LABEL: &str = "atoll.instance";

/// The labels of an object of this server.
#[must_use]
pub fn object_labels(
    owner: &str,
    sandbox: &SandboxId,
    instance: &InstanceId,
) -> BTreeMap<&'static str, String> {
    [
        (OWNER_LABEL, owner.to_owned()),
        (SANDBOX_LABEL, sandbox.as_str().to_owned()),
        (INSTANCE_LABEL, instance.as_str().to_owned()),
    ]
    .into()
}

/// What the labels of an object of this server say; `None`: it belongs to somebody else.
#[must_use]
pub fn read_labels(labels: &BTreeMap<String, String>, owner: &str) -> Option<(SandboxId, InstanceId)> {
    labels.get(OWNER_LABEL).filter(|named| *named == owner)?;
    Some((labels.get(SANDBOX_LABEL)?.parse().ok()?, labels.get(INSTANCE_LABEL)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_objects_of_this_server_are_read() {
        let (sandbox, instance) = (SandboxId::from_entropy([1; 20]), InstanceId::from_entropy([2; 20]));
        let made = object_labels("me", &sandbox, &instance);
        let mut metadata: BTreeMap<String, String> =
            made.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(read_labels(&metadata, "me"), Some((sandbox, instance)));
        assert_eq!(read_labels(&metadata, "you"), None);
        metadata.insert(SANDBOX_LABEL.to_owned(), "../x".to_owned());
        assert_eq!(read_labels(&metadata, "me"), None);
        assert_eq!(read_labels(&BTreeMap::new(), "me"), None);
    }
}
