//! The labels of an object at the service, in its metadata: which server it belongs to, which sandbox it is, and as which instance it
//! was made.

use std::collections::BTreeMap;

use atoll_model::{InstanceId, SandboxId};

const OWNER: &str = "atoll.owner";
const SANDBOX: &str = "atoll.sandbox";
const INSTANCE: &str = "atoll.instance";

/// The metadata of a new object.
pub(crate) fn of_new(
    owner: &str,
    sandbox: &SandboxId,
    instance: &InstanceId,
) -> BTreeMap<&'static str, String> {
    [
        (OWNER, owner.to_owned()),
        (SANDBOX, sandbox.as_str().to_owned()),
        (INSTANCE, instance.as_str().to_owned()),
    ]
    .into()
}

/// What the metadata of an object of this server says; `None`: it belongs to somebody else.
pub(crate) fn read(metadata: &BTreeMap<String, String>, owner: &str) -> Option<(SandboxId, InstanceId)> {
    metadata.get(OWNER).filter(|named| *named == owner)?;
    Some((metadata.get(SANDBOX)?.parse().ok()?, metadata.get(INSTANCE)?.parse().ok()?))
}

/// The value of the query parameter `metadata`. The names and values have only characters that need no escape, so the several
/// layers of escapes that the API expects are one.
pub(crate) fn query(owner: &str, sandbox: Option<&SandboxId>) -> String {
    let sandbox = sandbox.map_or_else(String::new, |sandbox| format!("%26{SANDBOX}%3D{sandbox}"));
    format!("{OWNER}%3D{owner}{sandbox}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_objects_of_this_server_are_read() {
        let (sandbox, instance) = (SandboxId::from_entropy([1; 20]), InstanceId::from_entropy([2; 20]));
        let made = of_new("me", &sandbox, &instance);
        let mut metadata: BTreeMap<String, String> =
            made.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(read(&metadata, "me"), Some((sandbox, instance)));
        assert_eq!(read(&metadata, "you"), None);
        metadata.insert(SANDBOX.to_owned(), "../x".to_owned());
        assert_eq!(read(&metadata, "me"), None);
        assert_eq!(read(&BTreeMap::new(), "me"), None);
    }
}
