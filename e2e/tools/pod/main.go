// The pod program is all that the containers of tests run. It is static, so its image holds nothing else.
//
//	pod pause          waits: the sandbox of a pod, and a pod that is only an address
//	pod echo PORT      answers each line of a TCP connection, and each UDP datagram, with "HOSTNAME SOURCE", as the
//	                   rig's echo servers do
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// The first process of a PID namespace has no default actions.
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	switch {
	case len(os.Args) == 3 && os.Args[1] == "echo":
		if err := echo(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "pod:", err)
			os.Exit(1)
		}
	case len(os.Args) == 2 && os.Args[1] == "pause":
	default:
		fmt.Fprintln(os.Stderr, "usage: pod pause | echo PORT")
		os.Exit(2)
	}
	<-end
}

// echo serves on all addresses, in the background.
func echo(port string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	socket, err := net.ListenPacket("udp", ":"+port)
	if err != nil {
		return err
	}
	go answerDatagrams(name, socket)
	go func() {
		for {
			if connection, err := listener.Accept(); err == nil {
				go answer(name, connection)
			}
		}
	}()
	return nil
}

func answer(name string, connection net.Conn) {
	defer connection.Close()
	source, _, err := net.SplitHostPort(connection.RemoteAddr().String())
	if err != nil {
		return
	}
	lines := bufio.NewScanner(connection)
	for lines.Scan() {
		if _, err := fmt.Fprintln(connection, name, source); err != nil {
			return
		}
	}
}

func answerDatagrams(name string, socket net.PacketConn) {
	var datagram [2048]byte
	for {
		_, from, err := socket.ReadFrom(datagram[:])
		if err != nil {
			continue
		}
		if source, _, err := net.SplitHostPort(from.String()); err == nil {
			// A lost answer is the asker's matter, as with every datagram.
			_, _ = socket.WriteTo([]byte(name+" "+source+"\n"), from)
		}
	}
}
