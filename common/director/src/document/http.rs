// SPDX-License-Identifier: Apache-2.0

//! The fields of an HTTP check.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::TlsDocument;

/// An HTTP request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpDocument {
    /// The method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}$"), extend("default" = "GET"))]
    #[schemars(extend("x-expected" = "a method such as GET"))]
    pub method: Option<String>,
    /// Path and query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r#"^/[!"$-;=@-_a-~]*(\?[!$-;=?-~]*)?$"#), extend("default" = "/"))]
    #[schemars(extend("x-expected" = "a path that begins with \"/\", without spaces, \"#\", \"<\" and \">\""))]
    pub path: Option<String>,
    /// The field Host, also over TLS the server's name: a name or an address, with a port or without; the checked address if
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[!-~]{1,261}$"), extend("x-expected" = "a host name"))]
    pub host: Option<String>,
    /// The version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "1.1"))]
    pub version: Option<HttpVersionName>,
    /// Status codes that pass, alone or as ranges such as 200-299.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1), extend("default" = ["200-299"]))]
    pub statuses: Option<Vec<StatusDocument>>,
    /// Further header fields of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HeaderDocument>,
    /// Header fields that the answer must have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect_headers: Vec<ExpectedHeader>,
    /// Regular expression that the first 64 KiB of the body must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_regex: Option<String>,
    /// Regular expression that the first 64 KiB of the body must not match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_not_regex: Option<String>,
    /// MD5 digest of the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[0-9a-fA-F]{32}$"))]
    #[schemars(extend("x-expected" = "32 hexadecimal digits"))]
    pub body_md5: Option<String>,
    /// TLS; plain HTTP if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsDocument>,
}

/// Version of an HTTP request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum HttpVersionName {
    /// HTTP/1.0.
    #[serde(rename = "1.0")]
    Http10,
    /// HTTP/1.1.
    #[serde(rename = "1.1")]
    Http11,
    /// HTTP/2.
    #[serde(rename = "2")]
    Http2,
}

/// A status code or a range of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline, extend("x-expected" = "a status code or a range such as 200-299"))]
pub enum StatusDocument {
    /// One code.
    Code(#[schemars(range(min = 100, max = 599))] u16),
    /// A range, both ends included.
    Range(#[schemars(regex(pattern = "^[1-5][0-9]{2}(-[1-5][0-9]{2})?$"))] String),
}

/// A header field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeaderDocument {
    /// Its name.
    #[schemars(regex(pattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    #[schemars(extend("x-expected" = "the name of a header field"))]
    pub name: String,
    /// Its value.
    #[schemars(regex(pattern = "^[ -~]*$"), extend("x-expected" = "printable characters"))]
    pub value: String,
}

/// A header field that an answer must have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExpectedHeader {
    /// Its name.
    #[schemars(regex(pattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    #[schemars(extend("x-expected" = "the name of a header field"))]
    pub name: String,
    /// Regular expression of its value.
    pub regex: String,
}
