# What the scripts of the scenario full-log are written with: one writer for each unit, with its files in
# /run/writer/NAME. `target` is the unit's target and portal, `place` the disk or folder that it writes to, `began`
# when the write under way began (ms), `done` the number of the last write that was finished, `longest` the longest of
# them (ms), `failed` how long the write that failed took (ms) and what dd said.

# 1 MiB: a few fill the log, however slowly an emulated machine starts programs.
PIECE=1048576

now_ms() { echo $((${EPOCHREALTIME/./} / 1000)); }
writers() { ls /run/writer; }
disk_of() { disk $(cat /run/writer/$1/target); }

# piece NUMBER: the data of a write.
piece() { printf '%-4096s' "piece $1" && cat /run/base; }

# make_writer NAME KIND TARGET PORTAL: a writer to the disk of a session (raw) or to a file system on it (ext4).
make_writer() {
    local home=/run/writer/$1 disk
    [ -e /run/base ] || head -c $((PIECE - 4096)) /dev/urandom >/run/base
    mkdir -p $home
    echo $3 $4 >$home/target
    echo 0 >$home/done
    disk=$(disk_of $1)
    echo $disk >$home/place
    if [ $2 = ext4 ]; then
        # Nothing is initialised later, when the log is full.
        mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 $disk
        mkdir -p /mnt/$1
        mount $disk /mnt/$1
        echo /mnt/$1 >$home/place
    fi
    sync
}

# start_writer NAME: goes on behind the last write that was finished, until stop_writers or a failure: to a disk with
# O_DIRECT, in a folder to a new file each time, with fsync. It writes once at least.
start_writer() {
    local home=/run/writer/$1
    rm -f $home/began $home/failed $home/ended /run/stop
    echo 0 >$home/longest
    (
        set +e
        place=$(cat $home/place) number=$(cat $home/done)
        while true; do
            number=$((number + 1)) began=$(now_ms)
            echo $began >$home/began
            if [ -d $place ]; then
                piece $number | dd of=$place/$number bs=64k iflag=fullblock conv=fsync status=none 2>$home/said
            else
                piece $number | dd of=$place bs=$PIECE seek=$number iflag=fullblock oflag=direct \
                    conv=notrunc status=none 2>$home/said
            fi
            code=$? took=$(($(now_ms) - began))
            if [ $code -ne 0 ]; then
                echo $took $(head -n 1 $home/said) >$home/failed
                break
            fi
            [ $took -gt $(cat $home/longest) ] && echo $took >$home/longest
            echo $number >$home/done
            [ ! -e /run/stop ] || break
        done
        touch $home/ended
    ) </dev/null >/dev/null 2>&1 &
}

# waits NAME SECONDS: its write has been under way for so long, or a write has failed.
waits() {
    local began
    [ ! -e /run/writer/$1/failed ] || return 0
    began=$(cat /run/writer/$1/began 2>/dev/null) && [ -n "$began" ] && [ $(($(now_ms) - began)) -ge $(($2 * 1000)) ]
}

# all_wait SECONDS NAME...
all_wait() {
    local seconds=$1 name
    shift
    for name in "$@"; do
        waits $name $seconds || return 1
    done
}

# Fails if a write has failed.
none_failed() { ! grep -s . /run/writer/*/failed /dev/null; }

# stop_writers SECONDS: every writer ends after the write that is under way.
stop_writers() {
    local name
    touch /run/stop
    for name in $(writers); do
        wait_for $1 "$name to end" test -e /run/writer/$name/ended
    done
}

# report: a line for each writer.
report() {
    local name
    for name in $(writers); do
        if [ -e /run/writer/$name/failed ]; then
            echo "$name failed $(cat /run/writer/$name/failed)"
        elif [ -e /run/writer/$name/ended ]; then
            echo "$name finished $(cat /run/writer/$name/longest)"
        else
            echo "$name waits $(($(now_ms) - $(cat /run/writer/$name/began)))"
        fi
    done
}

# verify NAME: everything that was finished is as it was written. Reads the disk, not what the kernel has in memory.
verify() {
    local place done number
    place=$(cat /run/writer/$1/place) done=$(cat /run/writer/$1/done)
    if [ -d $place ]; then
        ! mountpoint -q $place || umount $place
        # A file system whose journal was given up has to be mended first: 1 says that it was.
        e2fsck -f -y $(disk_of $1) >/run/writer/$1/e2fsck 2>&1 || [ $? -eq 1 ]
        mount $(disk_of $1) $place
    fi
    for number in $(seq 1 $done); do
        piece $number
    done >/run/expected
    if [ -d $place ]; then
        (cd $place && cat $(seq 1 $done)) | cmp - /run/expected
    else
        dd if=$place bs=$PIECE skip=1 count=$done iflag=direct status=none | cmp - /run/expected
    fi
    echo "$1: $done pieces are as written"
}

# defaults: what decides how long the kernel waits, of one disk and session.
defaults() {
    local name disk
    name=$(writers | head -n 1)
    disk=$(basename $(disk_of $name))
    echo "command timeout $(cat /sys/block/$disk/device/timeout) s"
    iscsiadm -m node -T $(cut -d' ' -f1 /run/writer/$name/target) -o show |
        grep -E 'replacement_timeout|abort_timeout|noop_out' | sed 's/ = / /'
}

# go_away: unmounts and logs out.
go_away() {
    local name
    for name in $(writers); do
        [ ! -d $(cat /run/writer/$name/place) ] || umount $(cat /run/writer/$name/place)
        logout $(cat /run/writer/$name/target)
    done
}
