#!/bin/sh
# Starts the one etcd server of a test run. It ends with nextest, which is the parent of this script.
set -eu
etcd=$(cargo xtask etcd | tail -n 1)
folder=$(mktemp -d)
# A loopback address of its own: two runs at the same time never meet.
address=127.$((16 + PPID / 65536 % 100)).$((PPID / 256 % 256)).$((PPID % 254 + 1)):2379
mkfifo "$folder/log" "$folder/ready"

serve() {
    "$etcd" --data-dir "$folder/data" --listen-client-urls "http://$address" \
        --advertise-client-urls "http://$address" --listen-peer-urls "http://${address%:*}:0" \
        --max-request-bytes 16777216 --enable-v2=true --logger zap --log-level info 2>"$folder/log" &
    tail --pid="$PPID" -f /dev/null
    kill -9 $!
    rm -rf "$folder"
}

serve </dev/null >/dev/null 2>&1 &
# Reads the log to its end, since etcd would wait for a reader.
{
    state='no line in its log'
    while read -r line; do
        case $line in *"serving client traffic"*) state=ok && break ;; *) state=$line ;; esac
    done
    echo "$state" >"$folder/ready"
    cat
} <"$folder/log" >/dev/null 2>&1 &
read -r state <"$folder/ready"
if [ "$state" != ok ]; then
    echo "etcd did not start: $state" >&2
    exit 1
fi
echo "RDZV_ETCD=$etcd" >>"$NEXTEST_ENV"
echo "RDZV_TEST_ETCD=$address" >>"$NEXTEST_ENV"
