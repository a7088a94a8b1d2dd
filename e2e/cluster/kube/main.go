// Command kube is every component of Kubernetes in one binary: the component is the first argument, or the
// name under which the binary was called (a link called kubectl is kubectl).
//
// The project publishes its servers as container images only; its Go modules are what a machine with nothing but a
// module proxy can get. One binary instead of six shares the code that all of them link, and one link step.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var components = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kube-proxy":              proxy.NewProxyCommand,
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
}

// known lists the components for the error that a wrong name gets.
func known() string {
	names := make([]string, 0, len(components))
	for name := range components {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func main() {
	name := filepath.Base(os.Args[0])
	if components[name] == nil && len(os.Args) > 1 {
		// The components read os.Args themselves, and expect their own name first.
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	build := components[name]
	if build == nil {
		fmt.Fprintf(os.Stderr, "kube: unknown component %q; one of: %s\n", name, known())
		os.Exit(2)
	}
	command := build()
	if name == "kubectl" {
		// kubectl prints its errors in its own way, without the usage text that the servers add.
		util.CheckErr(cli.RunNoErrOutput(command))
		return
	}
	os.Exit(cli.Run(command))
}
