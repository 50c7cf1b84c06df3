// Prints how many bytes a cluster's Services and EndpointSlices are when an API server sends them
// to one watch each, in protobuf: so many Services of so many endpoints.
//
// The objects have what real ones have: uids, labels, owner references, and the managedFields of
// whoever made them (kubectl apply, and the endpoint slice controller).
package main

import (
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The length that a watch puts before each event.
const lengthBytes = 4

// Slices have at most so many endpoints, by the controller's default.
const sliceEndpoints = 100

const serviceFields = `{"f:metadata":{"f:annotations":{".":{},"f:kubectl.kubernetes.io/last-applied-configuration":{}},"f:labels":{".":{},"f:app.kubernetes.io/name":{}}},"f:spec":{"f:internalTrafficPolicy":{},"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{},"f:protocol":{},"f:targetPort":{}}},"f:selector":{},"f:sessionAffinity":{},"f:type":{}}}`

const sliceFields = `{"f:addressType":{},"f:endpoints":{},"f:metadata":{"f:annotations":{".":{},"f:endpoints.kubernetes.io/last-change-trigger-time":{}},"f:generateName":{},"f:labels":{".":{},"f:app.kubernetes.io/name":{},"f:endpointslice.kubernetes.io/managed-by":{},"f:kubernetes.io/service-name":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"%s\"}":{}}},"f:ports":{}}`

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatalf("usage: %s SERVICES ENDPOINTS", os.Args[0])
	}
	services, endpoints := number(os.Args[1]), number(os.Args[2])
	serializer := protobuf.NewSerializer(nil, nil)
	total := 0
	for i := range services {
		total += event(serializer, service(i))
		for first := 0; first < endpoints; first += sliceEndpoints {
			total += event(serializer, slice(i, first, min(endpoints, first+sliceEndpoints)))
		}
	}
	fmt.Println(total)
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		log.Fatalf("%q: %v", text, err)
	}
	return n
}

// How many bytes an object is as an ADDED event.
func event(serializer runtime.Encoder, object runtime.Object) int {
	raw, err := runtime.Encode(serializer, object)
	if err != nil {
		log.Fatal(err)
	}
	whole, err := runtime.Encode(serializer, &metav1.WatchEvent{
		Type:   "ADDED",
		Object: runtime.RawExtension{Raw: raw},
	})
	if err != nil {
		log.Fatal(err)
	}
	return lengthBytes + len(whole)
}

func uid(kind, i int) types.UID {
	return types.UID(fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", i*2654435761%4294967296, kind, i%4096, i%4093, i*40503))
}

func managed(manager, operation, fields string) []metav1.ManagedFieldsEntry {
	made := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	return []metav1.ManagedFieldsEntry{{
		Manager:    manager,
		Operation:  metav1.ManagedFieldsOperationType(operation),
		APIVersion: "v1",
		Time:       &made,
		FieldsType: "FieldsV1",
		FieldsV1:   &metav1.FieldsV1{Raw: []byte(fields)},
	}}
}

func meta(i int, name string, kind int) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:              name,
		Namespace:         fmt.Sprintf("namespace-%02d", i%50),
		UID:               uid(kind, i),
		ResourceVersion:   strconv.Itoa(1_000_000 + i),
		CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
		Labels:            map[string]string{"app.kubernetes.io/name": fmt.Sprintf("service-%05d", i)},
	}
}

func service(i int) *corev1.Service {
	object := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{Kind: "Service", APIVersion: "v1"},
		ObjectMeta: meta(i, fmt.Sprintf("service-%05d", i), 1),
	}
	object.ManagedFields = managed("kubectl-client-side-apply", "Update", serviceFields)
	single := corev1.IPFamilyPolicySingleStack
	cluster := corev1.ServiceInternalTrafficPolicyCluster
	ip := fmt.Sprintf("10.96.%d.%d", i/256%256, i%256)
	object.Spec = corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{
			Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080),
		}},
		Selector:              object.Labels,
		ClusterIP:             ip,
		ClusterIPs:            []string{ip},
		Type:                  corev1.ServiceTypeClusterIP,
		SessionAffinity:       corev1.ServiceAffinityNone,
		IPFamilies:            []corev1.IPFamily{corev1.IPv4Protocol},
		IPFamilyPolicy:        &single,
		InternalTrafficPolicy: &cluster,
	}
	if i%10 == 0 {
		object.Spec.Type = corev1.ServiceTypeNodePort
		object.Spec.Ports[0].NodePort = int32(30000 + i/10%2768)
		object.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	return object
}

func slice(i, first, end int) *discoveryv1.EndpointSlice {
	name := fmt.Sprintf("service-%05d", i)
	object := &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"},
		ObjectMeta:  meta(i, fmt.Sprintf("%s-%05x", name, i*7919%1048576), 2+first),
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	yes := true
	object.GenerateName = name + "-"
	object.Labels[discoveryv1.LabelManagedBy] = "endpointslice-controller.k8s.io"
	object.Labels[discoveryv1.LabelServiceName] = name
	object.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-02T03:04:05Z"}
	object.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Service", Name: name, UID: uid(1, i),
		Controller: &yes, BlockOwnerDeletion: &yes,
	}}
	object.ManagedFields = managed("kube-controller-manager", "Update", fmt.Sprintf(sliceFields, uid(1, i)))
	port, protocol, portName := int32(8080), corev1.ProtocolTCP, "http"
	object.Ports = []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &protocol}}
	ready, terminating := true, false
	for e := first; e < end; e++ {
		node := (i*7919 + e*499) % 5000
		nodeName, zone := fmt.Sprintf("node-%05d", node), fmt.Sprintf("zone-%c", 'a'+node%3)
		object.Endpoints = append(object.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 128+node/256, node%256, 2+(i+e)%250)},
			Conditions: discoveryv1.EndpointConditions{
				Ready: &ready, Serving: &ready, Terminating: &terminating,
			},
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: object.Namespace,
				Name: fmt.Sprintf("%s-%010x-%05x", name, i*2654435761%1099511627776, e),
				UID:  uid(3+e, i),
			},
			NodeName: &nodeName,
			Zone:     &zone,
		})
	}
	return object
}
