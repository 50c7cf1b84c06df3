# Each rule finds what it is for.
package main

import rego.v1

good_container := {
	"name": "agent",
	"resources": {"requests": {"cpu": "1"}},
	"securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
	"startupProbe": {},
	"readinessProbe": {},
	"livenessProbe": {"httpGet": {"path": "/livez"}},
}

daemonset(container) := {
	"kind": "DaemonSet",
	"metadata": {"name": "a", "labels": {"app.kubernetes.io/component": "agent"}},
	"spec": {"template": {"spec": {
		"automountServiceAccountToken": false,
		"priorityClassName": "p",
		"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
		"containers": [container],
	}}},
}

role(rule) := {"kind": "Role", "metadata": {"name": "r"}, "rules": [rule]}

test_good if count(deny) == 0 with input as daemonset(good_container)

test_star if count(deny) == 1 with input as role({"resources": ["nodes"], "verbs": ["*"]})

test_all_secrets if count(deny) == 1 with input as role({"resources": ["secrets"], "verbs": ["get"]})

test_create if count(deny) == 1 with input as role({"resources": ["secrets"], "resourceNames": ["a"], "verbs": ["create"]})

test_agent_binding if {
	count(deny) == 1 with input as {"kind": "RoleBinding", "metadata": {"name": "b"}, "subjects": [{"name": "p-agent"}]}
}

test_token if {
	bad := json.patch(daemonset(good_container), [{"op": "remove", "path": "/spec/template/spec/automountServiceAccountToken"}])
	count(deny) == 1 with input as bad
}

test_capabilities if {
	bad := json.patch(good_container, [{"op": "replace", "path": "/securityContext/capabilities/drop", "value": []}])
	count(deny) == 1 with input as daemonset(bad)
}

test_privileged if {
	bad := json.patch(good_container, [{"op": "add", "path": "/securityContext/privileged", "value": true}])
	count(deny) == 1 with input as daemonset(bad)
}

test_escalation if {
	bad := json.patch(good_container, [{"op": "remove", "path": "/securityContext/allowPrivilegeEscalation"}])
	count(deny) == 1 with input as daemonset(bad)
}

test_seccomp if {
	bad := json.patch(daemonset(good_container), [{"op": "remove", "path": "/spec/template/spec/securityContext"}])
	count(deny) == 1 with input as bad
}

test_resources if {
	count(deny) == 1 with input as daemonset(object.remove(good_container, ["resources"]))
}

test_probe if {
	count(deny) == 1 with input as daemonset(object.remove(good_container, ["readinessProbe"]))
}

test_priority if {
	bad := json.patch(daemonset(good_container), [{"op": "remove", "path": "/spec/template/spec/priorityClassName"}])
	count(deny) == 1 with input as bad
}

test_healthz if {
	bad := json.patch(good_container, [{"op": "replace", "path": "/livenessProbe/httpGet/path", "value": "/healthz"}])
	count(deny) == 1 with input as daemonset(bad)
}
