// The go-agent program follows the table of one node, as docs/protocol.md describes it, and prints a
// line for each transition. It holds the table in memory and touches no kernel.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	portolanv1 "portolan.invalid/e2e/tools/go-agent/portolan/v1"
)

// maxFrameBytes is the largest frame that an agent must accept.
const maxFrameBytes = 16 << 20

func main() {
	log.SetFlags(0)
	controller := flag.String("controller", "", "address of the controller, HOST:PORT")
	node := flag.String("node-name", "", "name of the node")
	cluster := flag.String("cluster", "", "name of the cluster; empty for a single cluster")
	tlsDir := flag.String("tls-dir", "", "directory with tls.crt, tls.key and ca.crt; plaintext without")
	vectors := flag.String("vectors", "", "check the test vectors in this file, and end")
	flag.Parse()
	if *vectors != "" {
		if err := checkVectors(*vectors); err != nil {
			log.Fatalf("go-agent: %s: %v", *vectors, err)
		}
		return
	}
	if *controller == "" || *node == "" {
		log.Fatal("go-agent: --controller and --node-name are required")
	}
	creds, err := transport(*tlsDir)
	if err != nil {
		log.Fatalf("go-agent: %v", err)
	}
	connection, err := grpc.NewClient(*controller, grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxFrameBytes)))
	if err != nil {
		log.Fatalf("go-agent: %v", err)
	}
	client := portolanv1.NewTablesClient(connection)
	table := NewTable(*cluster)
	for {
		// The table survives a stream, so that the next one resumes.
		err := follow(context.Background(), client, table, *node)
		fmt.Printf("stream ended: %v\n", err)
		time.Sleep(200 * time.Millisecond)
	}
}

func transport(dir string) (credentials.TransportCredentials, error) {
	if dir == "" {
		return insecure.NewCredentials(), nil
	}
	identity, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("ca.crt: no certificate")
	}
	return credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{identity}, RootCAs: roots}), nil
}

// follow opens one stream and applies its frames until it ends.
func follow(ctx context.Context, client portolanv1.TablesClient, table *Table, node string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Sync(ctx)
	if err != nil {
		return err
	}
	hello := table.Hello(node)
	if err := stream.Send(&portolanv1.AgentMessage{Message: &portolanv1.AgentMessage_Hello{Hello: hello}}); err != nil {
		return err
	}
	for {
		frame, err := stream.Recv()
		if err != nil {
			return err
		}
		answers, err := table.Apply(frame)
		if err != nil {
			table.Distrust()
			return err
		}
		for _, answer := range answers {
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
		if commit := frame.GetCommit(); commit != nil {
			fmt.Println(table.Describe(commit))
		}
	}
}
