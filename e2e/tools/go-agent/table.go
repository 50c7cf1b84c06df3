package main

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	portolanv1 "portolan.invalid/e2e/tools/go-agent/portolan/v1"
)

// Table is the table of one node, with what is staged for the next Commit.
type Table struct {
	cluster  string
	records  part[*portolanv1.Record]
	overlays part[*portolanv1.NodeLists]
	node     *portolanv1.NodeInfo
	staged   staged
	// epoch belongs to the stream; position is that of the last good Commit.
	epoch          uint64
	position       *position
	sourceVersions []uint64
}

type position struct{ epoch, revision uint64 }

// part is one of the two maps of a table, by encoded RecordKey.
type part[T proto.Message] map[string]T

// staged holds what has arrived since the last Commit. A nil value deletes its key.
type staged struct {
	records  map[string]*portolanv1.Record
	overlays map[string]*portolanv1.NodeLists
	node     *portolanv1.NodeInfo
	// replaceAll drops every record that is not staged, replaceOwn all that the node has of its own.
	replaceAll, replaceOwn bool
	buckets                map[uint32]bool
	bucketCount            uint32
}

// NewTable returns a table without content.
func NewTable(cluster string) *Table {
	table := &Table{
		cluster:  cluster,
		records:  part[*portolanv1.Record]{},
		overlays: part[*portolanv1.NodeLists]{},
		node:     &portolanv1.NodeInfo{},
	}
	table.drop()
	return table
}

func (t *Table) drop() {
	t.staged = staged{
		records:  map[string]*portolanv1.Record{},
		overlays: map[string]*portolanv1.NodeLists{},
		buckets:  map[uint32]bool{},
	}
}

// Distrust makes the next stream send the whole table.
func (t *Table) Distrust() { t.position = nil }

// Hello begins a stream: it drops what the last one left staged, and states what the table is.
func (t *Table) Hello(node string) *portolanv1.Hello {
	t.drop()
	hello := &portolanv1.Hello{
		Version: 1, Cluster: t.cluster, Node: node, AgentVersion: "go-agent",
		SourceVersions: t.sourceVersions,
	}
	if t.position != nil {
		hello.Epoch, hello.Revision = t.position.epoch, t.position.revision
		hello.RecordsHash, hello.OwnHash = t.recordsHash().bytes(), t.ownHash().bytes()
	}
	return hello
}

// Apply stages a frame, or commits what is staged, and returns what to answer.
func (t *Table) Apply(frame *portolanv1.Frame) ([]*portolanv1.AgentMessage, error) {
	switch frame := frame.GetFrame().(type) {
	case *portolanv1.Frame_Welcome:
		t.epoch = frame.Welcome.GetEpoch()
	case *portolanv1.Frame_Records:
		return nil, t.stageRecords(frame.Records)
	case *portolanv1.Frame_Compressed:
		records, err := inflate(frame.Compressed)
		if err != nil {
			return nil, err
		}
		return nil, t.stageRecords(records)
	case *portolanv1.Frame_Own:
		t.stageOwn(frame.Own)
	case *portolanv1.Frame_AskBuckets:
		hashes := t.bucketHashes(frame.AskBuckets.GetCount())
		answer := &portolanv1.AgentMessage_Buckets{Buckets: &portolanv1.Buckets{Hashes: hashes}}
		return []*portolanv1.AgentMessage{{Message: answer}}, nil
	case *portolanv1.Frame_Commit:
		return t.commit(frame.Commit)
	}
	// Goaway, Confirm and frames that are newer than this program need no answer from it.
	return nil, nil
}

func inflate(compressed []byte) (*portolanv1.Records, error) {
	reader, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxFrameBytes))
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	raw, err := reader.DecodeAll(compressed, nil)
	if err != nil {
		return nil, err
	}
	records := &portolanv1.Records{}
	return records, proto.Unmarshal(raw, records)
}

// stageRecords applies the fields in their order: put, delete, replace_buckets, patch.
func (t *Table) stageRecords(records *portolanv1.Records) error {
	for _, record := range records.GetPut() {
		t.staged.records[encodeKey(record.GetKey())] = record
	}
	for _, key := range records.GetDelete() {
		t.staged.records[encodeKey(key)] = nil
	}
	if buckets := records.GetReplaceBuckets(); len(buckets) > 0 {
		if t.staged.bucketCount != 0 && t.staged.bucketCount != records.GetBucketCount() {
			return errors.New("two counts of buckets in one transition")
		}
		t.staged.bucketCount = records.GetBucketCount()
		for _, bucket := range buckets {
			t.staged.buckets[bucket] = true
		}
	}
	for _, patch := range records.GetPatch() {
		key := encodeKey(patch.GetKey())
		base, isStaged := t.staged.records[key]
		if !isStaged {
			base = t.records[key]
		}
		patched, err := applyPatch(base, patch)
		if err != nil {
			return err
		}
		t.staged.records[key] = patched
	}
	return nil
}

func (t *Table) stageOwn(own *portolanv1.Own) {
	if own.GetReplace() {
		t.staged.replaceOwn = true
	}
	for _, overlay := range own.GetPut() {
		t.staged.overlays[encodeKey(overlay.GetKey())] = overlay
	}
	for _, key := range own.GetDelete() {
		t.staged.overlays[encodeKey(key)] = nil
	}
	if own.GetNode() != nil {
		t.staged.node = own.GetNode()
	}
}

// commit makes what is staged the table, if its hashes are those of the Commit.
func (t *Table) commit(commit *portolanv1.Commit) ([]*portolanv1.AgentMessage, error) {
	all := commit.GetSnapshot()
	t.records = merge(t.records, t.staged.records, func(key string) bool {
		return all || t.staged.bucketCount > 0 && t.staged.buckets[bucketOf(key, t.staged.bucketCount)]
	})
	replaceOwn := all || t.staged.replaceOwn
	t.overlays = merge(t.overlays, t.staged.overlays, func(string) bool { return replaceOwn })
	if t.staged.node != nil {
		t.node = t.staged.node
	} else if replaceOwn {
		t.node = &portolanv1.NodeInfo{}
	}
	t.drop()
	records, own := t.recordsHash(), t.ownHash()
	if string(records.bytes()) != string(commit.GetRecordsHash()) {
		return nil, fmt.Errorf("the set of records of revision %d has hash %s, not %x", commit.GetRevision(), records, commit.GetRecordsHash())
	}
	// Without an own_hash, what is the node's own is as it was.
	if stated := commit.GetOwnHash(); len(stated) > 0 && string(own.bytes()) != string(stated) {
		return nil, fmt.Errorf("node data of revision %d has hash %s, not %x", commit.GetRevision(), own, stated)
	}
	t.position = &position{t.epoch, commit.GetRevision()}
	t.sourceVersions = commit.GetSourceVersions()
	received := &portolanv1.Received{Revision: commit.GetRevision()}
	programmed := &portolanv1.Programmed{
		Revision: commit.GetRevision(), RecordsHash: records.bytes(), OwnHash: own.bytes(),
	}
	return []*portolanv1.AgentMessage{
		{Message: &portolanv1.AgentMessage_Received{Received: received}},
		{Message: &portolanv1.AgentMessage_Programmed{Programmed: programmed}},
	}, nil
}

// merge returns old without what is replaced, changed by what is staged.
func merge[T proto.Message](old part[T], changes map[string]T, isReplaced func(string) bool) part[T] {
	merged := part[T]{}
	for key, value := range old {
		if !isReplaced(key) {
			merged[key] = value
		}
	}
	for key, value := range changes {
		if any(value).(proto.Message).ProtoReflect().IsValid() {
			merged[key] = value
		} else {
			delete(merged, key)
		}
	}
	return merged
}

func (t *Table) recordsHash() sum {
	var total sum
	for _, record := range t.records {
		total.add(record.GetHash())
	}
	return total
}

func (t *Table) ownHash() sum {
	var total sum
	for _, overlay := range t.overlays {
		total.add(overlay.GetHash())
	}
	if stated := t.node.GetHash(); len(stated) > 0 {
		total.add(stated)
	} else {
		total.add(hashNode(t.node))
	}
	return total
}

func (t *Table) bucketHashes(count uint32) []byte {
	sums := make([]sum, count)
	for key, record := range t.records {
		sums[bucketOf(key, count)].add(record.GetHash())
	}
	var hashes []byte
	for _, total := range sums {
		hashes = binary.BigEndian.AppendUint64(hashes, total.low)
	}
	return hashes
}

// wrongContent counts the values whose content does not have the hash that the controller states.
func (t *Table) wrongContent() int {
	wrong := 0
	for _, record := range t.records {
		if string(hashRecord(t.cluster, record)) != string(record.GetHash()) {
			wrong++
		}
	}
	for _, overlay := range t.overlays {
		if string(hashOverlay(t.cluster, overlay)) != string(overlay.GetHash()) {
			wrong++
		}
	}
	if stated := t.node.GetHash(); len(stated) > 0 && string(hashNode(t.node)) != string(stated) {
		wrong++
	}
	return wrong
}

// Describe is the line that is printed for a Commit.
func (t *Table) Describe(commit *portolanv1.Commit) string {
	return fmt.Sprintf("commit revision=%d snapshot=%t records=%d overlays=%d wrong_content=%d records_hash=%s own_hash=%s",
		commit.GetRevision(), commit.GetSnapshot(), len(t.records), len(t.overlays), t.wrongContent(), t.recordsHash(), t.ownHash())
}
