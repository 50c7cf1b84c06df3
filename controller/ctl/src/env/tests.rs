// SPDX-License-Identifier: Apache-2.0

//! Upstream's tables: `TestFromServices` of `pkg/kubelet/envvars`, and those rows of
//! `TestMakeEnvironmentVariables` that are about Services.

use serde_json::json;

use super::variables::of_service;
use super::*;

fn service_of(namespace: &str, name: &str, ip: &str, ports: Value) -> Service {
    let value = json!({
        "metadata": { "namespace": namespace, "name": name },
        "spec": { "clusterIP": ip, "ports": ports },
    });
    service(value, "").unwrap()
}

fn lines(variables: &[Variable]) -> Vec<String> {
    show(variables).text.lines().map(str::to_owned).collect()
}

#[test]
fn the_variables_of_services_are_upstreams() {
    let tcp = |port: u16| json!([{ "port": port, "protocol": "TCP" }]);
    let both = |port: u16| {
        json!([{ "name": "u-d-p", "port": port, "protocol": "UDP" },
            { "name": "t-c-p", "port": port, "protocol": "TCP" }])
    };
    let named = json!([{ "port": 8082, "protocol": "TCP" },
        { "name": "8083", "port": 8083, "protocol": "TCP" }]);
    let services = [
        service_of("", "foo-bar", "1.2.3.4", tcp(8080)),
        service_of("", "abc-123", "5.6.7.8", both(8081)),
        service_of("", "q-u-u-x", "9.8.7.6", named),
        service_of("", "svrc-clusterip-none", "None", tcp(8082)),
        service_of("", "svrc-clusterip-empty", "", tcp(8082)),
        service_of("", "super-ipv6", "2001:DB8::", both(8084)),
        service_of(
            "",
            "sctp-1",
            "1.2.3.4",
            json!([{ "port": 777, "protocol": "SCTP" }]),
        ),
    ];
    let all: Vec<_> = services
        .iter()
        .flat_map(|it| of_service(it).unwrap())
        .collect();
    let expected: Vec<_> = include_str!("upstream.txt").lines().collect();
    assert_eq!(lines(&all), expected);
    assert_eq!(all.len(), 52);
}

/// The services of `TestMakeEnvironmentVariables`.
fn services() -> Vec<Service> {
    let build = |name: &str, namespace: &str, ip: &str, port: u16| {
        service_of(
            namespace,
            name,
            ip,
            json!([{ "protocol": "TCP", "port": port }]),
        )
    };
    vec![
        build("kubernetes", "default", "1.2.3.1", 8081),
        build("test", "test1", "1.2.3.3", 8083),
        build("kubernetes", "test2", "1.2.3.4", 8084),
        build("test", "test2", "1.2.3.5", 8085),
        build("test", "test2", "None", 8085),
        build("test", "test2", "", 8085),
        build("not-special", "default", "1.2.3.8", 8088),
        build("not-special", "default", "None", 8088),
        build("not-special", "default", "", 8088),
    ]
}

/// The seven variables of a Service with one TCP port.
fn seven(prefix: &str, ip: &str, port: u16) -> Vec<String> {
    let url = format!("tcp://{ip}:{port}");
    vec![
        format!("{prefix}_SERVICE_HOST={ip}"),
        format!("{prefix}_SERVICE_PORT={port}"),
        format!("{prefix}_PORT={url}"),
        format!("{prefix}_PORT_{port}_TCP={url}"),
        format!("{prefix}_PORT_{port}_TCP_PROTO=tcp"),
        format!("{prefix}_PORT_{port}_TCP_PORT={port}"),
        format!("{prefix}_PORT_{port}_TCP_ADDR={ip}"),
    ]
}

#[test]
fn the_services_of_pods_are_upstreams() {
    let master = || seven("KUBERNETES", "1.2.3.1", 8081);
    for (namespace, has_links, expected) in [
        ("test1", false, master()),
        (
            "test1",
            true,
            [master(), seven("TEST", "1.2.3.3", 8083)].concat(),
        ),
        ("test2", false, master()),
        (
            "test2",
            true,
            [
                seven("KUBERNETES", "1.2.3.4", 8084),
                seven("TEST", "1.2.3.5", 8085),
            ]
            .concat(),
        ),
        ("default", false, master()),
        (
            "default",
            true,
            [master(), seven("NOT_SPECIAL", "1.2.3.8", 8088)].concat(),
        ),
    ] {
        let pods = Pods {
            namespace,
            has_links,
        };
        // The order of a list is not the API server's to keep.
        let mut listed = services();
        for _ in 0..2 {
            let found = variables(&listed, pods).unwrap();
            assert_eq!(lines(&found), expected, "{namespace} {has_links}");
            listed.reverse();
        }
    }
}

#[test]
fn of_two_variables_with_one_name_the_later_service_s_is_the_one() {
    let ports = json!([{ "port": 80 }]);
    let services = [
        service_of("a", "redis", "10.0.0.1", ports.clone()),
        service_of("a", "redis-port-80-tcp", "10.0.0.2", ports),
    ];
    let pods = Pods {
        namespace: "a",
        has_links: true,
    };
    let found = lines(&variables(&services, pods).unwrap());
    let of = |name: &str| {
        let prefix = format!("{name}=");
        let found = found.iter().filter(|line| line.starts_with(&prefix));
        found.cloned().collect::<Vec<_>>()
    };
    let expected = "REDIS_PORT_80_TCP_PORT=tcp://10.0.0.2:80";
    assert_eq!(of("REDIS_PORT_80_TCP_PORT"), [expected]);
}

#[test]
fn fields_that_no_api_server_accepts_are_named() {
    let of = |name: &str, ip: &str, port: Value| {
        let service = service_of("shop", name, ip, json!([{ "port": 1 }, port]));
        of_service(&service).unwrap_err().to_string()
    };
    let good = json!({ "port": 80 });
    for (found, expected) in [
        (
            of("a\nB", "10.0.0.1", good.clone()),
            "Service shop/a\nB: metadata.name: ",
        ),
        (of("a", "x", good), "Service shop/a: spec.clusterIP: "),
        (
            of("a", "10.0.0.1", json!({ "port": 80, "name": "b=c" })),
            "Service shop/a: spec.ports[1].name: ",
        ),
        (
            of("a", "10.0.0.1", json!({ "port": 80, "protocol": "x" })),
            "Service shop/a: spec.ports[1].protocol: ",
        ),
    ] {
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn files_have_documents_and_lists() {
    let text = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIP: 10.0.0.1}\n---\n\
        kind: List\nitems:\n- kind: Service\n  metadata: {name: b}\n- kind: Node\n  metadata: {name: c}\n---\n\
        kind: ServiceList\nitems: [{metadata: {name: d}}]\n---\nkind: ConfigMap\n";
    let found = parse(text).unwrap();
    let names: Vec<_> = found
        .iter()
        .map(|it| it.metadata.name.clone().unwrap())
        .collect();
    assert_eq!(names, ["a", "b", "d"]);
    let text = "kind: List\nitems: [{kind: Service, metadata: {name: a}, spec: {ports: x}}]\n";
    let error = format!("{:#}", parse(text).unwrap_err());
    assert!(error.starts_with("items[0]: Service a: "), "{error}");
}

#[test]
fn the_services_of_a_large_cluster_are_read() {
    let item = |number: usize| {
        format!(
            "- {{kind: Service, metadata: {{name: a{number}, namespace: a}}, \
             spec: {{ports: [{{port: 80}}]}}}}\n"
        )
    };
    let items: String = (0..20_000).map(item).collect();
    let found = parse(&format!("kind: List\nitems:\n{items}")).unwrap();
    assert_eq!(found.len(), 20_000);
    let document = |number: usize| format!("---\nkind: Service\nmetadata: {{name: a{number}}}\n");
    let documents: String = (0..2_000).map(document).collect();
    assert_eq!(parse(&documents).unwrap().len(), 2_000);
}

#[test]
fn json_has_a_member_for_each_variable() {
    let variable = |name: &str, value: &str| Variable {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    let reply = show(&[variable("A", "1"), variable("B", "2")]);
    assert_eq!(reply.value, json!({ "A": "1", "B": "2" }));
    assert_eq!(reply.text, "A=1\nB=2\n");
}
