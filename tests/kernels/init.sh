#!/busybox sh
# The first process of the guest. The guest's root is the host's file system, read-only below a tmpfs, so that it has every
# program that the tests drive. Only its kernel and modules are its own.
/busybox mkdir -p /proc /sys /dev /host /modules /overlay /root
/busybox mount -t proc proc /proc
/busybox mount -t sysfs sysfs /sys
/busybox mount -t devtmpfs dev /dev
for module in $(/busybox cat /modules.order); do
    /busybox insmod "/boot-modules/$module" || echo "init: $module was not loaded"
done
options=trans=virtio,version=9p2000.L,msize=512000
/busybox mount -t 9p -o "$options,ro,cache=loose" host /host
/busybox mount -t tmpfs -o size=70% tmpfs /overlay
/busybox mkdir /overlay/upper /overlay/work
/busybox mount -t overlay -o lowerdir=/host,upperdir=/overlay/upper,workdir=/overlay/work overlay /root

cd /root || exit 1
for folder in proc sys dev; do
    /busybox mount --move /$folder /root/$folder
done
/busybox mkdir -p "lib/modules/$(/busybox uname -r)" share
/busybox mount -t 9p -o "$options,ro,cache=loose" modules "lib/modules/$(/busybox uname -r)"
/busybox mount -t 9p -o "$options" share share
exec /busybox switch_root /root /bin/bash /share/guest.sh
