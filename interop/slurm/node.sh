# The first process of a node: its namespaces are new, and all in it ends with this.
# node.sh NAME ADDRESS HOSTS FREEZER COMMAND...
set -e
name=$1 address=$2 hosts=$3 freezer=$4
shift 4
mount --make-rprivate /
mount -t proc proc /proc
mount --bind "$hosts" /etc/hosts
# The node sees its own part of the freezer only.
test -z "$freezer" || mount --bind "$freezer" /sys/fs/cgroup/freezer
hostname "$name"
ip link set lo up
echo made
# The other end of its cable has been plugged in when there is a line to read.
read -r _
ip address add "$address/24" dev eth0
ip link set eth0 up
echo up
"$@" &
# Children of daemons that ended are collected here.
while :; do wait; sleep 1000 & done
