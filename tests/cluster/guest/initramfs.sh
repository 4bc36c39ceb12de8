#!/bin/busybox sh
# First program of a guest: loads what the root disk and the shares need, mounts them, and hands over to the run's boot script.
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t sysfs sys /sys
$bb mount -t devtmpfs dev /dev
while read -r module; do $bb insmod "/modules/$module"; done < /modules/order
$bb mount -t ext4 /dev/vda /disk || exec $bb sh
$bb mount -t 9p -o trans=virtio,version=9p2000.L,ro config /disk/config || exec $bb sh
for folder in proc sys dev; do $bb mount --move "/$folder" "/disk/$folder"; done
exec $bb switch_root /disk /bin/bash /config/boot.sh
