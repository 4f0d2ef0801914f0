// Reads Kubernetes manifests with the types of Kubernetes itself, in place of a cluster.
//
//	manifests check <MANIFESTS       rejects unknown kinds and fields; prints which level of the Pod Security Standards each
//	                                 workload satisfies
//	manifests pods [DIR] <MANIFESTS  prints the pods of workloads, for `podman kube play`, which knows few kinds; files of
//	                                 Secrets are mounted from DIR
//	manifests kustomize DIR          prints what `kubectl kustomize DIR` prints
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "manifests:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "check":
		return forEachObject(printLevel)
	case len(args) == 1 && args[0] == "pods":
		return forEachObject(printPod(""))
	case len(args) == 2 && args[0] == "pods":
		return forEachObject(printPod(args[1]))
	case len(args) == 2 && args[0] == "kustomize":
		return kustomize(args[1])
	}
	return errors.New("usage: manifests check|pods [DIR]|kustomize DIR")
}

// Decodes each document of standard input, and fails if one has a field that its kind does not have.
func forEachObject(use func(runtime.Object) error) error {
	if err := monitoring.AddToScheme(scheme.Scheme); err != nil {
		return err
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	for _, document := range bytes.Split(text, []byte("\n---")) {
		if isEmpty(document) {
			continue
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return fmt.Errorf("%w in\n%s", err, document)
		}
		if err := use(object); err != nil {
			return err
		}
	}
	return nil
}

func isEmpty(document []byte) bool {
	for _, line := range strings.Split(string(document), "\n") {
		if line = strings.TrimSpace(line); line != "" && line != "---" && !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}

// Prints the strictest level of the Pod Security Standards that a workload satisfies, and why not the next one.
func printLevel(object runtime.Object) error {
	name, template := podTemplate(object)
	if template == nil {
		return nil
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return err
	}
	level, reason := api.LevelPrivileged, ""
	for _, stricter := range []api.Level{api.LevelBaseline, api.LevelRestricted} {
		wanted := api.LevelVersion{Level: stricter, Version: api.LatestVersion()}
		result := policy.AggregateCheckResults(evaluator.EvaluatePod(wanted, &template.ObjectMeta, &template.Spec))
		if !result.Allowed {
			reason = fmt.Sprintf(" (not %s: %s)", stricter, result.ForbiddenDetail())
			break
		}
		level = stricter
	}
	fmt.Printf("%s: %s%s\n", name, level, reason)
	return nil
}

// Prints the Pod of a workload, and a ConfigMap as it is.
func printPod(secrets string) func(runtime.Object) error {
	return func(object runtime.Object) error {
		name, template := podTemplate(object)
		if template == nil {
			if _, ok := object.(*core.ConfigMap); ok {
				return printYAML(object)
			}
			return nil
		}
		template.Name = name
		// By any other policy podman 4.3 restarts init containers that have succeeded, too.
		template.Spec.RestartPolicy = core.RestartPolicyNever
		for i := range template.Spec.Volumes {
			if template.Spec.Volumes[i].Secret != nil {
				mountFile(&template.Spec, &template.Spec.Volumes[i], secrets)
			}
		}
		return printYAML(&core.Pod{
			TypeMeta:   meta.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: template.ObjectMeta,
			Spec:       template.Spec,
		})
	}
}

// Replaces a Secret of which one file is mounted by that file of the host: podman 4.3 has neither Secrets as volumes nor
// subPath.
func mountFile(pod *core.PodSpec, volume *core.Volume, dir string) {
	for i := range pod.Containers {
		for j := range pod.Containers[i].VolumeMounts {
			mount := &pod.Containers[i].VolumeMounts[j]
			if mount.Name == volume.Name {
				file := core.HostPathFile
				path := core.HostPathVolumeSource{Path: dir + "/" + mount.SubPath, Type: &file}
				volume.VolumeSource = core.VolumeSource{HostPath: &path}
				mount.SubPath = ""
			}
		}
	}
}

func printYAML(object runtime.Object) error {
	text, err := yaml.Marshal(object)
	fmt.Printf("---\n%s", text)
	return err
}

func podTemplate(object runtime.Object) (string, *core.PodTemplateSpec) {
	switch workload := object.(type) {
	case *apps.Deployment:
		return workload.Name, &workload.Spec.Template
	case *apps.DaemonSet:
		return workload.Name, &workload.Spec.Template
	case *core.Pod:
		return workload.Name, &core.PodTemplateSpec{ObjectMeta: workload.ObjectMeta, Spec: workload.Spec}
	}
	return "", nil
}

func kustomize(dir string) error {
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return err
	}
	text, err := resources.AsYaml()
	fmt.Print(string(text))
	return err
}
