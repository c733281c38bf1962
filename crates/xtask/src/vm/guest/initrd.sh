#!/bin/busybox sh
# First program of the machine: loads what the root disk needs and goes on there.
bb=/bin/busybox
$bb mount -t devtmpfs dev /dev
for module in $($bb cat /modules); do
    $bb insmod "/$module"
done
tries=0
while [ ! -b /dev/vda ] && [ $tries -lt 100 ]; do
    $bb sleep 0.1
    tries=$((tries + 1))
done
$bb mount -t ext4 /dev/vda /disk || { echo "no root disk"; $bb poweroff -f; }
exec $bb switch_root /disk /sbin/forebay-guest
