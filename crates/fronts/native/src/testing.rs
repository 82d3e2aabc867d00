//! Checks exchanges against the generated document. For tests of every crate that calls the API over HTTP.
//!
//! ```ignore
//! let contract = Contract::new();
//! contract.check(&Exchange { method: "GET", path: "/v1/sandboxes?limit=1", request: None,
//!     status: 200, content_type: Some("application/json"), response: &body })?;
//! ```
//!
//! A response must always match the document, and a request must match it if the response is a success.

use std::collections::HashMap;

use jsonschema::Validator;
use serde_json::{Map, Value, json};

use crate::openapi::{openapi, render};

/// One request with its response.
#[derive(Debug, Clone, Copy)]
pub struct Exchange<'a> {
    /// `GET`, `POST`, …
    pub method: &'a str,
    /// Path and query as sent.
    pub path: &'a str,
    /// The JSON of the request, if any.
    pub request: Option<&'a Value>,
    /// The status of the response.
    pub status: u16,
    /// The content type of the response.
    pub content_type: Option<&'a str>,
    /// The body of the response; only JSON is checked.
    pub response: &'a [u8],
}

/// The document, prepared to check exchanges.
pub struct Contract {
    document: Value,
    /// Compiled schemas by their place in the document.
    schemas: HashMap<String, Validator>,
}

/// An operation of the document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Upper case.
    pub method: String,
    /// With its parameters in braces.
    pub path: String,
    /// Whether it needs no key.
    pub is_public: bool,
}

const METHODS: [&str; 5] = ["get", "put", "post", "patch", "delete"];

impl Default for Contract {
    fn default() -> Self {
        Self::new()
    }
}

impl Contract {
    /// Reads the document and compiles every schema in it.
    ///
    /// # Panics
    /// If the document is not valid, which the tests detect.
    #[must_use]
    pub fn new() -> Self {
        let document: Value = serde_json::from_str(&render(&openapi())).expect("the document is JSON");
        let mut contract = Self { document, schemas: HashMap::new() };
        let mut found = Vec::new();
        for (path, item) in entries(&contract.document["paths"]) {
            for method in METHODS {
                let Some(operation) = item.get(method) else { continue };
                let place = format!("{method} {path}");
                collect(&mut found, &format!("{place} request"), &operation["requestBody"]["content"]);
                for (status, answer) in entries(&operation["responses"]) {
                    collect(&mut found, &format!("{place} {status}"), &answer["content"]);
                }
            }
        }
        for (place, schema) in found {
            let schema = contract.standalone(schema);
            let validator = jsonschema::draft202012::options().should_validate_formats(true).build(&schema);
            contract.schemas.insert(place.clone(), validator.unwrap_or_else(|e| panic!("{place}: {e}")));
        }
        contract
    }

    /// Every operation.
    #[must_use]
    pub fn routes(&self) -> Vec<Route> {
        let mut routes = Vec::new();
        for (path, item) in entries(&self.document["paths"]) {
            for method in METHODS {
                let Some(operation) = item.get(method) else { continue };
                let open = |need: &Value| need.as_object().is_some_and(Map::is_empty);
                let is_public = operation["security"].as_array().is_some_and(|needs| needs.iter().any(open));
                routes.push(Route { method: method.to_uppercase(), path: path.clone(), is_public });
            }
        }
        routes
    }

    /// Returns what the document does not allow about an exchange.
    pub fn check(&self, exchange: &Exchange<'_>) -> Result<(), String> {
        let path = exchange.path.split('?').next().unwrap_or_default();
        let method = exchange.method.to_lowercase();
        let Some(template) = self.template(&method, path) else {
            // A route that is not in the document must be refused.
            return match exchange.status {
                404 | 405 => Ok(()),
                status => {
                    Err(format!("{} {path} is not in the document but answered {status}", exchange.method))
                }
            };
        };
        let place = format!("{method} {template}");
        self.check_query(exchange, &method, template)?;
        if (200..300).contains(&exchange.status)
            && let Some(body) = exchange.request
        {
            self.validate(&format!("{place} request"), "application/json", body)?;
        }
        self.check_answer(exchange, &method, template)
    }

    fn check_query(&self, exchange: &Exchange<'_>, method: &str, template: &str) -> Result<(), String> {
        let Some((_, query)) = exchange.path.split_once('?') else { return Ok(()) };
        if exchange.status >= 300 {
            return Ok(());
        }
        let parameters = self.document["paths"][template][method]["parameters"].as_array();
        let known = |name: &str| {
            parameters.is_some_and(|list| list.iter().any(|p| p["in"] == "query" && p["name"] == name))
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let name = pair.split('=').next().unwrap_or_default();
            if !known(name) {
                return Err(format!("{method} {template}: parameter {name} is not in the document"));
            }
        }
        Ok(())
    }

    fn check_answer(&self, exchange: &Exchange<'_>, method: &str, template: &str) -> Result<(), String> {
        let place = format!("{method} {template}");
        let answers = &self.document["paths"][template][method]["responses"];
        let status = exchange.status.to_string();
        let key = if answers.get(&status).is_some() { status.as_str() } else { "default" };
        if key == "default" && exchange.status < 400 {
            return Err(format!("{place}: status {status} is not in the document"));
        }
        let essence = exchange.content_type.and_then(|t| t.split(';').next()).unwrap_or_default().trim();
        let Some(content) = answers[key]["content"].as_object() else {
            let empty = exchange.response.is_empty();
            return if empty {
                Ok(())
            } else {
                Err(format!("{place} {status}: a body where none is documented"))
            };
        };
        if !content.contains_key(essence) {
            return Err(format!("{place} {status}: type {essence:?} is not in the document"));
        }
        if essence != "application/json" {
            return Ok(());
        }
        let body = serde_json::from_slice(exchange.response).map_err(|e| format!("{place} {status}: {e}"))?;
        self.validate(&format!("{place} {key}"), essence, &body)
    }

    fn validate(&self, place: &str, content_type: &str, body: &Value) -> Result<(), String> {
        let key = format!("{place} {content_type}");
        let validator = self.schemas.get(&key).ok_or_else(|| format!("{key}: not in the document"))?;
        let faults: Vec<_> =
            validator.iter_errors(body).map(|e| format!("{}: {e}", e.instance_path())).collect();
        if faults.is_empty() { Ok(()) } else { Err(format!("{key}: {}", faults.join("; "))) }
    }

    /// The path of the document for a request's path; one without parameters has precedence.
    fn template(&self, method: &str, path: &str) -> Option<&str> {
        let fits = |template: &str| {
            let (mut want, mut got) = (template.split('/'), path.split('/'));
            loop {
                match (want.next(), got.next()) {
                    (None, None) => return true,
                    (Some(want), Some(got)) if want == got || (want.starts_with('{') && !got.is_empty()) => {}
                    _ => return false,
                }
            }
        };
        let mut fitting: Vec<_> = entries(&self.document["paths"])
            .filter(|(template, item)| item.get(method).is_some() && fits(template))
            .map(|(template, _)| template.as_str())
            .collect();
        fitting.sort_by_key(|template| template.matches('{').count());
        fitting.first().copied()
    }

    /// A schema that contains the document's components.
    fn standalone(&self, schema: Value) -> Value {
        let mut whole = match schema {
            Value::Object(fields) => fields,
            other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
        };
        whole.insert("components".to_owned(), self.document["components"].clone());
        Value::Object(whole)
    }
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn collect(found: &mut Vec<(String, Value)>, place: &str, content: &Value) {
    for (content_type, media) in entries(content) {
        if let Some(schema) = media.get("schema") {
            found.push((format!("{place} {content_type}"), schema.clone()));
        }
    }
}
