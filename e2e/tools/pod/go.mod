module portolan.invalid/e2e/tools/pod

go 1.26.0
