# Rules of the chart beyond the schemas of Kubernetes.
package main

import rego.v1

workloads := {"Deployment", "DaemonSet", "StatefulSet"}

pod := input.spec.template.spec if input.kind in workloads

pod := input.spec if input.kind == "Pod"

containers contains container if some container in pod.containers

containers contains container if some container in pod.initContainers

# Rights.

deny contains msg if {
	input.kind in {"Role", "ClusterRole"}
	some rule in input.rules
	some field in {"apiGroups", "resources", "verbs", "nonResourceURLs"}
	"*" in rule[field]
	msg := sprintf("%s %s: %s has *", [input.kind, input.metadata.name, field])
}

deny contains msg if {
	input.kind in {"Role", "ClusterRole"}
	some rule in input.rules
	"secrets" in rule.resources
	not rule.resourceNames
	msg := sprintf("%s %s: a rule for all secrets", [input.kind, input.metadata.name])
}

deny contains msg if {
	input.kind in {"Role", "ClusterRole"}
	some rule in input.rules
	some resource in {"secrets", "configmaps", "leases"}
	resource in rule.resources
	some verb in {"create", "delete", "deletecollection", "list", "watch", "patch"}
	verb in rule.verbs
	msg := sprintf("%s %s: %s of %s", [input.kind, input.metadata.name, verb, resource])
}

deny contains msg if {
	input.kind in {"RoleBinding", "ClusterRoleBinding"}
	some subject in input.subjects
	endswith(subject.name, "-agent")
	msg := sprintf("%s %s: agents have no rights in the API", [input.kind, input.metadata.name])
}

deny contains msg if {
	input.kind in workloads
	component in {"agent", "cleanup", "relay"}
	not pod.automountServiceAccountToken == false
	msg := sprintf("%s %s: a token of the API is mounted", [input.kind, input.metadata.name])
}

component := input.metadata.labels["app.kubernetes.io/component"]

# Security contexts.

deny contains msg if {
	some container in containers
	not may_be_privileged(container)
	not "ALL" in container.securityContext.capabilities.drop
	msg := sprintf("%s %s: container %s does not drop ALL", [input.kind, input.metadata.name, container.name])
}

deny contains msg if {
	some container in containers
	not may_be_privileged(container)
	some field, wanted in {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true}
	object.get(container.securityContext, field, "unset") != wanted
	msg := sprintf("%s %s: container %s: %s is not %v", [input.kind, input.metadata.name, container.name, field, wanted])
}

deny contains msg if {
	some container in containers
	container.securityContext.privileged
	not may_be_privileged(container)
	msg := sprintf("%s %s: container %s is privileged", [input.kind, input.metadata.name, container.name])
}

deny contains msg if {
	pod
	not pod.securityContext.seccompProfile.type == "RuntimeDefault"
	msg := sprintf("%s %s: seccompProfile is not RuntimeDefault", [input.kind, input.metadata.name])
}

# Only the init container that prepares nodes.
may_be_privileged(container) if {
	component == "agent"
	container.name == "prepare"
}

# Operation.

deny contains msg if {
	some container in containers
	not container.resources.requests
	not container.resources.limits
	msg := sprintf("%s %s: container %s has no resources", [input.kind, input.metadata.name, container.name])
}

deny contains msg if {
	input.kind in workloads
	some container in pod.containers
	container.name != "wait"
	some probe in {"startupProbe", "readinessProbe", "livenessProbe"}
	not container[probe]
	msg := sprintf("%s %s: container %s has no %s", [input.kind, input.metadata.name, container.name, probe])
}

deny contains msg if {
	input.kind in workloads
	not pod.priorityClassName
	msg := sprintf("%s %s: no priorityClassName", [input.kind, input.metadata.name])
}

deny contains msg if {
	some container in containers
	container.livenessProbe.httpGet.path == "/healthz"
	msg := sprintf("%s %s: /healthz is for load balancers", [input.kind, input.metadata.name])
}
