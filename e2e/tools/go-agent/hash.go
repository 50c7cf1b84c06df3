package main

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"google.golang.org/protobuf/proto"
	"lukechampine.com/blake3"

	portolanv1 "portolan.invalid/e2e/tools/go-agent/portolan/v1"
)

const (
	contentKey = "portolan.v1 content hash (keyed)"
	bucketKey  = "portolan.v1 record bucket (keyed"
)

// sum is a sum of 16-byte hashes modulo 2^128.
type sum struct{ high, low uint64 }

func (s *sum) add(hash []byte) {
	if len(hash) != 16 {
		return
	}
	var carry uint64
	s.low, carry = bits.Add64(s.low, binary.BigEndian.Uint64(hash[8:]), 0)
	s.high, _ = bits.Add64(s.high, binary.BigEndian.Uint64(hash[:8]), carry)
}

func (s sum) bytes() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, s.high), s.low)
}

func (s sum) String() string { return fmt.Sprintf("%016x%016x", s.high, s.low) }

func encodeKey(key *portolanv1.RecordKey) string {
	encoded, _ := proto.MarshalOptions{Deterministic: true}.Marshal(key)
	return string(encoded)
}

func bucketOf(key string, count uint32) uint32 {
	hasher := blake3.New(32, []byte(bucketKey))
	hasher.Write([]byte(key))
	return uint32(binary.BigEndian.Uint16(hasher.Sum(nil))) % count
}

// canonical writes content so that no two different contents write the same bytes.
type canonical struct{ *blake3.Hasher }

func newCanonical(domain string) canonical {
	c := canonical{blake3.New(16, []byte(contentKey))}
	c.text(domain)
	return c
}

func (c canonical) number(n uint64) { c.Write(binary.BigEndian.AppendUint64(nil, n)) }

func (c canonical) text(text string) {
	c.number(uint64(len(text)))
	c.Write([]byte(text))
}

func (c canonical) flag(flag bool) {
	if flag {
		c.number(1)
	} else {
		c.number(0)
	}
}

func (c canonical) key(cluster string, key *portolanv1.RecordKey) {
	c.text(cluster)
	c.text(key.GetNamespace())
	c.text(key.GetService())
	c.text(key.GetPort())
	c.number(map[portolanv1.Protocol]uint64{
		portolanv1.Protocol_PROTOCOL_TCP: 6, portolanv1.Protocol_PROTOCOL_UDP: 17, portolanv1.Protocol_PROTOCOL_SCTP: 132,
	}[key.GetProtocol()])
}

func (c canonical) v4(address uint32) {
	c.number(4)
	c.Write(binary.BigEndian.AppendUint32(nil, address))
}

func (c canonical) v6(address []byte) {
	c.number(6)
	c.Write(address)
}

func family(f portolanv1.Family) string {
	if f == portolanv1.Family_FAMILY_V6 {
		return "IPv6"
	}
	return "IPv4"
}

func (c canonical) families(name string, families []portolanv1.Family) {
	for _, f := range families {
		c.text(name)
		c.text(family(f))
	}
}

func (c canonical) networks(networks []*portolanv1.Network) {
	c.number(uint64(len(networks)))
	for _, network := range networks {
		if v6 := network.GetV6(); v6 != nil {
			c.v6(v6)
		} else {
			c.v4(network.GetV4())
		}
		c.number(uint64(network.GetPrefixLength()))
	}
}

func (c canonical) frontend(frontend *portolanv1.Frontend) {
	c.number(uint64(frontend.GetKind()) - 1)
	switch address := frontend.GetAddress().(type) {
	case *portolanv1.Frontend_V4:
		c.v4(address.V4)
	case *portolanv1.Frontend_V6:
		c.v6(address.V6)
	case *portolanv1.Frontend_NodeAddresses:
		c.text(family(address.NodeAddresses))
	case *portolanv1.Frontend_Mark:
		c.text("mark")
		c.text(family(address.Mark.GetFamily()))
		c.number(uint64(address.Mark.GetMark()))
	}
	c.number(uint64(frontend.GetPort()))
	c.number(uint64(frontend.GetLists()) - 1)
	c.flag(frontend.GetMasquerade())
	c.networks(frontend.GetSourceRanges())
	if frontend.GetUnbound() {
		c.text("unbound")
	}
	if frontend.GetKind() == portolanv1.Frontend_KIND_BALANCED_RANGES {
		c.number(uint64(len(frontend.GetRanges())))
		for _, ports := range frontend.GetRanges() {
			c.number(uint64(ports.GetFirst()))
			c.number(uint64(ports.GetLast()))
		}
	}
}

// destinations writes a list with weights, or addresses alone.
func (c canonical) destinations(columns *portolanv1.Destinations, withWeights bool) {
	rows := unpack(columns, nil)
	c.number(uint64(len(rows)))
	for _, row := range rows {
		if len(row.address) == 4 {
			c.number(4)
		} else {
			c.number(6)
		}
		c.Write([]byte(row.address))
		c.number(uint64(row.port))
		if withWeights {
			c.number(uint64(row.weight))
		}
	}
}

func hashRecord(cluster string, record *portolanv1.Record) []byte {
	c := newCanonical("record")
	c.key(cluster, record.GetKey())
	c.number(uint64(len(record.GetFrontends())))
	for _, frontend := range record.GetFrontends() {
		c.frontend(frontend)
	}
	c.destinations(record.GetDestinations(), true)
	if zones := record.GetZones(); len(zones) == 0 {
		c.number(0)
	} else {
		c.number(1)
		c.number(uint64(len(zones)))
		for _, zone := range zones {
			c.text(zone)
		}
		c.number(uint64(len(record.GetZoneMasks())))
		for _, mask := range record.GetZoneMasks() {
			c.number(mask)
		}
	}
	c.number(uint64(record.GetAffinitySeconds()))
	c.families("available", record.GetAvailable())
	if scheduler := record.GetScheduler(); scheduler != "" {
		c.text("scheduler")
		c.text(scheduler)
	}
	if record.SchedulerFlags != nil {
		c.text("flags")
		c.number(uint64(record.GetSchedulerFlags()))
	}
	if record.DrainSeconds != nil {
		c.text("drain")
		c.number(uint64(record.GetDrainSeconds()))
	}
	if port := record.GetHealthCheckPort(); port != 0 {
		c.text("health")
		c.number(uint64(port))
	}
	if group := record.GetNodeGroup(); group != "" {
		c.text("group")
		c.text(group)
	}
	return c.Sum(nil)
}

func hashOverlay(cluster string, overlay *portolanv1.NodeLists) []byte {
	c := newCanonical("lists")
	c.key(cluster, overlay.GetKey())
	c.destinations(overlay.GetCluster(), true)
	c.destinations(overlay.GetLocal(), true)
	c.destinations(overlay.GetOwn(), false)
	c.families("terminating", overlay.GetTerminating())
	return c.Sum(nil)
}

func hashNode(node *portolanv1.NodeInfo) []byte {
	c := newCanonical("node")
	c.text(node.GetZone())
	c.networks(node.GetPodCidrs())
	c.flag(node.GetEligible())
	for _, group := range node.GetGroups() {
		c.text("group")
		c.text(group)
	}
	if director := node.GetDirector(); len(director) > 0 {
		c.text("director")
		c.text(string(director))
	}
	return c.Sum(nil)
}
