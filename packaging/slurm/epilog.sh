#!/bin/sh
# Waits until a job's last lines are sent before the node takes its next job: Epilog of slurm.conf, as root on each
# node of the job. It waits about ten seconds at most and never fails a job.
#
#   Epilog=/etc/slurm/trackside-epilog.sh
#
#   TRACKSIDE_AGENT_URL  the agent's metrics (default http://127.0.0.1:9481/metrics)
#   TRACKSIDE_SENT_WAIT  seconds to wait at most (default 10)

PATH=${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}; export PATH  # slurmd sets none
url=${TRACKSIDE_AGENT_URL:-http://127.0.0.1:9481/metrics}
wait=${TRACKSIDE_SENT_WAIT:-10}

waiting() {  # prints how many samples and lines wait to be sent; nothing if no agent answers
    curl -sf -m 2 "$url" | awk '/^trackside_send_waiting[{]/ {sum += $NF; found = 1} END {if (found) print sum}'
}

sleep 1  # the agent reads job output a few times per second
begin=$(date +%s)
while left=$(waiting) && [ -n "$left" ] && [ "$left" != 0 ] && [ $(($(date +%s) - begin)) -lt "$wait" ]; do
    sleep 0.5
done
exit 0
