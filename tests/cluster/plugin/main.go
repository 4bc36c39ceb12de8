// The rig's device plugin: offers pieces of a resource to the kubelet it finds, as those of GPUs and HCAs do.
//
// It speaks the kubelet's own protocol (device plugin v1beta1) and gives pods nothing but an environment variable. It ends
// when the kubelet starts anew, which forgets its plugins: its container's restart registers it again.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

type plugin struct {
	api.UnimplementedDevicePluginServer
	count int
	over  context.Context
}

func (*plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	devices := make([]*api.Device, p.count)
	for number := range devices {
		devices[number] = &api.Device{ID: fmt.Sprintf("piece-%d", number), Health: api.Healthy}
	}
	if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	select { // their health never changes
	case <-p.over.Done():
	case <-stream.Context().Done():
	}
	return nil
}

func (*plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		environment := map[string]string{"RIG_DEVICES": strings.Join(container.DevicesIds, ",")}
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{Envs: environment})
	}
	return response, nil
}

func main() {
	resource := flag.String("resource", "rig.example/rdma", "what pods request")
	count := flag.Int("count", 2, "how many pieces there are")
	folder := flag.String("folder", api.DevicePluginPath, "where the kubelet's socket is")
	flag.Parse()
	over, _ := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	if err := serve(over, *resource, *count, *folder); err != nil {
		log.Fatal(err)
	}
}

func serve(over context.Context, resource string, count int, folder string) error {
	kubelet := filepath.Join(folder, "kubelet.sock")
	before, err := os.Stat(kubelet)
	if err != nil {
		return err
	}
	endpoint := strings.ReplaceAll(resource, "/", "-") + ".sock"
	own := filepath.Join(folder, endpoint)
	if err := os.Remove(own); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", own)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, &plugin{count: count, over: over})
	go server.Serve(listener)
	defer server.Stop()
	if err := register(over, kubelet, endpoint, resource); err != nil {
		return err
	}
	log.Printf("registered %d of %s", count, resource)
	for {
		select {
		case <-over.Done():
			return nil
		case <-time.After(time.Second):
		}
		if now, err := os.Stat(kubelet); err != nil || !os.SameFile(before, now) {
			return fmt.Errorf("the kubelet started anew")
		}
	}
}

func register(over context.Context, kubelet, endpoint, resource string) error {
	connection, err := grpc.NewClient("unix:"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	within, cancel := context.WithTimeout(over, 30*time.Second)
	defer cancel()
	request := &api.RegisterRequest{Version: api.Version, Endpoint: endpoint, ResourceName: resource}
	_, err = api.NewRegistrationClient(connection).Register(within, request, grpc.WaitForReady(true))
	return err
}
