// SPDX-License-Identifier: Apache-2.0

//! Tables of broken objects.

/// An object, and its problems: reason, and the text after the file's name.
pub(crate) type Case = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

pub(crate) const SELECTORS: &[Case] = &[
    (
        "ExportPolicy",
        "{clusters: {names: [e*u, EU, '']}}",
        &[
            (
                "InvalidSelector",
                "4:27: spec.clusters.names[0]: \"e*u\": expected a name, or its beginning and \"*\"",
            ),
            (
                "InvalidSelector",
                "4:32: spec.clusters.names[1]: \"EU\": expected a name, or its beginning and \"*\"",
            ),
            (
                "InvalidSelector",
                "4:36: spec.clusters.names[2]: \"\": expected a name, or its beginning and \"*\"",
            ),
        ],
    ),
    (
        "ImportPolicy",
        "{from: {matchLabels: {a/b/c: x}, matchExpressions: [{key: a, operator: In}, {key: a-, operator: Exists, values: [b]}]}}",
        &[
            (
                "InvalidSelector",
                "4:36: spec.from.matchLabels[a/b/c]: \"a/b/c\": expected a label's key, as in \"example.org/tier\"",
            ),
            (
                "InvalidSelector",
                "4:59: spec.from.matchExpressions[0].values: In has 0 values: expected at least one",
            ),
            (
                "InvalidSelector",
                "4:89: spec.from.matchExpressions[1].key: \"a-\": expected a label's key, as in \"example.org/tier\"",
            ),
            (
                "InvalidSelector",
                "4:119: spec.from.matchExpressions[1].values: Exists has 1 values: expected none",
            ),
        ],
    ),
    (
        "TrafficPolicy",
        "{services: {selector: {names: [web]}}}",
        &[(
            "InvalidSelector",
            "4:37: spec.services.selector.names: \"names\" means nothing in the labels of Services: expected \"services.names\"",
        )],
    ),
    (
        "ExportPolicy",
        "{clusters: {matchExpressions: [{key: a, operator: Is}]}}",
        &[(
            "InvalidStructure",
            "4:57: spec.clusters.matchExpressions[0].operator: \"Is\": expected In, NotIn, Exists or DoesNotExist",
        )],
    ),
];

pub(crate) const TIERS: &[Case] = &[
    (
        "TrafficPolicy",
        "{tiers: [{clusters: [{names: [a*], weight: 1001}, {names: [b*], weight: -1}, {names: [c*]}]}]}",
        &[
            (
                "InvalidWeight",
                "4:50: spec.tiers[0].clusters[0].weight: 1001: expected a weight of 0 to 1000",
            ),
            (
                "InvalidWeight",
                "4:79: spec.tiers[0].clusters[1].weight: -1: expected a weight of 0 to 1000",
            ),
            (
                "InvalidWeight",
                "4:84: spec.tiers[0].clusters[2].weight: missing: other members of the tier have a weight: expected all of them to, or none",
            ),
        ],
    ),
    (
        "TrafficPolicy",
        "{tiers: [{sameAs: [a], rest: true}]}",
        &[(
            "InvalidTier",
            "4:16: spec.tiers[0]: sameAs and rest: expected exactly one of \"clusters\", \"sameAs\" and \"rest\"",
        )],
    ),
    (
        "TrafficPolicy",
        "{tiers: [{}, {clusters: []}, {sameAs: []}, {rest: false}]}",
        &[
            (
                "InvalidTier",
                "4:16: spec.tiers[0]: none: expected exactly one of \"clusters\", \"sameAs\" and \"rest\"",
            ),
            (
                "InvalidTier",
                "4:31: spec.tiers[1].clusters: empty: expected at least one member",
            ),
            (
                "InvalidTier",
                "4:45: spec.tiers[2].sameAs: empty: expected at least one property",
            ),
            (
                "InvalidTier",
                "4:50: spec.tiers[3]: none: expected exactly one of \"clusters\", \"sameAs\" and \"rest\"",
            ),
        ],
    ),
    (
        "TrafficPolicy",
        "{tiers: [{clusters: [{local: true, names: [a*]}]}]}",
        &[(
            "InvalidTier",
            "4:28: spec.tiers[0].clusters[0]: expected either \"local\" or a selector",
        )],
    ),
    (
        "TrafficPolicy",
        "{tiers: [{rest: true}, {sameAs: [a]}]}",
        &[(
            "InvalidTier",
            "4:30: spec.tiers[1]: \"rest\" is in tier 0: expected it in the last tier",
        )],
    ),
    (
        "TrafficPolicy",
        "{tiers: [{sameAs: [a]}, {sameAs: [b]}, {sameAs: [c]}, {sameAs: [d]}, {sameAs: [e]}, {sameAs: [f]}, {sameAs: [g]}, {sameAs: [h]}, {sameAs: [i]}]}",
        &[(
            "InvalidTier",
            "4:15: spec.tiers: 9 tiers: expected at most 8",
        )],
    ),
    (
        "TrafficPolicy",
        "{tiers: [{sameAs: [region.topology.k8s.io, a b]}]}",
        &[(
            "InvalidSelector",
            "4:50: spec.tiers[0].sameAs[1]: \"a b\": expected a label's key, as in \"example.org/tier\"",
        )],
    ),
    (
        "TrafficPolicy",
        "{tiers: [{local: true}]}",
        &[(
            "InvalidStructure",
            "4:17: spec.tiers[0].local: unknown field: expected clusters, rest or sameAs",
        )],
    ),
];

pub(crate) const THRESHOLDS: &[Case] = &[
    (
        "TrafficPolicy",
        "{minHealthy: 0%, panicThreshold: 101}",
        &[
            (
                "InvalidThreshold",
                "4:20: spec.minHealthy: \"0%\": expected a number of at least 1, or a percentage of \"1%\" to \"100%\"",
            ),
            (
                "InvalidThreshold",
                "4:40: spec.panicThreshold: 101: expected a percentage of 0 to 100",
            ),
        ],
    ),
    (
        "TrafficPolicy",
        "{minHealthy: 101%, panicThreshold: -1}",
        &[
            (
                "InvalidThreshold",
                "4:20: spec.minHealthy: \"101%\": expected a number of at least 1, or a percentage of \"1%\" to \"100%\"",
            ),
            (
                "InvalidThreshold",
                "4:42: spec.panicThreshold: -1: expected a percentage of 0 to 100",
            ),
        ],
    ),
    (
        "TrafficPolicy",
        "{minHealthy: -3}",
        &[(
            "InvalidThreshold",
            "4:20: spec.minHealthy: -3: expected a number of at least 1, or a percentage of \"1%\" to \"100%\"",
        )],
    ),
    (
        "TrafficPolicy",
        "{minHealthy: \"+7%\", maxEndpoints: 4001}",
        &[(
            "InvalidStructure",
            "4:41: spec.maxEndpoints: 4001: expected 1 to 4000",
        )],
    ),
    (
        "TrafficPolicy",
        "{minHealthy: \"+7%\"}",
        &[(
            "InvalidThreshold",
            "4:20: spec.minHealthy: \"+7%\": expected a number of at least 1, or a percentage of \"1%\" to \"100%\"",
        )],
    ),
    (
        "ClusterSet",
        "{loss: {massLoss: 101, staleTTL: 5, returnAfter: 90}}",
        &[
            (
                "InvalidStructure",
                "4:40: spec.loss.staleTTL: 5: expected a text",
            ),
            (
                "InvalidStructure",
                "4:56: spec.loss.returnAfter: 90: expected a text",
            ),
        ],
    ),
    (
        "ClusterSet",
        "{loss: {massLoss: 101, staleTTL: 5 m, returnAfter: 32d, rampUp: 1h30m}}",
        &[
            (
                "InvalidThreshold",
                "4:25: spec.loss.massLoss: 101: expected a percentage of 0 to 100",
            ),
            (
                "InvalidDuration",
                "4:40: spec.loss.staleTTL: \"5 m\": expected a duration such as 500ms, 5s or 2m",
            ),
            (
                "InvalidDuration",
                "4:58: spec.loss.returnAfter: 32d: expected at most 31d",
            ),
            (
                "InvalidDuration",
                "4:71: spec.loss.rampUp: \"1h30m\": expected a duration such as 500ms, 5s or 2m",
            ),
        ],
    ),
];

pub(crate) const CLUSTERS: &[Case] = &[
    (
        "Cluster",
        "{access: {}, network: {podCIDRs: []}}",
        &[
            (
                "AccessNotOne",
                "4:16: spec.access: none: expected exactly one of kubeconfigSecret, kubeconfigFile, edge, files and local",
            ),
            (
                "InvalidNetwork",
                "4:40: spec.network.podCIDRs: empty: expected at least one network of pods",
            ),
        ],
    ),
    (
        "Cluster",
        "{access: {edge: {}, local: {}}, network: {podCIDRs: [10.0.0.1/16, pods], clusterSetIPs: [x, 10.1.0.0/16, 10.2.0.0/16]}}",
        &[
            (
                "AccessNotOne",
                "4:16: spec.access: edge and local: expected exactly one of kubeconfigSecret, kubeconfigFile, edge, files and local",
            ),
            (
                "InvalidNetwork",
                "4:60: spec.network.podCIDRs[0]: 10.0.0.1/16 has bits of a host: expected 10.0.0.0/16",
            ),
            (
                "InvalidNetwork",
                "4:73: spec.network.podCIDRs[1]: \"pods\": expected a network such as 10.1.0.0/16",
            ),
            (
                "InvalidNetwork",
                "4:96: spec.network.clusterSetIPs[0]: \"x\": expected a network such as 10.1.0.0/16",
            ),
            (
                "InvalidNetwork",
                "4:112: spec.network.clusterSetIPs[2]: 10.2.0.0/16: 10.1.0.0/16 is of the same family: expected one range for each family",
            ),
        ],
    ),
    (
        "Cluster",
        "{access: {edge: {}}, network: {mode: Gateway, podCIDRs: [10.0.0.0/16]}}",
        &[
            (
                "InvalidNetwork",
                "4:37: spec.network.gateway: missing: expected the gateways of a cluster in mode Gateway",
            ),
            (
                "InvalidNetwork",
                "4:37: spec.network.nodeCIDRs: empty: expected the networks of nodes of a cluster with gateways",
            ),
        ],
    ),
    (
        "Cluster",
        "{access: {edge: {}}, drain: {to: 120, over: soon}, network: {podCIDRs: [10.0.0.0/16], gateway: {ports: 29999-20000}}}",
        &[
            (
                "InvalidThreshold",
                "4:40: spec.drain.to: 120: expected a percentage of 0 to 100",
            ),
            (
                "InvalidDuration",
                "4:51: spec.drain.over: \"soon\": expected a duration such as 500ms, 5s or 2m",
            ),
            (
                "InvalidNetwork",
                "4:67: spec.network.nodeCIDRs: empty: expected the networks of nodes of a cluster with gateways",
            ),
            (
                "InvalidPortRange",
                "4:110: spec.network.gateway.ports: \"29999-20000\": expected a range of ports from 1 to 65535 such as 20000-29999",
            ),
        ],
    ),
    (
        "Cluster",
        "{id: EU, access: {edge: {}}, network: {podCidrs: [10.0.0.0/16]}}",
        &[
            (
                "InvalidStructure",
                "4:12: spec.id: \"EU\": expected at most 63 lower-case letters, digits and \"-\"",
            ),
            (
                "InvalidStructure",
                "4:45: spec.network.podCIDRs: missing: expected a list",
            ),
            (
                "InvalidStructure",
                "4:46: spec.network.podCidrs: unknown field: did you mean \"podCIDRs\"?",
            ),
        ],
    ),
    (
        "Cluster",
        "{access: {edge: {tokens: {issuer: a, serviceAccounts: []}}}, network: {podCIDRs: [10.0.0.0/16]}}",
        &[
            (
                "InvalidTokens",
                "4:32: spec.access.edge.tokens: none: expected exactly one of jwks and jwksFile",
            ),
            (
                "InvalidTokens",
                "4:61: spec.access.edge.tokens.serviceAccounts: empty: expected the ServiceAccounts of these clients: any pod can get a token of its own",
            ),
        ],
    ),
    (
        "Cluster",
        "{access: {files: [a]}, agents: {tokens: {issuer: a, jwks: b, serviceAccounts: [a]}}, network: {podCIDRs: [10.0.0.0/16]}}",
        &[(
            "InvalidTokens",
            "4:86: spec.agents.tokens.serviceAccounts[0]: \"a\": expected a ServiceAccount as namespace/name",
        )],
    ),
    (
        "Cluster",
        "{access: {edge: {tokens: &t {issuer: a, jwks: b, serviceAccounts: [a/b]}}}, agents: {tokens: *t}, network: {podCIDRs: [10.0.0.0/16]}}",
        &[(
            "InvalidTokens",
            "4:100: spec.agents.tokens.serviceAccounts[0]: \"a/b\" is in spec.access.edge.tokens too: expected another one, which tells agents from edges",
        )],
    ),
    (
        "Cluster",
        "{access: {edge: {tokens: {issuer: a, jwks: b, jwksFile: c, serviceAccounts: [a/b, edge, /b, a/, a/b/c]}}}, network: {podCIDRs: [10.0.0.0/16]}}",
        &[
            (
                "InvalidTokens",
                "4:32: spec.access.edge.tokens: jwks and jwksFile: expected exactly one of jwks and jwksFile",
            ),
            (
                "InvalidTokens",
                "4:89: spec.access.edge.tokens.serviceAccounts[1]: \"edge\": expected a ServiceAccount as namespace/name",
            ),
            (
                "InvalidTokens",
                "4:95: spec.access.edge.tokens.serviceAccounts[2]: \"/b\": expected a ServiceAccount as namespace/name",
            ),
            (
                "InvalidTokens",
                "4:99: spec.access.edge.tokens.serviceAccounts[3]: \"a/\": expected a ServiceAccount as namespace/name",
            ),
            (
                "InvalidTokens",
                "4:103: spec.access.edge.tokens.serviceAccounts[4]: \"a/b/c\": expected a ServiceAccount as namespace/name",
            ),
        ],
    ),
    (
        "Cluster",
        "{access: {edge: {tokens: {issuer: '', jwks: b, audiences: [a], serviceAccounts: [a/b]}}}, network: {podCIDRs: [10.0.0.0/16]}}",
        &[
            (
                "InvalidStructure",
                "4:41: spec.access.edge.tokens.issuer: \"\": expected a text of 1 to 1024 characters",
            ),
            (
                "InvalidStructure",
                "4:54: spec.access.edge.tokens.audiences: unknown field: did you mean \"audience\"?",
            ),
        ],
    ),
];
