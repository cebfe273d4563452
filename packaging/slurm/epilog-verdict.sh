#!/bin/sh
# A verdict on each job that ends, without being asked for: EpilogSlurmctld of slurm.conf. See docs/cluster-demo.md.
#
#   EpilogSlurmctld=/etc/slurm/epilog-verdict.sh
#
# It returns at once and always with 0, so that no job and no node waits for it. What it started asks the receiver
# ('trackside serve --slurm auto') some seconds later, within a time limit, one job at a time. Needs curl, flock and
# setsid, nothing of Trackside's. Settings: a file of NAME=VALUE lines, /etc/trackside/epilog.conf, or the environment.
#
#   TRACKSIDE_URL         the receiver's; http://127.0.0.1:9480
#   TRACKSIDE_TOKEN_FILE  a file with a token that may read; none
#   TRACKSIDE_VERDICTS    a folder: JOB.json is the latest verdict on a job; /var/log/trackside/verdicts
#   TRACKSIDE_WAIT        seconds from the job's end to the question, for output and accounting to arrive; 30
#   TRACKSIDE_LIMIT       seconds after which it gives up; 600
#   TRACKSIDE_NOTIFY      a command that is run with the path of each verdict: to mail it, to post it; none

PATH=${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}; export PATH  # slurmctld gives none
settings=${TRACKSIDE_EPILOG_CONF:-/etc/trackside/epilog.conf}
[ ! -r "$settings" ] || . "$settings"
url=${TRACKSIDE_URL:-http://127.0.0.1:9480} folder=${TRACKSIDE_VERDICTS:-/var/log/trackside/verdicts}
limit=${TRACKSIDE_LIMIT:-600}

if [ "${1:-}" != ask ]; then  # called by Slurm
    # A session of its own, entered before this returns: slurmctld then ends the epilog's process group.
    [ -z "${SLURM_JOB_ID:-}" ] || setsid --wait sh -c 'timeout -k 5 "$1" "$0" ask </dev/null >/dev/null 2>&1 &' "$0" "$limit"
    exit 0
fi

# An array's task and a part of a heterogeneous job go by their own names.
job=$SLURM_JOB_ID
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
    job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
fi

umask 027
mkdir -p "$folder" || exit 1
sleep "${TRACKSIDE_WAIT:-30}"
exec 9>"$folder/.lock"
flock 9  # one question at a time, however many jobs end together; the time limit bounds the wait
new=$folder/.$job.new
ask() {
    # The token is told by standard input, for nobody to see it in the list of processes.
    { [ -z "${TRACKSIDE_TOKEN_FILE:-}" ] || sed 's/.*/header = "Authorization: Bearer &"/;q' "$TRACKSIDE_TOKEN_FILE"; } |
        curl --config - --silent --show-error --max-time "$limit" --request POST --output "$new" \
            --write-out '%{http_code}' "$url/api/v1/runs/$job/diagnose" 2>>"$folder/errors.log"
}
while said=$(ask); [ "$said" = 202 ]; do
    sleep 2  # it takes longer than a request may; asking again joins it
done
exec 9>&-
if [ "$said" != 200 ]; then
    echo "$(date -u +%FT%TZ) job $job: no verdict (HTTP $said) $(head -c 300 "$new" 2>/dev/null)" >>"$folder/errors.log"
    rm -f "$new"
    exit 1
fi
mv "$new" "$folder/$job.json"
[ -z "${TRACKSIDE_NOTIFY:-}" ] || $TRACKSIDE_NOTIFY "$folder/$job.json"
