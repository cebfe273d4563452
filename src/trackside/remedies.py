"""Commands that several families advise.

Placeholders are names of the run (:meth:`trackside.facts.run_names.RunNames.of`). Of several commands for one action
the first that can be filled is shown.
"""

from __future__ import annotations

from trackside.finding import ShellCommand

RESUBMIT_ELSEWHERE = (
    ShellCommand("sbatch --exclude={slurm_nodes} {script}"),
    ShellCommand("sbatch --exclude={slurm_nodes} JOB_SCRIPT"),
)
DRAIN = ShellCommand("scontrol update nodename={slurm_nodes} state=drain reason='{reason}'")
_DUMP_ALL = "'for p in $(pgrep -u $USER -f python); do py-spy dump --pid $p; done'"
DUMP_STACKS = (
    ShellCommand("{on_node} py-spy dump --pid {pid}"),
    ShellCommand("{node_shell} 'for p in {pids}; do py-spy dump --pid $p; done'"),
    ShellCommand(f"{{node_shell}} {_DUMP_ALL}"),
    ShellCommand(
        f"srun --jobid=JOB_ID --overlap bash -c {_DUMP_ALL}",
        running=f"srun --jobid={{job}} --overlap bash -c {_DUMP_ALL}",
    ),
)
"""The stack of the named processes; else of all Python processes on the node, in the job, or on this machine."""
