package main

import (
	"encoding/binary"
	"fmt"
	"sort"

	"google.golang.org/protobuf/proto"

	portolanv1 "portolan.invalid/e2e/tools/go-agent/portolan/v1"
)

// row is one destination of the columns, with its zone mask.
type row struct {
	// address has 4 or 16 bytes.
	address      string
	port, weight uint32
	mask         uint64
}

// before tells the order of destinations: IPv4 first, then by address and port.
func (r row) before(other row) bool {
	if len(r.address) != len(other.address) {
		return len(r.address) < len(other.address)
	}
	if r.address != other.address {
		return r.address < other.address
	}
	return r.port < other.port
}

func unpack(columns *portolanv1.Destinations, masks []uint64) []row {
	var rows []row
	for _, v4 := range columns.GetV4() {
		rows = append(rows, row{address: string(binary.BigEndian.AppendUint32(nil, v4))})
	}
	for v6 := columns.GetV6(); len(v6) >= 16; v6 = v6[16:] {
		rows = append(rows, row{address: string(v6[:16])})
	}
	ports, weights := columns.GetPorts(), columns.GetWeights()
	for i := range rows {
		rows[i].port = ports[min(i, len(ports)-1)]
		rows[i].weight = 1
		if len(weights) > 0 {
			rows[i].weight = weights[i]
		}
		if len(masks) > 0 {
			rows[i].mask = masks[i]
		}
	}
	return rows
}

func pack(rows []row) *portolanv1.Destinations {
	columns := &portolanv1.Destinations{}
	for _, r := range rows {
		if len(r.address) == 4 {
			columns.V4 = append(columns.V4, binary.BigEndian.Uint32([]byte(r.address)))
		} else {
			columns.V6 = append(columns.V6, r.address...)
		}
		columns.Ports = append(columns.Ports, r.port)
		columns.Weights = append(columns.Weights, r.weight)
	}
	return columns
}

// applyPatch returns the record that a patch makes of its base.
func applyPatch(base *portolanv1.Record, patch *portolanv1.RecordPatch) (*portolanv1.Record, error) {
	if base == nil || string(base.GetHash()) != string(patch.GetBase()) {
		return nil, fmt.Errorf("patch of %s/%s: its base is not here", patch.GetKey().GetNamespace(), patch.GetKey().GetService())
	}
	type place struct {
		address string
		port    uint32
	}
	rows := map[place]row{}
	for _, r := range unpack(base.GetDestinations(), base.GetZoneMasks()) {
		rows[place{r.address, r.port}] = r
	}
	for _, r := range unpack(patch.GetRemove(), nil) {
		delete(rows, place{r.address, r.port})
	}
	for _, r := range unpack(patch.GetPut(), patch.GetPutZoneMasks()) {
		rows[place{r.address, r.port}] = r
	}
	sorted := make([]row, 0, len(rows))
	for _, r := range rows {
		sorted = append(sorted, r)
	}
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].before(sorted[j]) })
	patched := proto.Clone(base).(*portolanv1.Record)
	patched.Hash = patch.GetHash()
	patched.Destinations = pack(sorted)
	if len(base.GetZones()) > 0 {
		patched.ZoneMasks = make([]uint64, 0, len(sorted))
		for _, r := range sorted {
			patched.ZoneMasks = append(patched.ZoneMasks, r.mask)
		}
	}
	return patched, nil
}
