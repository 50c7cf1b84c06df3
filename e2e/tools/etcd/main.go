// The etcd server, of a version that the API server makes full use of: from older ones it does not
// stream lists.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
