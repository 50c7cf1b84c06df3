// The custom resources of the Multi-Cluster Services API: built by e2e/tools/build.
module portolan.invalid/e2e/tools/mcs

go 1.26.0

require sigs.k8s.io/mcs-api v0.5.2
