# The jobs of the tests; sourced by e2e/test and e2e/repeat, not run. It needs lib.sh. ALL is set for long tests also.
# shellcheck shell=bash

# A job is a line "LANE NAME SECONDS TEST...": the test files that one process, or one guest, runs in
# turn. SECONDS, measured on two cores, only orders the jobs: the longest begins first. A test is "FILE" or
# "FILE:ARGUMENT,ARGUMENT..." with arguments of the test harness.
# Jobs that measure times and shares of processors: each runs alone, after all others.
ALONE='^(servers (security|browser)|netns (userspace|nftables|edge)) '

# The tests of load balancers' attributes, and of imports beside the programs that they are of.
ATTRIBUTES=rows::,refused::,families::,packets::,policy::,hashed::,keepalived::,ldirectord::

# skipped NAME,NAME...: arguments that leave these tests out.
skipped() { echo "--skip,${1//,/,--skip,}"; }

jobs_pure() {
    echo "pure unit 80 @unit"
    echo "pure director 10 examples explain files import_settings importers properties schema"
    echo "pure probe 20 engine kinds"
    echo "pure federation 2 policy_files federation"
}

jobs_netns() {
    echo "netns netlink 10 ipset_kernel conntrack_kernel route_kernel pair_kernel nftables_kernel"
    # Tables at their limits take some time, and much memory.
    echo "netns nftables 15 nftables:--skip,large::,--skip,neighbours"
    [ -z "$ALL" ] || echo "netns nftables_large 120 nftables:--test-threads=1,large::"
    # Real firewalls take a processor while they start.
    [ -z "$ALL" ] || echo "netns neighbours 60 nftables:neighbours"
    echo "netns conformance 45 conformance_more:on_nftables"
    # The same rows as ours, on a real kube-proxy in nftables mode.
    [ -z "$ALL" ] || echo "netns kube_proxy 300 conformance_kube_proxy"
    echo "netns export 110 export"
    echo "netns takeover 35 takeover:nftables_take,--test-threads=1"
    echo "netns userspace 15 userspace"
    echo "netns service 10 service"
    echo "netns clusters 15 clusters"
    echo "netns multicluster 250 multicluster:--skip,an_edge_serves_imports,--skip,delay_no_other,--skip,in_other_clusters_soon,--skip,on_ipvs"
    echo "netns edge 90 multicluster:--test-threads=1,an_edge_serves_imports,delay_no_other,in_other_clusters_soon"
    echo "netns gateways 40 gateways:--skip,gateways_of_ipvs"
    [ -z "$ALL" ] || echo "netns package 500 @package"
    echo "netns rig 10 rig_smoke:--skip,a_virtual_server_made_by_hand_forwards,--skip,hairpin_needs_masquerade"
    # It needs a kernel without IPVS.
    [ "$(e2e/lanes/pick 2>/dev/null | head -n 1)" = native ] || echo "netns starts 2 starts:an_agent_without_ipvs prepare:node_"
}

# Real servers without a node's kernel; together with nodes they run in a guest.
jobs_servers() {
    echo "servers security 130 security:--test-threads=1"
    echo "servers sources 135 servers_smoke lease self_managed policy_server follow restored events relay names_memory etcd grpc upstream"
    # A machine that cannot build CoreDNS, or the agent in Go, skips these.
    echo "servers dns 125 dns"
    echo "servers go_agent 20 go_agent"
    # Four control planes with RBAC, and the requirements of the MCS API one after the other.
    [ -z "$ALL" ] || echo "servers mcs 240 mcs:--test-threads=1"
    echo "servers fleet 45 fleet"
    echo "servers spans 5 spans"
    # Each permission of a controller taken away; it needs Helm.
    [ -z "$ALL" ] || echo "servers rbac 120 rbac"
    # A machine without Debian's chromium skips it.
    [ -z "$ALL" ] || echo "servers browser 120 browser"
}

jobs_uml() {
    cat <<'EOF'
uml takeover 150 takeover:--skip,nftables_mode,--skip,nftables_take,--skip,to_nftables
uml chaos 180 chaos
uml conformance 100 conformance conformance_more:--skip,on_nftables
uml degraded 95 degraded
uml drains 75 drains
uml cluster 80 cluster
uml hardship 100 hardship
uml services 90 services policies
uml identity 215 identity slices
uml restarts 70 restarts
uml starts 50 starts prepare
uml input 45 bad_input binding addresses
uml agent 60 agent foreign once
uml gateways 30 gateways:gateways_of_ipvs
uml failover 80 failover
uml drift 60 drift seen:--skip,ten_thousand
uml kernel 20 ipvs_kernel conntrack_kernel route_kernel pair_kernel nftables_kernel rig_smoke
EOF
    # Checks by way of a Service do over IPv6 what they do over IPv4, and take a minute; so does standing still.
    if [ -n "$ALL" ]; then
        echo "uml director 310 director:$(skipped "$ATTRIBUTES")"
        echo "uml attributes 220 director:$ATTRIBUTES"
        echo "uml multicluster 180 multicluster:on_ipvs"
    else
        echo "uml director 190 director:$(skipped "$ATTRIBUTES"),--skip,over_ipv6,--skip,stopped::"
    fi
    uml_is_packaged || jobs_nftables uml
    [ -z "$ALL" ] || cat <<'EOF'
uml soak 1900 soak
uml seen 150 seen:ten_thousand
uml guard 700 guard
uml kube_proxy 300 conformance_kube_proxy
uml install 900 install
uml migration 900 migration
uml kubernetes_specs 3600 kubernetes_specs
EOF
}

# Both dataplanes on one kernel, and all rows of the table with nftables, those of SCTP too. The package's kernel has no
# nftables that translates.
jobs_nftables() {
    [ -z "$ALL" ] || echo "$1 nftables 170 nftables:every_row_of_the_table,a_client_stays conformance_more:on_nftables"
    echo "$1 changeover 15 changeover"
    echo "$1 takeover_mode 60 takeover:nftables_mode"
    echo "$1 takeover_nftables 40 takeover:to_nftables"
}

# The second kernel is emulated and slow: `make test` runs only tests that differ by kernel on it.
jobs_debian() {
    if [ -n "$ALL" ]; then
        jobs_nftables debian
        echo "debian kernel 900 ipvs_kernel conntrack_kernel route_kernel pair_kernel nftables_kernel rig_smoke services policies"
        echo "debian conformance 600 conformance conformance_more:--skip,on_nftables restarts"
        echo "debian kube_proxy 900 conformance_kube_proxy"
    else
        echo "debian kernel 40 ipvs_kernel conntrack_kernel route_kernel pair_kernel nftables_kernel rig_smoke"
    fi
}

# The package's kernel of User Mode Linux is that of Debian 12.
jobs_packaged() {
    echo "packaged kernel 30 ipvs_kernel conntrack_kernel route_kernel pair_kernel rig_smoke"
    [ -z "$ALL" ] || echo "packaged conformance 250 conformance conformance_more:--skip,on_nftables services policies director:$(skipped "$ATTRIBUTES"),--skip,over_ipv6"
}

# A kernel with IPVS needs no guest. The jobs of uml have every test file that those of debian have.
# Kubelets change settings of the whole kernel, so that they run in guests only. The lane netns plays rows with nftables.
jobs_guest() {
    jobs_uml | sed -E '/ (install|migration|kubernetes_specs)$/d; /^uml (changeover|takeover_nftables|nftables) /d; s/^uml /guest /'
    echo "guest changeover 60 changeover"
    echo "guest takeover_nftables 90 takeover:to_nftables"
}
