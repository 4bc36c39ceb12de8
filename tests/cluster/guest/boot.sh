#!/bin/bash
# Init of a guest: makes it node $NAME with number $NUMBER, from what the run put into /config. Ends by waiting for its children.
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
step() { echo "rig: $(cut -d' ' -f1 /proc/uptime) s: $*"; }

for folder in /tmp /run; do mount -t tmpfs -o mode=1777 tmpfs "$folder"; done
mkdir -p /dev/pts /dev/shm /run/sshd
mount -t devpts -o mode=620 devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --make-rshared / # kubelet propagates mounts into pods
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144,cache=mmap source /src
ln -sfn /proc/self/fd /dev/fd
. /config/environment
hostname "$NAME"
echo "127.0.0.1 localhost $NAME" > /etc/hosts
printf '%032x\n' "$NUMBER" > /etc/machine-id # kubelet names the machine by it
ulimit -l unlimited

ip link set lo up
ip link set eth0 up
ip address add "10.9.0.$NUMBER/24" dev eth0
ip route add default via 10.9.0.254
/usr/sbin/sshd -E /var/log/sshd.log -f /config/sshd_config
step "sshd"

modprobe -a rdma_rxe ib_uverbs rdma_ucm ib_umad overlay veth bridge br_netfilter nf_tables dummy
ip link set eth1 mtu "$FABRIC_MTU" up
ip address add "10.10.0.$NUMBER/24" dev eth1
rdma link add rxe0 type rxe netdev eth1
sysctl -qw net.ipv4.ip_forward=1
step "verbs: $(rdma link | tr -s ' \n' ' ')"

for controller in cpu cpuset memory pids io; do
  echo "+$controller" > /sys/fs/cgroup/cgroup.subtree_control
done
if [ -b /dev/vdb ]; then mount -t ext4 /dev/vdb /var/lib/containerd; fi
mkdir -p /etc/cni/net.d
sed "s/NUMBER/$NUMBER/" /config/cni.conflist > /etc/cni/net.d/10-rig.conflist
[ -f /config/extra.sh ] && . /config/extra.sh
if [ -f /config/kubeconfig ]; then
  containerd --config /config/containerd.toml > /var/log/containerd.log 2>&1 &
  until ctr version > /dev/null 2>&1; do sleep 0.2; done
  step "containerd"
  kubelet --config /config/kubelet.yaml --kubeconfig /config/kubeconfig --hostname-override "$NAME" \
    --node-ip "10.9.0.$NUMBER" --node-labels "$LABELS" > /var/log/kubelet.log 2>&1 &
  step "kubelet started"
fi
echo "rig: booted"
# The first process must not end, and reaps what others leave behind.
while true; do wait; sleep 1; done
