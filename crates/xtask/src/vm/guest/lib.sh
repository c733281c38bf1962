# What the scenarios' scripts are written with. Every script begins with these lines.
set -e -o pipefail

# Starts the initiator under a name.
start_initiator() {
    echo "InitiatorName=$1" >/etc/iscsi/initiatorname.iscsi
    modprobe iscsi_tcp
    iscsid
}

# record TARGET PORTAL [KEY=VALUE ...]: makes a node record, of the interface $IFACE if set. The target shows its portals as it sees
# them itself, which is not how they are reached through the user-mode network: so none is discovered.
record() {
    local target=$1 portal=$2 setting
    shift 2
    iscsiadm -m node -T "$target" -p "$portal" ${IFACE:+-I "$IFACE"} -o new >/dev/null
    for setting in node.session.initial_login_retry_max=1 "$@"; do
        iscsiadm -m node -T "$target" -p "$portal" -o update -n "${setting%%=*}" -v "${setting#*=}"
    done
}

login() { iscsiadm -m node -T "$1" -p "$2" --login && udevadm settle; }
logout() { iscsiadm -m node -T "$1" -p "$2" --logout && udevadm settle; }

# wait_for SECONDS WHAT COMMAND...: until the command succeeds.
wait_for() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        if [ $SECONDS -ge $end ]; then
            echo "waited too long for $what"
            return 1
        fi
        sleep 0.2
    done
}

# disk TARGET PORTAL [LUN]: the disk behind a session.
disk() {
    local link=/dev/disk/by-path/ip-$2-iscsi-$1-lun-${3:-0}
    wait_for 15 "$link" test -b "$link"
    readlink -f "$link"
}

# start_load FOLDER [FILES]: writes files of a MiB and a bit, each made stable, one after the other,
# over and over (40 names if not said), until stop_load. What was finished is counted in
# /run/load/done, the longest time of one file since somebody put 0 there in
# /run/load/longest (ms).
start_load() {
    local folder=$1 files=${2:-40}
    rm -rf /run/load
    mkdir /run/load
    head -c 1048576 /dev/urandom >/run/load/base
    echo 0 >/run/load/done
    echo 0 >/run/load/longest
    (
        set +e
        number=0
        while [ ! -e /run/load/stop ]; do
            number=$((number + 1))
            began=${EPOCHREALTIME/./}
            { echo "file $number" && cat /run/load/base; } |
                dd of="$folder/load$((number % files))" bs=64k iflag=fullblock conv=fsync status=none
            if [ $? -ne 0 ]; then
                echo "file $number failed" >>/run/load/failed
                break
            fi
            took=$(((${EPOCHREALTIME/./} - began) / 1000))
            [ $took -gt "$(cat /run/load/longest)" ] && echo $took >/run/load/longest
            echo $number >/run/load/done
        done
        touch /run/load/ended
    ) </dev/null >/run/load/log 2>&1 &
    echo "$files" >/run/load/files
}

written() { cat /run/load/done; }
wrote_more_than() { [ "$(written)" -gt "$1" ] || [ -e /run/load/failed ]; }

# Stops the load; fails if any write failed.
stop_load() {
    touch /run/load/stop
    wait_for "${1:-60}" "the load to end" test -e /run/load/ended
    if [ -e /run/load/failed ]; then
        cat /run/load/failed /run/load/log
        return 1
    fi
}

# verify_load FOLDER: every file as it was written last.
verify_load() {
    local folder=$1 files done number
    files=$(cat /run/load/files)
    done=$(written)
    number=$((done > files ? done - files + 1 : 1))
    local first=$number
    while [ $number -le "$done" ]; do
        { echo "file $number" && cat /run/load/base; } | cmp - "$folder/load$((number % files))"
        number=$((number + 1))
    done
    echo "files $first to $done are as written"
}

# Fails if the kernel has reported an I/O error.
no_io_error() {
    if dmesg | grep -E "I/O error|Buffer I/O|EXT4-fs error|EXT4-fs warning|Aborting journal"; then
        return 1
    fi
}
