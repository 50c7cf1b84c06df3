// SPDX-License-Identifier: Apache-2.0

use super::*;

/// Every schema in a definition, with its path.
fn all(path: &str, schema: &Value, found: &mut Vec<(String, Value)>) {
    found.push((path.to_owned(), schema.clone()));
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        all(&format!("{path}.{name}"), property, found);
    }
    for name in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(name) {
            all(&format!("{path}[]"), inner, found);
        }
    }
}

fn of(kind: Kind) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    all("", &schema(kind), &mut found);
    found
}

fn at(kind: Kind, path: &str) -> Value {
    let found = of(kind).into_iter().find(|(at, _)| at == path);
    found.unwrap_or_else(|| panic!("{kind} has no {path}")).1
}

/// The rules of `apiextensions.k8s.io/v1` for structural schemas.
#[test]
fn all_schemas_are_structural() {
    for kind in Kind::ALL {
        for (path, schema) in of(kind) {
            let fields = schema.as_object().unwrap();
            let either = fields.contains_key("x-kubernetes-int-or-string");
            assert_eq!(fields.contains_key("type"), !either, "{kind}{path}");
            let is_both =
                fields.contains_key("properties") && fields.contains_key("additionalProperties");
            assert!(!is_both, "{kind}{path}");
            if fields.get("type") == Some(&json!("array")) {
                assert!(fields.contains_key("items"), "{kind}{path}");
                // The cost of a rule for items is that of the longest list.
                let inner = schema["items"].to_string();
                let has_rules = inner.contains("x-kubernetes-validations");
                assert!(
                    !has_rules || fields.contains_key("maxItems"),
                    "{kind}{path}"
                );
            }
            for name in fields.keys() {
                let known = TAKEN.contains(&name.as_str())
                    || [
                        "additionalProperties",
                        "anyOf",
                        "format",
                        "x-kubernetes-int-or-string",
                        "x-kubernetes-validations",
                    ]
                    .contains(&name.as_str());
                assert!(known, "{kind}{path}: {name}");
            }
        }
    }
}

#[test]
fn fields_keep_their_values_ranges_and_patterns() {
    let mode = at(Kind::Cluster, ".spec.network.mode");
    assert_eq!(mode["enum"], json!(["Flat", "Gateway"]));
    let most = at(Kind::TrafficPolicy, ".spec.maxEndpoints");
    assert_eq!(
        (&most["minimum"], &most["maximum"]),
        (&json!(1), &json!(4000))
    );
    let weight = at(Kind::TrafficPolicy, ".spec.tiers[].clusters[].weight");
    assert_eq!(
        (&weight["minimum"], &weight["maximum"]),
        (&json!(0), &json!(1000))
    );
    let healthy = at(Kind::TrafficPolicy, ".spec.minHealthy");
    assert_eq!(healthy["x-kubernetes-int-or-string"], true);
    let ttl = at(Kind::ClusterSet, ".spec.loss.staleTTL");
    assert_eq!(
        (&ttl["type"], &ttl["maxLength"]),
        (&json!("string"), &json!(11))
    );
    let networks = at(Kind::Cluster, ".spec.network.clusterSetIPs");
    assert_eq!(networks["maxItems"], 2);
    let secret = at(Kind::Cluster, ".spec.access.kubeconfigSecret");
    assert_eq!(secret["required"], json!(["name"]));
    assert_eq!(
        at(Kind::Cluster, ".spec")["required"],
        json!(["access", "network"])
    );
    let priority = at(Kind::ExportPolicy, ".spec.priority");
    assert_eq!(priority["format"], "int32");
    let rules = &schema(Kind::Cluster)["x-kubernetes-validations"];
    assert_eq!(rules.as_array().unwrap().len(), 2);
}

#[test]
fn the_status_of_a_cluster_alone_is_a_resource_of_its_own() {
    for (kind, definition) in Kind::ALL.into_iter().zip(definitions()) {
        let version = &definition["spec"]["versions"][0];
        let has_status = !version["subresources"]["status"].is_null();
        assert_eq!(has_status, kind == Kind::Cluster);
        let name = definition["metadata"]["name"].as_str().unwrap();
        assert_eq!(name, format!("{}.portolan.dev", kind.plural()));
    }
}
