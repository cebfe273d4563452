#!/bin/sh
# Tells the user of a job its verdict: TRACKSIDE_NOTIFY of epilog-verdict.sh, which calls it with the path of JOB.json and
# wrote JOB.txt beside it. See docs/slurm.md. It needs sacctmgr, and for mail sacct and a mail command. Settings, in
# /etc/trackside/epilog.conf or the environment:
#
#   TRACKSIDE_COMMENT   yes (default): put the verdict into the job's AdminComment; no
#   TRACKSIDE_MAIL      faults: mail the user if a fault was found; all: always; no (default)
#   TRACKSIDE_MAIL_PROG command that takes -s SUBJECT ADDRESS and the text on standard input (default: MailProg of Slurm)
#   TRACKSIDE_MAIL_DOMAIN  domain of the users' addresses (default: none, local mail)
#   SLURM_CONF          path of slurm.conf, if it is not where Slurm's commands look: slurmctld does not tell its epilog

settings=${TRACKSIDE_EPILOG_CONF:-/etc/trackside/epilog.conf}
[ ! -r "$settings" ] || . "$settings"
[ -z "${SLURM_CONF:-}" ] || export SLURM_CONF
json=${1:?the path of JOB.json}
job=$(basename "$json" .json) text=${json%.json}.txt
errors=$(dirname "$json")/errors.log
[ -s "$text" ] || exit 0
if [ "${TRACKSIDE_COMMENT:-yes}" = yes ]; then
    # One short line: quotes and line ends would break some of the tools that show it.
    comment="Trackside: $(tr '\n"' " '" <"$text" | sed 's/ Not settled yet: [^.]*\.//' | cut -c 1-500)"
    # Not scontrol: it changes no job that has ended. sacctmgr of Slurm 22.05 turns the text into lower case.
    sacctmgr --immediate modify job where jobid="$job" set admincomment="$comment" >/dev/null 2>>"$errors" ||
        echo "$(date -u +%FT%TZ) job $job: sacctmgr could not set the comment" >>"$errors"
fi

case ${TRACKSIDE_MAIL:-no} in
no) exit 0 ;;
faults)
    family=$(sed -n '/^  "primary": {/,/^  }/s/^    "family": "\(.*\)",*/\1/p' "$json")
    case $family in G1 | U0) exit 0 ;; esac
    ;;
esac
user=$(sacct --jobs "$job" --allocations --noheader --parsable2 --format User | head -n 1)
[ -n "$user" ] || exit 0
mail=${TRACKSIDE_MAIL_PROG:-$(scontrol show config | sed -n 's/^MailProg *= *//p')}
subject="Job $job: $(sed 's/\. .*//;q' "$text" | cut -c 1-120)"
# Some mail commands run what follows a tilde at the start of a line.
sed 's/^~/ ~/' "$text" | "$mail" -s "$subject" "$user${TRACKSIDE_MAIL_DOMAIN:+@$TRACKSIDE_MAIL_DOMAIN}" 2>>"$errors" ||
    echo "$(date -u +%FT%TZ) job $job: $mail could not mail $user" >>"$errors"
