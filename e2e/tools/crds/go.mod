// The modules whose files define the custom resources that the chart uses: charts/ci/schemas reads them.
module portolan.invalid/e2e/tools/crds

go 1.26.0

require (
	github.com/cert-manager/cert-manager v1.21.2
	github.com/prometheus-operator/prometheus-operator v0.85.0
)
