package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"

	"google.golang.org/protobuf/proto"

	portolanv1 "portolan.invalid/e2e/tools/go-agent/portolan/v1"
)

// vectors is the content of docs/protocol-vectors.json; bytes are in hexadecimal.
type vectors struct {
	Records, Overlays, Nodes []struct{ Name, Cluster, Message, Hash string }
	Sums                     []struct {
		Members []string
		Sum     string
	}
	RelayNodes []struct {
		Name    string
		OwnHash string `json:"own_hash"`
		Hash    string
	} `json:"relay_nodes"`
	Buckets []struct {
		Key           string
		Count, Bucket uint32
	}
	Patches []struct{ Name, Cluster, Base, Patch, Hash string }
	Stream  []string
}

func decode(text string, message proto.Message) error {
	bytes, err := hex.DecodeString(text)
	if err != nil {
		return err
	}
	return proto.Unmarshal(bytes, message)
}

// compare fails unless a hash is the published one, and the message carries it.
func compare(name string, computed []byte, carried []byte, published string) error {
	if text := hex.EncodeToString(computed); text != published {
		return fmt.Errorf("%s: computed %s, published %s", name, text, published)
	}
	if carried != nil && string(carried) != string(computed) {
		return fmt.Errorf("%s: the message carries %x, published %s", name, carried, published)
	}
	return nil
}

// checkVectors computes every published vector anew.
func checkVectors(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var v vectors
	if err := json.Unmarshal(text, &v); err != nil {
		return err
	}
	for _, check := range []func(vectors) error{checkContent, checkSums, checkPatches, checkStream} {
		if err := check(v); err != nil {
			return err
		}
	}
	return nil
}

func checkContent(v vectors) error {
	for _, vector := range v.Records {
		record := &portolanv1.Record{}
		if err := decode(vector.Message, record); err != nil {
			return err
		}
		if err := compare(vector.Name, hashRecord(vector.Cluster, record), record.GetHash(), vector.Hash); err != nil {
			return err
		}
	}
	for _, vector := range v.Overlays {
		overlay := &portolanv1.NodeLists{}
		if err := decode(vector.Message, overlay); err != nil {
			return err
		}
		if err := compare(vector.Name, hashOverlay(vector.Cluster, overlay), overlay.GetHash(), vector.Hash); err != nil {
			return err
		}
	}
	for _, vector := range v.Nodes {
		node := &portolanv1.NodeInfo{}
		if err := decode(vector.Message, node); err != nil {
			return err
		}
		if err := compare(vector.Name, hashNode(node), node.GetHash(), vector.Hash); err != nil {
			return err
		}
	}
	return nil
}

func checkSums(v vectors) error {
	for _, vector := range v.Sums {
		var total sum
		for _, member := range vector.Members {
			bytes, err := hex.DecodeString(member)
			if err != nil {
				return err
			}
			total.add(bytes)
		}
		if err := compare("sum", total.bytes(), nil, vector.Sum); err != nil {
			return err
		}
	}
	for _, vector := range v.RelayNodes {
		own, err := hex.DecodeString(vector.OwnHash)
		if err != nil {
			return err
		}
		c := newCanonical("own")
		c.text(vector.Name)
		c.Write(own)
		if err := compare("node of a relay", c.Sum(nil), nil, vector.Hash); err != nil {
			return err
		}
	}
	for _, vector := range v.Buckets {
		key, err := hex.DecodeString(vector.Key)
		if err != nil {
			return err
		}
		if bucket := bucketOf(string(key), vector.Count); bucket != vector.Bucket {
			return fmt.Errorf("key %s: bucket %d of %d, published %d", vector.Key, bucket, vector.Count, vector.Bucket)
		}
	}
	return nil
}

func checkPatches(v vectors) error {
	for _, vector := range v.Patches {
		base, patch := &portolanv1.Record{}, &portolanv1.RecordPatch{}
		if err := decode(vector.Base, base); err != nil {
			return err
		}
		if err := decode(vector.Patch, patch); err != nil {
			return err
		}
		patched, err := applyPatch(base, patch)
		if err != nil {
			return err
		}
		if err := compare(vector.Name, hashRecord(vector.Cluster, patched), patched.GetHash(), vector.Hash); err != nil {
			return err
		}
	}
	return nil
}

func checkStream(v vectors) error {
	table := NewTable("")
	commits := 0
	for _, text := range v.Stream {
		frame := &portolanv1.Frame{}
		if err := decode(text, frame); err != nil {
			return err
		}
		if _, err := table.Apply(frame); err != nil {
			return err
		}
		if frame.GetCommit() != nil {
			commits++
		}
	}
	if wrong := table.wrongContent(); commits != 2 || wrong != 0 {
		return fmt.Errorf("stream: %d commits, %d values with wrong content", commits, wrong)
	}
	return nil
}
