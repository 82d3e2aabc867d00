//! Cases of network settings: secrets, sealed texts, derived keys, the policy of a tenant.

use super::*;
use atoll_model::SecretId;

use crate::{SecretAbout, SecretChange, SecretRecord};

fn secret(name: &str, at_ms: i64) -> SecretRecord {
    SecretRecord {
        name: name.to_owned(),
        created_at_ms: at_ms,
        rotated_at_ms: None,
        id: SecretId::from_entropy(entropy(u32::try_from(at_ms).unwrap())),
        version: 1,
        changed_at_ms: at_ms,
        about: SecretAbout::default(),
        used_by: 0,
    }
}

async fn two(store: &Subject) -> (TenantId, TenantId) {
    (tenant(store, 1, Quota::default()).await, tenant(store, 2, Quota::default()).await)
}

pub(super) async fn secrets_are_kept_by_tenant_and_name(store: Subject) {
    let (mine, other) = two(&store).await;
    let value = |text: &str| text.to_owned();
    store.put_secret(&mine, secret("B", 1), value("one"), 10).await.unwrap();
    store.put_secret(&mine, secret("A", 2), value("two"), 10).await.unwrap();
    store.put_secret(&other, secret("A", 3), value("three"), 10).await.unwrap();
    let taken = store.put_secret(&mine, secret("A", 4), value("four"), 10).await;
    assert!(matches!(taken, Err(StoreError::Exists { .. })));
    assert_eq!(store.secrets(&mine).await.unwrap(), [secret("A", 2), secret("B", 1)]);
    let values = store.secret_values(&mine).await.unwrap();
    assert_eq!((values.get("A"), values.get("B"), values.get("C")), (Some("two"), Some("one"), None));
    assert_eq!(store.secret_values(&other).await.unwrap().get("A"), Some("three"));
    assert!(!format!("{values:?}").contains("two"));
}

pub(super) async fn a_secret_is_rotated_in_its_place_and_deleted_once(store: Subject) {
    let (mine, other) = two(&store).await;
    store.put_secret(&mine, secret("A", 1), "one".to_owned(), 10).await.unwrap();
    let value = |text: &str| SecretChange { value: Some(text.to_owned()), about: None };
    let rotated = store.change_secret(&mine, "A", value("two"), 9).await.unwrap();
    let wanted = SecretRecord { rotated_at_ms: Some(9), changed_at_ms: 9, version: 2, ..secret("A", 1) };
    assert_eq!(rotated, Some(wanted.clone()));
    assert_eq!(store.secret_values(&mine).await.unwrap().get("A"), Some("two"));
    assert_eq!(store.change_secret(&other, "A", value("x"), 9).await.unwrap(), None);
    // Changing the description changes neither the value nor the version.
    let about = SecretAbout {
        description: Some("for 'tests'".to_owned()),
        hosts: vec!["example.com".to_owned()],
        metadata: BTreeMap::from([("team".to_owned(), "a\"b".to_owned())]),
    };
    let said = SecretChange { value: None, about: Some(about.clone()) };
    let said = store.change_secret(&mine, "A", said, 10).await.unwrap();
    assert_eq!(said, Some(SecretRecord { about, changed_at_ms: 10, ..wanted }));
    assert_eq!(store.secrets(&mine).await.unwrap().first(), said.as_ref());
    assert_eq!(store.secret_values(&mine).await.unwrap().get("A"), Some("two"));
    assert!(!store.delete_secret(&other, "A").await.unwrap());
    assert!(store.delete_secret(&mine, "A").await.unwrap());
    assert!(!store.delete_secret(&mine, "A").await.unwrap());
    assert_eq!(store.secrets(&mine).await.unwrap(), []);
}

pub(super) async fn racing_secrets_meet_their_number_exactly(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..20 {
        let (store, mine) = (Arc::clone(&store), mine.clone());
        tasks.spawn(
            async move { store.put_secret(&mine, secret(&format!("S{n}"), n), "v".to_owned(), 5).await },
        );
    }
    let (made, refused): (Vec<_>, Vec<_>) = tasks.join_all().await.into_iter().partition(Result::is_ok);
    assert_eq!((made.len(), refused.len()), (5, 15));
    assert!(refused.iter().all(|refusal| matches!(refusal, Err(StoreError::TooManySecrets { most: 5 }))));
}

pub(super) async fn a_sealed_text_opens_for_its_tenant_alone(store: Subject) {
    let (mine, other) = two(&store).await;
    let sealed = store.seal_text(&mine, "Bearer canary").unwrap();
    assert!(!sealed.contains("canary"));
    assert_ne!(
        store.seal_text(&mine, "Bearer canary").unwrap(),
        sealed,
        "equal texts must have different sealed forms"
    );
    assert_eq!(store.unseal_text(&mine, &sealed).unwrap(), "Bearer canary");
    assert!(matches!(store.unseal_text(&other, &sealed), Err(StoreError::Sealed { .. })));
    // The first byte is not what it was, whatever it was.
    let other_byte = if sealed.starts_with("00") { "01" } else { "00" };
    for odd in ["", "zz", &sealed[2..], &format!("{other_byte}{}", &sealed[2..])] {
        assert!(store.unseal_text(&mine, odd).is_err(), "{odd}");
    }
    assert_eq!(store.derive("a", "b"), store.derive("a", "b"));
    assert_ne!(store.derive("a", "b"), store.derive("b", "a"));
}

pub(super) async fn the_policy_above_a_tenant_is_kept(store: Subject) {
    let (mine, other) = two(&store).await;
    let of = |tenant: TenantId| {
        let store = Arc::clone(&store);
        async move { store.tenant(tenant.as_str()).await.unwrap().unwrap().network }
    };
    assert_eq!(of(mine.clone()).await, None);
    let policy =
        NetworkPolicy { allow_domains: vec!["example.com".parse().unwrap()], ..NetworkPolicy::deny_all() };
    store.set_tenant_network(&mine, Some(policy.clone())).await.unwrap();
    assert_eq!(of(mine.clone()).await, Some(policy));
    assert_eq!(of(other).await, None);
    store.set_tenant_network(&mine, None).await.unwrap();
    assert_eq!(of(mine.clone()).await, None);
    let nobody = TenantId::from_entropy(entropy(77));
    assert!(matches!(store.set_tenant_network(&nobody, None).await, Err(StoreError::NoTenant)));
    let list = vec!["docker".to_owned()];
    store.set_tenant_providers(&mine, Some(list.clone())).await.unwrap();
    assert_eq!(store.tenant(mine.as_str()).await.unwrap().unwrap().providers, Some(list));
    store.set_tenant_providers(&mine, None).await.unwrap();
    assert_eq!(store.tenant(mine.as_str()).await.unwrap().unwrap().providers, None);
    assert!(matches!(store.set_tenant_providers(&nobody, None).await, Err(StoreError::NoTenant)));
}
