#!/bin/sh
# Starts the agent when a job starts: Prolog of slurm.conf, as root on each node of the job. For sites where the agent
# is not enabled at boot. It never fails a job, and delays it by 5 s at most.
#
#   Prolog=/etc/slurm/trackside-prolog.sh
#
#   TRACKSIDE_UNIT  the agent's unit (default trackside-agent.service)

PATH=${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}; export PATH  # slurmd sets none
unit=${TRACKSIDE_UNIT:-trackside-agent.service}
if command -v systemctl >/dev/null 2>&1 && ! systemctl --quiet is-active "$unit"; then
    timeout 5 systemctl --no-block start "$unit" || logger -t trackside "$unit does not start on $(hostname)" || :
fi
exit 0
