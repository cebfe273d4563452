"""Remedies and commands that several families advise.

Placeholders are names of the run (:meth:`trackside.facts.run_names.RunNames.of`). If an
action has several commands, the first that can be filled is shown.
"""

from __future__ import annotations

from collections.abc import Mapping

from trackside.finding import Sentence, ShellCommand

SUSPECTS: Mapping[str, str] = {
    "data": "the input that it reads",
    "config": "the setting passed to it",
    "env": "the version of what it calls",
    "asset": "the file that it loads",
}
"""Class of a fault -> what, besides the code, may be wrong."""
CHECK_PLACE = {kind: Sentence(f"check {{place}} and {suspect}, then resubmit") for kind, suspect in SUSPECTS.items()}
CODE_OR = {kind: Sentence(f"either the script or {suspect} is wrong") for kind, suspect in SUSPECTS.items()}
CHECK_PATH = Sentence("check that {path} exists")
CHECK_PATH_ON_NODES = Sentence("check that {path} exists on every node of the job")
CHECK_RELATIVE_PATH = Sentence("check that {path} exists, relative to the folder in which the job starts")
PROGRAMMING_ERRORS = frozenset(
    (
        "AssertionError", "AttributeError", "IndexError", "KeyError", "NameError", "NotImplementedError", "TypeError",
        "UnboundLocalError", "ZeroDivisionError",
    )
)  # fmt: skip
"""Types that wrong code raises, too: their class is a guess from the message and the place."""

NOTHING_TO_DO = Sentence("nothing to do for this run", running="nothing to do so far")
"""Advice of a healthy run without warnings."""

_SUBMISSION = "sacct -j {jobs} -X -P --format=WorkDir,SubmitLine"
"""Shows the options of the submission, and its folder."""
RESUBMIT = (
    ShellCommand("cd {work_dir} && sbatch {submission:whole}"),
    ShellCommand(f"{_SUBMISSION}  # then: sbatch OPTIONS_OF_THAT_SUBMISSION {{submitted_script}}"),
)
"""Submits again with the options of the last submission; where they are not known or may hold a secret, the command
shows them, and how to submit with them is a comment: pasted, the line submits nothing."""
RESUBMIT_REQUEUABLE = (
    ShellCommand("cd {work_dir} && sbatch --requeue {submission:whole}"),
    ShellCommand(f"{_SUBMISSION}  # then: sbatch --requeue OPTIONS_OF_THAT_SUBMISSION {{submitted_script}}"),
)
_ELSEWHERE = f"{_SUBMISSION}  # then: sbatch --exclude={{slurm_nodes}} OPTIONS_OF_THAT_SUBMISSION"
RESUBMIT_ELSEWHERE = (
    ShellCommand("cd {work_dir} && sbatch --exclude={slurm_nodes} {submission:whole}"),
    ShellCommand(f"{_ELSEWHERE} {{submitted_script}}"),
    ShellCommand(f"{_ELSEWHERE} JOB_SCRIPT"),
)
DRAIN = ShellCommand("scontrol update nodename={slurm_nodes} state=drain reason='{reason}'")
_DUMP_ALL = 'for p in $(pgrep -f "[p]ython"); do py-spy dump --pid $p; done'
"""The brackets keep pgrep from listing the shell that runs this, whose command line holds the pattern."""
DUMP_STACKS = (
    ShellCommand("{on_node} py-spy dump --pid {pid}"),
    ShellCommand("{node_shell} 'for p in {pids}; do py-spy dump --pid $p; done'"),
    ShellCommand(
        f"srun --jobid=NEW_JOB_ID --overlap --ntasks-per-node=1 --label bash -c '{_DUMP_ALL}'",
        running=f"srun --jobid={{job}} --overlap --nodelist={{slurm_node}} --ntasks=1 bash -c '{_DUMP_ALL}'",
    ),
    ShellCommand(
        f"srun --jobid=NEW_JOB_ID --overlap --ntasks-per-node=1 --label bash -c '{_DUMP_ALL}'",
        running=f"srun --jobid={{job}} --overlap --ntasks-per-node=1 --label bash -c '{_DUMP_ALL}'",
    ),
    ShellCommand(f"ssh {{node}} '{_DUMP_ALL}'"),
    ShellCommand(_DUMP_ALL),
)
"""The stack of the named processes; else of all Python processes of the job, whose next run has another id; else on
the node, on which the last command is to run."""
DUMP_STACKS_OF_RANK = (
    *DUMP_STACKS[:2],
    ShellCommand(
        f"srun --jobid=NEW_JOB_ID --overlap --nodelist=NODE_OF_THE_RANK --ntasks=1 bash -c '{_DUMP_ALL}'",
        running=f"srun --jobid={{job}} --overlap --nodelist={{slurm_node}} --ntasks=1 bash -c '{_DUMP_ALL}'",
    ),
    *DUMP_STACKS[4:],
)
"""Dumps the stacks on the node of one rank; the next job has other nodes."""
