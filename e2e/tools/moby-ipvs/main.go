// Programs N services with M endpoints each by the library that kube-proxy's IPVS mode uses, as
// kube-proxy does it: one request at a time. Prints the milliseconds that took.
//
// Usage: moby-ipvs N M
package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/moby/ipvs"
)

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "moby-ipvs:", err)
		os.Exit(1)
	}
}

func address(first byte, number int) net.IP {
	return net.IPv4(10, first+byte(number>>16), byte(number>>8), byte(number)).To4()
}

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: moby-ipvs N M"))
	}
	services, err := strconv.Atoi(os.Args[1])
	fail(err)
	endpoints, err := strconv.Atoi(os.Args[2])
	fail(err)
	handle, err := ipvs.New("")
	fail(err)
	start := time.Now()
	for s := 0; s < services; s++ {
		service := &ipvs.Service{
			Address: address(96, s), Protocol: syscall.IPPROTO_TCP, Port: 80,
			SchedName: "rr", AddressFamily: syscall.AF_INET, Netmask: 0xffffffff,
		}
		fail(handle.NewService(service))
		for e := 0; e < endpoints; e++ {
			fail(handle.NewDestination(service, &ipvs.Destination{
				Address: address(128, s*endpoints+e), Port: 8080, Weight: 1,
				AddressFamily: syscall.AF_INET,
			}))
		}
	}
	fmt.Printf("%.1f\n", float64(time.Since(start).Microseconds())/1000)
}
