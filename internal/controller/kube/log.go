package kube

import (
	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// LogConstructor returns the constructor of the loggers of a controller, named as in its metrics:
// one for each request, and one for the controller itself. controller-runtime tells that one of
// each watch and worker that it starts or stops, which is most of the log of a standby and says
// nothing about the cluster: it has level debug, except for errors.
func LogConstructor(log logr.Logger, controller, kind string) func(*reconcile.Request) logr.Logger {
	log = log.WithValues("controller", controller)
	return func(req *reconcile.Request) logr.Logger {
		if req == nil {
			return log.V(1)
		}
		return log.WithValues(kind, klog.KRef(req.Namespace, req.Name), "namespace", req.Namespace, "name", req.Name)
	}
}
