# First process of a machine, in new namespaces. All processes of the machine end with it.
# node.sh NAME ADDRESS HOSTS FREEZER COMMAND...
set -e
name=$1 address=$2 hosts=$3 freezer=$4
shift 4
mount --make-rprivate /
mount -t proc proc /proc
mount --bind "$hosts" /etc/hosts
# The machine sees only its own part of the freezer.
test -z "$freezer" || mount --bind "$freezer" /sys/fs/cgroup/freezer
hostname "$name"
ip link set lo up
echo made
# A line arrives once this machine has the network interface `eth0`.
read -r _
ip address add "$address/24" dev eth0
ip link set eth0 up
echo up
"$@" &
# Orphans of the daemons become children of this process, and `wait` reaps them.
while :; do wait; sleep 1000 & done
