// Command coredns is CoreDNS with the few plugins that a cluster's own DNS needs.
//
// The stock program also links the clients of every cloud that it has a plugin for, and takes three times as long to
// compile.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

func init() {
	// The order in which a request passes the plugins, as in the stock program.
	dnsserver.Directives = []string{
		"ready", "health", "errors", "log", "loadbalance", "cache", "template", "kubernetes",
	}
}

func main() {
	coremain.Run()
}
