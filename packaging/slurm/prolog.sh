#!/bin/sh
# The agent runs while a job does: Prolog of slurm.conf, as root on each node of the job. For sites where it is not
# enabled at boot. It never holds a job up and never fails one.
#
#   Prolog=/etc/slurm/trackside-prolog.sh
#
#   TRACKSIDE_UNIT  the agent's unit; trackside-agent.service

PATH=${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}; export PATH  # slurmd gives none
unit=${TRACKSIDE_UNIT:-trackside-agent.service}
if command -v systemctl >/dev/null 2>&1 && ! systemctl --quiet is-active "$unit"; then
    timeout 5 systemctl --no-block start "$unit" || logger -t trackside "$unit does not start on $(hostname)" || :
fi
exit 0
