//! The emitted OpenAPI document as a judge: every answer in the tests is held against it.
//!
//! - The route and the method exist in the document.
//! - The status is documented, and a JSON body fits the schema given for it.
//! - A JSON request that was accepted fits the request's schema: the document must not be stricter or looser than the server.

use std::collections::HashMap;
use std::sync::Mutex;

use jsonschema::Validator;
use serde_json::{Value, json};

/// The document, with compiled schemas kept.
pub struct Contract {
    document: Value,
    compiled: Mutex<HashMap<String, std::sync::Arc<Validator>>>,
}

/// One exchange to judge.
pub struct Exchange<'a> {
    /// `GET`, `POST`, …
    pub method: &'a str,
    /// Without query.
    pub path: &'a str,
    /// The JSON that was sent.
    pub sent: Option<&'a Value>,
    /// The status that came.
    pub status: u16,
    /// Its content type.
    pub content_type: &'a str,
    /// The JSON that came.
    pub received: Option<&'a Value>,
}

impl Contract {
    /// Takes the document as the server emits it.
    pub fn new(document: Value) -> Self {
        assert!(
            document["openapi"].as_str().is_some_and(|v| v.starts_with("3.")),
            "not an OpenAPI 3 document"
        );
        Self { document, compiled: Mutex::default() }
    }

    /// The document itself.
    pub fn document(&self) -> &Value {
        &self.document
    }

    /// Every operation as (method, path template).
    pub fn operations(&self) -> Vec<(String, String)> {
        let paths = self.document["paths"].as_object().expect("paths");
        let methods = ["get", "put", "post", "delete", "patch"];
        let of = |(path, item): (&String, &Value)| {
            let path = path.clone();
            let has: Vec<_> = methods.iter().filter(|m| item.get(**m).is_some()).collect();
            has.into_iter().map(move |m| (m.to_uppercase(), path.clone())).collect::<Vec<_>>()
        };
        paths.iter().flat_map(of).collect()
    }

    /// What is wrong with the exchange; `None` when it is as documented.
    pub fn judge(&self, it: &Exchange<'_>) -> Option<String> {
        let Some((template, operation)) = self.find(it.method, it.path) else {
            let answered = (200..300).contains(&it.status);
            return answered.then(|| "a route that answers is not in the document".to_owned());
        };
        let at = format!("{} {template}", it.method);
        let status = it.status.to_string();
        let pointer = ["responses", &status];
        let Some(response) =
            self.walk(operation, &pointer).or_else(|| self.walk(operation, &["responses", "default"]))
        else {
            return Some(format!("{at}: status {status} is not documented"));
        };
        let kind = it.content_type.split(';').next().unwrap_or_default().trim();
        if let (Some(received), Some(schema)) =
            (it.received, self.walk(response, &["content", kind, "schema"]))
        {
            if let Some(wrong) = self.check(schema, received) {
                return Some(format!("{at}: the {status} answer does not fit: {wrong}"));
            }
        } else if it.received.is_some() && it.status < 400 {
            return Some(format!("{at}: status {status} has no schema for {kind}"));
        }
        if let (Some(sent), true) = (it.sent, it.status < 300) {
            let Some(schema) =
                self.walk(operation, &["requestBody", "content", "application/json", "schema"])
            else {
                return Some(format!("{at}: a JSON body was accepted but is not documented"));
            };
            if let Some(wrong) = self.check(schema, sent) {
                return Some(format!("{at}: a request was accepted that does not fit: {wrong}"));
            }
        }
        None
    }

    fn find(&self, method: &str, path: &str) -> Option<(&str, &Value)> {
        let paths = self.document["paths"].as_object()?;
        let mut hits: Vec<_> = paths.iter().filter(|(template, _)| fits(template, path)).collect();
        // `/files/stat` must win over `/files/{path}`.
        hits.sort_by_key(|(template, _)| template.matches('{').count());
        let (template, item) = hits.first()?;
        Some((template.as_str(), item.get(method.to_lowercase())?))
    }

    /// Goes down by keys, following references.
    fn walk<'a>(&'a self, from: &'a Value, keys: &[&str]) -> Option<&'a Value> {
        keys.iter().try_fold(self.follow(from), |at, key| Some(self.follow(at.get(*key)?)))
    }

    fn follow<'a>(&'a self, mut at: &'a Value) -> &'a Value {
        while let Some(reference) = at.get("$ref").and_then(Value::as_str) {
            match self.document.pointer(reference.trim_start_matches('#')) {
                Some(target) => at = target,
                None => return at,
            }
        }
        at
    }

    fn check(&self, schema: &Value, instance: &Value) -> Option<String> {
        let key = schema.to_string();
        let compiled = self.compiled.lock().expect("no panic inside").get(&key).cloned();
        let validator = compiled.unwrap_or_else(|| {
            let whole = json!({ "allOf": [schema], "components": self.document["components"] });
            let made =
                jsonschema::draft202012::options().build(&whole).expect("the document's schemas compile");
            let made = std::sync::Arc::new(made);
            self.compiled.lock().expect("no panic inside").insert(key, made.clone());
            made
        });
        let wrong: Vec<String> = validator
            .iter_errors(instance)
            .take(3)
            .map(|e| format!("{e} at {}", e.instance_path()))
            .collect();
        (!wrong.is_empty()).then(|| wrong.join("; "))
    }
}

fn fits(template: &str, path: &str) -> bool {
    let (mut wanted, mut given) = (template.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some(w), Some(g)) if w == g || (w.starts_with('{') && !g.is_empty()) => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contract() -> Contract {
        Contract::new(json!({
            "openapi": "3.1.0",
            "paths": { "/v1/things/{id}": { "get": { "responses": {
                "200": { "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Thing" } } } } } } } },
            "components": { "schemas": { "Thing": { "type": "object", "required": ["id"], "properties": { "id": { "type": "string" } } } } }
        }))
    }

    fn exchange<'a>(path: &'a str, status: u16, received: &'a Value) -> Exchange<'a> {
        Exchange {
            method: "GET",
            path,
            sent: None,
            status,
            content_type: "application/json",
            received: Some(received),
        }
    }

    #[test]
    fn an_answer_that_fits_passes_and_one_that_does_not_is_named() {
        let contract = contract();
        assert_eq!(contract.judge(&exchange("/v1/things/a", 200, &json!({ "id": "a" }))), None);
        assert!(contract.judge(&exchange("/v1/things/a", 200, &json!({}))).is_some());
        assert!(contract.judge(&exchange("/v1/things/a", 418, &json!({}))).is_some());
        assert!(contract.judge(&exchange("/v1/others", 200, &json!({}))).is_some());
    }
}
