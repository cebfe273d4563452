#!/bin/sh
# A job's last lines are with the receiver before the node is free for the next: Epilog of slurm.conf, as root on each
# node of the job. It waits until the agent has sent what it read, some seconds at most, and never fails a job.
#
#   Epilog=/etc/slurm/trackside-epilog.sh
#
#   TRACKSIDE_AGENT_URL  where the agent's metrics are; http://127.0.0.1:9481/metrics
#   TRACKSIDE_SENT_WAIT  seconds that it waits at most; 10

PATH=${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}; export PATH  # slurmd gives none
url=${TRACKSIDE_AGENT_URL:-http://127.0.0.1:9481/metrics}
wait=${TRACKSIDE_SENT_WAIT:-10}

waiting() {  # how many samples and lines wait to be sent; nothing where no agent answers
    curl -sf -m 2 "$url" | awk '/^trackside_send_waiting[{]/ {sum += $NF; found = 1} END {if (found) print sum}'
}

sleep 1  # the agent reads what jobs write a few times a second
begin=$(date +%s)
while left=$(waiting) && [ -n "$left" ] && [ "$left" != 0 ] && [ $(($(date +%s) - begin)) -lt "$wait" ]; do
    sleep 0.5
done
exit 0
