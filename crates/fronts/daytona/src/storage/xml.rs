//! The few documents of S3 that clients read.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

const HEAD: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

pub(super) fn answer(status: StatusCode, text: String) -> Response {
    let mut response = (status, text).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

pub(super) fn error(code: &str, message: &str) -> String {
    format!("{HEAD}<Error><Code>{code}</Code><Message>{message}</Message></Error>")
}

/// A list with at most one object: the requested one.
pub(super) fn list(bucket: &str, prefix: &str, key: &str, size: Option<u64>) -> String {
    let found = size.map_or_else(String::new, |size| {
        format!(
            "<Contents><Key>{}</Key><LastModified>1970-01-01T00:00:00.000Z</LastModified><ETag>&quot;x&quot;</ETag>\
             <Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>",
            escaped(key)
        )
    });
    format!(
        "{HEAD}<ListBucketResult xmlns=\"{NAMESPACE}\"><Name>{bucket}</Name><Prefix>{}</Prefix><KeyCount>{}</KeyCount>\
         <MaxKeys>1</MaxKeys><IsTruncated>false</IsTruncated>{found}</ListBucketResult>",
        escaped(prefix),
        u8::from(size.is_some()),
    )
}

pub(super) fn begun(bucket: &str, key: &str, upload: &str) -> String {
    format!(
        "{HEAD}<InitiateMultipartUploadResult xmlns=\"{NAMESPACE}\"><Bucket>{bucket}</Bucket><Key>{}</Key>\
         <UploadId>{upload}</UploadId></InitiateMultipartUploadResult>",
        escaped(key)
    )
}

pub(super) fn finished(bucket: &str, key: &str) -> String {
    format!(
        "{HEAD}<CompleteMultipartUploadResult xmlns=\"{NAMESPACE}\"><Bucket>{bucket}</Bucket><Key>{}</Key>\
         <ETag>&quot;x&quot;</ETag></CompleteMultipartUploadResult>",
        escaped(key)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_request_becomes_markup() {
        let text = list("b", "<x>&\"", "k", None);
        assert!(text.contains("&lt;x&gt;&amp;&quot;") && text.contains("<KeyCount>0</KeyCount>"), "{text}");
        assert!(list("b", "p", "k", Some(3)).contains("<Size>3</Size>"));
    }
}
