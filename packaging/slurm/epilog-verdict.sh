#!/bin/sh
# Writes a verdict for each job that ends: EpilogSlurmctld of slurm.conf. See docs/slurm.md.
#
#   EpilogSlurmctld=/etc/slurm/epilog-verdict.sh
#
# It returns at once and always with 0, so it cannot delay or fail a job. A background process asks the receiver
# ('trackside serve --slurm auto') some seconds later, one job at a time, within a time limit. A job without a verdict
# gets a line in errors.log of the folder, or in the system log. It runs as SlurmUser, who must be able to write the
# folder, and needs curl, flock, setsid and timeout, but not Trackside. Settings: NAME=VALUE lines in
# /etc/trackside/epilog.conf, or the environment.
#
#   TRACKSIDE_URL         the receiver (default http://127.0.0.1:9480)
#   TRACKSIDE_TOKEN_FILE  file with a read token, readable by SlurmUser (default none)
#   TRACKSIDE_VERDICTS    folder; JOB.json is a job's latest verdict, JOB.txt the same in one paragraph
#                         (default /var/log/trackside/verdicts)
#   TRACKSIDE_WAIT        seconds to wait for output and accounting to arrive (default 30)
#   TRACKSIDE_LIMIT       seconds until it gives up, waiting for other jobs included (default 600): raise it if
#                         hundreds of jobs end together
#   TRACKSIDE_NOTIFY      command to run with the path of each JOB.json, such as notify.sh, which mails the verdict and
#                         puts it into the job's comment (default none)

PATH=${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}; export PATH  # slurmctld sets none
settings=${TRACKSIDE_EPILOG_CONF:-/etc/trackside/epilog.conf}
[ ! -r "$settings" ] || . "$settings"
url=${TRACKSIDE_URL:-http://127.0.0.1:9480} folder=${TRACKSIDE_VERDICTS:-/var/log/trackside/verdicts}
limit=${TRACKSIDE_LIMIT:-600}

if [ "${1:-}" != ask ]; then  # called by Slurm
    # Enter a new session before returning, because slurmctld then kills the epilog's process group.
    [ -z "${SLURM_JOB_ID:-}" ] || setsid --wait sh -c 'timeout -k 5 "$1" "$0" ask </dev/null >/dev/null 2>&1 &' "$0" "$limit"
    exit 0
fi

# Tasks of an array have names of their own.
job=$SLURM_JOB_ID
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
    job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
fi

new=$folder/.$job.new
fail() {
    line="$(date -u +%FT%TZ) job $job: no verdict: $1"
    { echo "$line" >>"$folder/errors.log"; } 2>/dev/null || logger -t trackside-epilog -- "$line"
    rm -f "$new" "$new.head" "$new.txt"
    exit 1
}
trap 'fail "gave up after $limit s (TRACKSIDE_LIMIT)"' TERM
umask 027
mkdir -p "$folder" 2>/dev/null || fail "cannot create $folder"
token=${TRACKSIDE_TOKEN_FILE:-}
[ -z "$token" ] || [ -r "$token" ] || fail "cannot read $token"
sleep "${TRACKSIDE_WAIT:-30}"
exec 9>"$folder/.lock"
flock 9  # one request at a time, however many jobs end together; the time limit bounds the wait
ask() {  # method, path, output file
    # The token goes through standard input, so that it does not appear in the process list.
    { [ -z "${TRACKSIDE_TOKEN_FILE:-}" ] || sed 's/.*/header = "Authorization: Bearer &"/;q' "$TRACKSIDE_TOKEN_FILE"; } |
        curl --config - --silent --show-error --max-time "$limit" --request "$1" --output "$3" \
            --dump-header "$new.head" --write-out '%{http_code}' "$url/api/v1/$2" 2>>"$folder/errors.log"
}
while status=$(ask POST "runs/$job/diagnose" "$new"); [ "$status" = 202 ]; do
    sleep 2  # the verdict takes longer than a request may; asking again joins it
done
exec 9>&-
[ "$status" = 200 ] || fail "HTTP $status $(head -c 300 "$new" 2>/dev/null)"
verdict=$(sed -n 's/^[Tt]rackside-[Vv]erdict: *\([0-9]*\).*/\1/p' "$new.head")  # none if the archive is down
if [ -n "$verdict" ] && [ "$(ask GET "verdicts/$verdict?format=short" "$new.txt")" = 200 ]; then
    mv "$new.txt" "$folder/$job.txt"
fi
mv "$new" "$folder/$job.json"
rm -f "$new.head" "$new.txt"
[ -z "${TRACKSIDE_NOTIFY:-}" ] || $TRACKSIDE_NOTIFY "$folder/$job.json"
