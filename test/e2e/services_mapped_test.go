package e2e

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/tutorial"
)

// TestMappedServices maps a service of Cloud Map in cls2. Its instances are pods of cls1 that no
// ServiceExport exports, in place of the tasks of ECS.
func TestMappedServices(t *testing.T) {
	onlyOn(t, clusterset.CloudMap)
	const configMap, file = "services-of-the-test", "/etc/services-of-the-test/services.yaml"
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	apply(t, cls1, servers(cls1, ns, "tasks", 2))
	svc := service(ns, "tasks")
	svc.Spec.Selector = map[string]string{"app": "tasks"}
	create(t, cls1, svc)
	var tasks []string
	eventually(t, started, func() error {
		var err error
		if tasks, err = podIPs(t.Context(), cls1, ns, "tasks"); err == nil && len(tasks) != 2 {
			err = fmt.Errorf("%d pods are ready", len(tasks))
		}
		return err
	})

	cloud := "ecs-" + ns
	aws := func(ctx context.Context, args string) (string, error) {
		out, err := suite.Output(ctx, tutorial.AWS(args))
		return strings.TrimSpace(out), err
	}
	must := func(args string) string {
		t.Helper()
		out, err := aws(t.Context(), args)
		if err != nil {
			t.Fatalf("aws %s: %v %s", args, err, out)
		}
		return out
	}
	must("create-http-namespace --name " + cloud)
	id := ""
	eventually(t, soon, func() error {
		var err error
		id, err = aws(t.Context(), "list-namespaces --query \"Namespaces[?Name=='"+cloud+"'].Id | [0]\" --output text")
		if err == nil && !strings.HasPrefix(id, "ns-") {
			err = fmt.Errorf("namespace %s has ID %q", cloud, id)
		}
		return err
	})
	orders := must("create-service --name orders --namespace-id " + id + " --query Service.Id --output text")
	for _, address := range tasks {
		must("register-instance --service-id " + orders + " --instance-id " + address + " --attributes AWS_INSTANCE_IPV4=" + address + ",AWS_INSTANCE_PORT=80,AVAILABILITY_ZONE=local-1a")
	}
	t.Cleanup(func() {
		for _, address := range tasks {
			_, _ = aws(context.Background(), "deregister-instance --service-id "+orders+" --instance-id "+address)
		}
		err := clusterset.Eventually(context.Background(), soon, func() error {
			_, err := aws(context.Background(), "delete-service --id "+orders)
			return err
		})
		if err != nil {
			t.Error(err)
		}
		if out, err := aws(context.Background(), "delete-namespace --id "+id); err != nil {
			t.Error(out, err)
		}
	})

	write := func(t *testing.T, text string) {
		t.Helper()
		writeFile(t, cls2, configMap, path.Base(file), text)
	}
	t.Cleanup(func() {
		if _, err := suite.Kubectl(context.Background(), "cls2", "-n", system, "delete", "configmap", configMap); err != nil {
			t.Error(err)
		}
	})
	write(t, fmt.Sprintf("services: [{cloudMap: {namespace: %s, service: orders}, import: {namespace: %s, name: orders}, ports: [{port: 80}]}]", cloud, ns))
	useFile(t, cls2, configMap, file, "--cloud-map-services="+file)
	has := func(want ...string) func() error {
		return func() error {
			got, err := imported(t.Context(), cls2, ns, "orders", "cloud-map", true)
			if err == nil && !slices.Equal(got, want) {
				err = fmt.Errorf("imported are %v, want %v", got, want)
			}
			return err
		}
	}
	eventually(t, started, has(tasks...))
	startClient(t, cls2, ns)
	command := curl("http://" + fqdn(ns, "orders"))
	eventually(t, started, func() error { return answeredBy(t.Context(), cls2, ns, command, "cls1") })
	says(t, 0, "check --context cls2", "√ mapped services: 1 services of AWS Cloud Map, imported as those of cloud-map")
	says(t, 0, "status --context cls2", "cloud-map", "AWS Cloud Map")
	says(t, 0, "diagnose orders -n "+ns+" --context cls2", "service orders in "+cloud+" of AWS Cloud Map, read ", "2 instances")
	if err := noImport(t.Context(), cls1, ns, "orders"); err != nil {
		t.Errorf("the cluster without the mapping: %v", err)
	}

	must("deregister-instance --service-id " + orders + " --instance-id " + tasks[0])
	eventually(t, soon, has(tasks[1]))
	eventually(t, soon, func() error { return answeredBy(t.Context(), cls2, ns, command, "cls1") })

	// A file that is not valid changes nothing; the end of the mapping ends the import.
	write(t, "services: perhaps")
	eventually(t, started, func() error {
		out, err := plugin(t.Context(), 3, "check --context cls2")
		if err == nil && !strings.Contains(out, "is not in use") {
			err = fmt.Errorf("kubectl mcs check does not report the file:\n%s", out)
		}
		return err
	})
	if err := has(tasks[1])(); err != nil {
		t.Error(err)
	}
	write(t, "services: []")
	eventually(t, started, func() error { return noImport(t.Context(), cls2, ns, "orders") })
}
