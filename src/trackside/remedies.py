"""Commands that several families advise.

Placeholders are names of the run (:meth:`trackside.facts.run_names.RunNames.of`). Of several commands for one action
the first that can be filled is shown.
"""

from __future__ import annotations

from trackside.finding import Command

RESUBMIT_ELSEWHERE = (
    Command("sbatch --exclude={slurm_nodes} {script}"),
    Command("sbatch --exclude={slurm_nodes} JOB_SCRIPT"),
)
DRAIN = Command("scontrol update nodename={slurm_nodes} state=drain reason='{reason}'")
_DUMP_ALL = "'for p in $(pgrep -u $USER -f python); do py-spy dump --pid $p; done'"
DUMP_STACKS = (
    Command("{on_node} py-spy dump --pid {pid}"),
    Command("{node_shell} 'for p in {pids}; do py-spy dump --pid $p; done'"),
    Command(f"{{node_shell}} {_DUMP_ALL}"),
    Command(
        f"srun --jobid=JOB_ID --overlap bash -c {_DUMP_ALL}",
        running=f"srun --jobid={{job}} --overlap bash -c {_DUMP_ALL}",
    ),
)
"""The stack of the named processes; else of all Python processes on the node, in the job, or on this machine."""
