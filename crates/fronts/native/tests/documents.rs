//! The committed documents match the code. Refresh them with `UPDATE=1 cargo test -p atoll-front-native`.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use atoll_front_native::testing::{Contract, Exchange};
use atoll_front_native::{errors_page, openapi};
use serde_json::json;

fn committed(name: &str, expected: &str) {
    let path = PathBuf::from(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../../../docs")
        .join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/{name} differs from the code; run `UPDATE=1 cargo test -p atoll-front-native`"
    );
}

#[test]
fn the_committed_openapi_document_is_the_emitted_one() {
    committed("openapi.json", &(openapi().to_pretty_json().unwrap() + "\n"));
}

#[test]
fn the_committed_list_of_errors_is_the_emitted_one() {
    committed("errors.md", &errors_page());
}

#[test]
fn every_operation_has_a_summary_a_tag_and_its_own_id() {
    let document = serde_json::to_value(openapi()).unwrap();
    let mut ids = std::collections::BTreeSet::new();
    for route in Contract::new().routes() {
        let operation = &document["paths"][&route.path][route.method.to_lowercase()];
        assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{route:?}");
        assert_eq!(operation["tags"].as_array().map(Vec::len), Some(1), "{route:?}");
        let id = operation["operationId"].as_str().unwrap().to_owned();
        assert!(ids.insert(id.clone()), "{id} is used twice");
    }
}

#[test]
fn every_request_body_refuses_unknown_fields() {
    let document = serde_json::to_value(openapi()).unwrap();
    for route in Contract::new().routes() {
        let operation = &document["paths"][&route.path][route.method.to_lowercase()];
        let Some(name) = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].as_str()
        else {
            continue;
        };
        let schema = document.pointer(name.trim_start_matches('#')).unwrap();
        assert_eq!(schema["additionalProperties"], false, "{name}");
    }
}

#[test]
fn the_contract_tells_right_from_wrong() {
    let contract = Contract::new();
    let error =
        serde_json::to_vec(&json!({"code":"sandbox_not_found","message":"m","request_id":"r"})).unwrap();
    let exchange = Exchange {
        method: "GET",
        path: "/v1/sandboxes/abc",
        request: None,
        status: 404,
        content_type: Some("application/json"),
        response: &error,
    };
    assert_eq!(contract.check(&exchange), Ok(()));
    assert!(contract.check(&Exchange { response: b"{}", ..exchange }).is_err());
    assert!(contract.check(&Exchange { status: 200, ..exchange }).is_err());
    assert!(contract.check(&Exchange { path: "/v1/nope", status: 200, ..exchange }).is_err());
    assert!(contract.check(&Exchange { path: "/v1/nope", ..exchange }).is_ok());
    let page = br#"{"items":[],"next_cursor":null}"#;
    let list = Exchange { path: "/v1/sandboxes?limit=1", status: 200, response: page, ..exchange };
    assert_eq!(contract.check(&list), Ok(()));
    assert!(contract.check(&Exchange { path: "/v1/sandboxes?colour=red", ..list }).is_err());
    let body = json!({"nope": 1});
    let exec = Exchange { method: "POST", path: "/v1/sandboxes/abc/exec", request: Some(&body), ..exchange };
    assert!(contract.check(&Exchange { status: 200, ..exec }).is_err());
}
